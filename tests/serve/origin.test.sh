#!/bin/bash
# origin.test.sh - what a web page of somewhere else can do with a server: nothing that changes something, and nothing at all
# where its own name leads to the server. Clients that are no browsers notice nothing.
# timeout: 120
. tests/serve/lib.sh
need curl perl
hello='{"prompt":"a","max_tokens":2}'

# ask STATUS CURL-ARGUMENT...: what comes, with headers of ours; the error's code is in $body.
ask() {
    local want=$1
    shift
    status=$(curl -s -m 20 -o "$tmp/body" -w '%{http_code}' "$@")
    body=$(cat "$tmp/body")
    [ "$status" = "$want" ] || fail "$* gave $status: $body"
}

serve -b 2 -c 512
port=${url##*:}
# Host: addresses and localhost; not the name of a page (DNS rebinding).
for host in "127.0.0.1:$port" "localhost:$port" LOCALHOST '[::1]:80' 10.0.0.1; do
    ask 200 "$url/v1/models" -H "Host: $host"
done
for host in evil.example "evil.example:$port" 127.0.0.1.evil.example localhost.evil.example; do
    for path in / /health /model_info /nowhere; do
        ask 403 "$url$path" -H "Host: $host"
        holds "$body" '"code":"host_not_allowed"'
    done
    ask 403 "$url/v1/completions" -H "Host: $host" -d "$hello"
    ask 403 "$url/v1/completions" -H "Host: $host" -X OPTIONS
done
holds "$body" allowed-host
equal "$(perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new($ARGV[0]) or die; print $s "GET /health HTTP/1.0\r\n\r\n";
    $s->flush; print scalar <$s>' "127.0.0.1:$port")" $'HTTP/1.0 200 OK\r'

# Origin, where a request has effects: the page of the server itself alone.
evil='Origin: http://evil.example'
for path in /v1/completions /abort_request /flush_cache /tokenize; do
    for origin in "$evil" 'Origin: null' "Origin: http://127.0.0.1:1" "Origin: http://localhost:$port"; do
        ask 403 "$url$path" -H "$origin" -H 'Content-Type: text/plain' -d "$hello"
        holds "$body" '"code":"origin_not_allowed"'
    done
done
ask 403 "$url/v1/responses/a" -H "$evil" -X DELETE
ask 403 "$url/v1/messages" -H "$evil" -d "$hello"
holds "$body" '"type":"permission_error"'
ask 200 "$url/v1/completions" -H "Origin: $url" -d "$hello"
ask 200 "$url/v1/completions" -d "$hello"
ask 200 "$url/v1/models" -H "$evil" # its answer is not readable there
ask 403 "$url/flush_cache" -H "$evil"
for site in cross-site same-site; do
    ask 403 "$url/flush_cache" -H "Sec-Fetch-Site: $site"
    ask 403 "$url/flush_cache" -I -H "Sec-Fetch-Site: $site"
    ask 200 "$url/health" -H "Sec-Fetch-Site: $site"
done
for site in same-origin none; do
    ask 200 "$url/flush_cache" -H "Sec-Fetch-Site: $site"
done
ask 200 "$url/flush_cache"
stop
equal "$?" 0
grep -q 'no API key' "$log" && fail "on loopback: $(cat "$log")"

# Any host reaches it and no key is asked for: the log says so, once.
serve -b 2 -c 512 --host 0.0.0.0
equal "$(grep -c 'no API key' "$log")" 1
stop

# Names and origins that are allowed; a key makes names needless, unless some are given.
serve -b 2 -c 512 --allowed-host 'gpu.example, other' --cors http://friend.example --api-key k
key='X-Api-Key: k'
ask 200 "$url/v1/models" -H "$key" -H 'Host: gpu.example:80'
ask 200 "$url/v1/models" -H "$key" -H 'Host: other'
ask 403 "$url/v1/models" -H "$key" -H 'Host: evil.example'
ask 200 "$url/v1/completions" -H "$key" -H 'Origin: http://friend.example' -d "$hello"
ask 403 "$url/v1/completions" -H "$key" -H "$evil" -d "$hello"
stop
serve -b 2 -c 512 --host 0.0.0.0 --cors '*' --api-key k
grep -q 'no API key' "$log" && fail "with a key: $(cat "$log")"
ask 200 "$url/v1/models" -H "$key" -H 'Host: evil.example'
ask 200 "$url/v1/completions" -H "$key" -H "$evil" -d "$hello"
ask 200 "$url/flush_cache" -H "$key" -H 'Sec-Fetch-Site: cross-site'
stop
finish
