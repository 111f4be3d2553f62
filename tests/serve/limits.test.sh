#!/bin/bash
# limits.test.sh - memory of a server whose clients send large bodies: without a key it keeps none, with one no more than its
# limit, and when they are gone the memory goes back to the system.
# timeout: 120
. tests/serve/lib.sh
need curl perl
serve -b 2 -c 512 --api-key secret
rss() { # MiB
    awk '/^VmRSS/ { print int($2 / 1024) }' "/proc/$server/status"
}
# flood HEADER LEAST: forty connections, each with a body of 15 MB but for its last byte; waits until so many are answered,
# prints how many of each status came, and keeps the rest open until its input ends.
flood() {
    perl -MIO::Socket::INET -MIO::Select -e '
        $SIG{PIPE} = "IGNORE";
        my ($at, $header, $least) = @ARGV;
        my ($n, @all, %got) = (15_000_000);
        for (1 .. 40) {
            my $s = IO::Socket::INET->new(PeerAddr => $at) or die "connect: $!";
            push @all, $s;
            print $s "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n${header}Content-Length: $n\r\n\r\n";
            $s->flush;
            for (my $left = $n - 1; $left > 0; $left -= 100_000) {
                last if IO::Select->new($s)->can_read(0);
                defined syswrite $s, "a" x ($left < 100_000 ? $left : 100_000) or last;
            }
        }
        for (my ($end, @answered) = time + 60; time < $end; select undef, undef, undef, 0.1) {
            @answered = IO::Select->new(@all)->can_read(0);
            last if @answered >= $least;
        }
        for my $s (@all) {
            my $head = "";
            sysread $s, $head, 16 if IO::Select->new($s)->can_read(0);
            $got{$1}++ if $head =~ /^HTTP\S+ (\d+)/;
        }
        $| = 1;
        print join(" ", map { "$_:$got{$_}" } sort keys %got), "\n";
        <STDIN>' "${url#http://}" "$1" "$2"
}
idle=$(rss)

equal "$(flood '' 40 </dev/null)" 401:40
[ "$(rss)" -lt $((idle + 50)) ] || fail "$(rss) MiB after bodies without a key, $idle before"

mkfifo "$tmp/hold"
flood $'X-Api-Key: secret\r\n' 20 <"$tmp/hold" >"$tmp/got" &
client=$!
exec 9>"$tmp/hold"
filled "$tmp/got"
got=$(cat "$tmp/got") # 256 MiB are the bytes of 17 bodies and a part of the next
[[ $got == 503:2[0-9] ]] || fail "answers to forty bodies: $got"
[ "$(rss)" -gt $((idle + 200)) ] || fail "$(rss) MiB with bodies, $idle before: they are not there"
[ "$(rss)" -lt $((idle + 330)) ] || fail "$(rss) MiB with bodies, $idle before"
get /health
equal "$status" 200
post /v1/completions '{"prompt":"a","max_tokens":2}' -H 'X-Api-Key: secret'
equal "$status" 200
exec 9>&-
wait "$client"
for _ in $(seq 600); do
    [ "$(rss)" -lt $((idle + 100)) ] && break
    sleep 0.1
done
[ "$(rss)" -lt $((idle + 100)) ] || fail "$(rss) MiB when the bodies are gone, $idle before"
stop
equal "$?" 0
finish
