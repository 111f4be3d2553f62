#!/bin/bash
# files.test.sh - a server with fewer file descriptors than clients waits with the rest, quietly, and takes them when
# others have gone.
# timeout: 60
. tests/serve/lib.sh
need curl perl
few=$tmp/few
printf '#!/bin/bash\nulimit -n 40\nexec "%s" "$@"\n' "$salvo" >"$few"
chmod +x "$few"
salvo=$few
serve -b 2
spent() { # milliseconds that the loop's thread has run
    echo $(($(cut -d' ' -f1 "/proc/$server/task/$server/schedstat") / 1000000))
}
open_files() {
    ls "/proc/$server/fd" | wc -l
}
perl -MIO::Socket::INET -e '
    my @s = map { IO::Socket::INET->new(PeerAddr => $ARGV[0]) or die "connect: $!" } 1 .. 60;
    sleep 1000' "${url#http://}" &
clients=$!
for _ in $(seq 1200); do
    [ "$(open_files)" -ge 40 ] && break
    sleep 0.05
done
[ "$(open_files)" -ge 40 ] || fail "$(open_files) descriptors are open"
sleep 0.5
before=$(spent)
sleep 2
used=$(($(spent) - before))
[ "$used" -lt 200 ] || fail "busy for $used ms of 2000 while no descriptor is free"
lines=$(wc -l <"$log")
[ "$lines" -lt 20 ] || fail "$lines lines of log: $(tail -n 3 "$log")"
await 'no file descriptor is free'
kill "$clients"
wait "$clients" 2>/dev/null
for _ in $(seq 600); do # until it has seen them go: as many as are open are answered with 503
    get /health
    [ "$status" = 200 ] && break
    sleep 0.1
done
equal "$status" 200
stop
equal "$?" 0
finish
