#!/bin/bash
# kill.test.sh - kill -9 of a client frees what it held; kill -9 of the server leaves nothing in the way of the next:
# port, socket file. TLS, Unix sockets and JSON log lines on the way.
# timeout: 120
. tests/serve/lib.sh
need curl openssl perl
# 128 long answers, a few at a time: none of the clients here sees their end
endless='{"prompt":"def add(a, b):","n":128,"max_tokens":1900,"ignore_eos":true,"stream":true}'

# a client that is killed
serve -b 4 --log-json
curl -sN -H 'Content-Type: application/json' -d "$endless" "$url/v1/completions" >"$tmp/part" &
client=$!
filled "$tmp/part"
kill -9 "$client"
becomes salvo_running_sequences 0
becomes salvo_cache_pages_used 0
[ "$(metric 'salvo_sequences_total{result="canceled"}')" -gt 0 ] || fail 'nothing was canceled'
await '"event":"request".*"status":499'
perl -ne 'exit 1 unless /^\{"time":"[^"]+","event":"\w+"(,"\w+":("([^"\\]|\\.)*"|[-0-9.]+))*\}$/' "$log" || fail "not JSON: $(cat "$log")"

# a server that is killed while it answers; the next takes its port
port=${url##*:}
curl -sN -H 'Content-Type: application/json' -d "$endless" "$url/v1/completions" >"$tmp/part2" &
filled "$tmp/part2"
kill -9 "$server"
wait "$server" 2>/dev/null
serve -b 4 -p "$port"
get /health
equal "$status" 200
stop
equal "$?" 0

# TLS
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$tmp/key.pem" -out "$tmp/cert.pem" -days 2 \
    -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 >/dev/null 2>&1 || fail openssl
serve -b 2 --tls-cert "$tmp/cert.pem" --tls-key "$tmp/key.pem" --api-key secret
holds "$url" https://
post /v1/completions '{"prompt":"def add(a, b):","max_tokens":8,"temperature":0}' --cacert "$tmp/cert.pem" -H 'Authorization: Bearer secret'
equal "$status" 200
post /v1/completions '{"prompt":"def add(a, b):","max_tokens":8,"temperature":0}' --cacert "$tmp/cert.pem"
equal "$status" 401
holds "$(curl -s -m 20 --cacert "$tmp/cert.pem" -X BREW "$url/health")" '{"error":{"message":'
curl -sN --cacert "$tmp/cert.pem" -H 'Authorization: Bearer secret' -d "$endless" "$url/v1/completions" >"$tmp/part3" &
client=$!
filled "$tmp/part3"
kill "$client"
becomes salvo_running_sequences 0 --cacert "$tmp/cert.pem" -H 'Authorization: Bearer secret'
# A new certificate counts for new connections, a key that does not fit it for none, until it does.
cp "$tmp/cert.pem" "$tmp/old.pem"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$tmp/key2.pem" -out "$tmp/cert2.pem" -days 2 \
    -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 >/dev/null 2>&1 || fail openssl
shown() { # CERT: whether the server is known by it
    curl -s -m 20 -o /dev/null --cacert "$1" "$url/health"
}
shown "$tmp/cert2.pem" && fail 'a certificate that is not there yet'
mv "$tmp/cert2.pem" "$tmp/cert.pem"
await 'certificate kept'
shown "$tmp/old.pem" || fail 'the old certificate is gone too early'
mv "$tmp/key2.pem" "$tmp/key.pem"
await 'certificate read again'
shown "$tmp/cert.pem" || fail 'the new certificate is not shown'
shown "$tmp/old.pem" && fail 'the old certificate is still shown'
stop
equal "$?" 0
"$salvo" serve -m "$demo/target" --tls-cert "$tmp/cert.pem" --tls-key "$tmp/cert.pem" 2>"$tmp/err"
equal "$?" 1
holds "$(cat "$tmp/err")" cert.pem
# there is no prompt for a passphrase, now or when a certificate is renewed
openssl pkey -aes128 -passout pass:secret -in "$tmp/key.pem" -out "$tmp/locked.pem" 2>/dev/null || fail openssl
timeout 20 "$salvo" serve -m "$demo/target" --tls-cert "$tmp/cert.pem" --tls-key "$tmp/locked.pem" 2>"$tmp/err" </dev/null
equal "$?" 1
equal "$(cat "$tmp/err")" "salvo: $tmp/locked.pem: has a passphrase, which is not supported"

# a Unix socket, and its file after a kill
start_unix() {
    "$salvo" serve -m "$demo/target" --unix "$tmp/sock" 2>"$tmp/unix.log" &
    server=$!
    servers+=("$server")
    for _ in $(seq 600); do
        [ "$(curl -s --unix-socket "$tmp/sock" http://x/health)" = '{"status":"ok"}' ] && return
        sleep 0.1
    done
    fail "no answer on the socket: $(cat "$tmp/unix.log")"
}
start_unix
"$salvo" serve -m "$demo/target" --unix "$tmp/sock" 2>"$tmp/err"
equal "$?" 1
holds "$(cat "$tmp/err")" 'another server'
kill -9 "$server"
wait "$server" 2>/dev/null
start_unix
stop
equal "$?" 0
[ -e "$tmp/sock" ] && fail 'the socket file is left'

# A signal ends a server whose model is still loaded: here it measures steps of 512 sequences, which takes seconds. A busy
# machine may stop either for as long, and one try of ten has to do.
for try in $(seq 10); do
    "$salvo" serve -m "$demo/target" -d "$demo/draft" -b 512 -c 256 --unix "$tmp/slow.sock" 2>"$tmp/slow.log" &
    server=$!
    servers+=("$server")
    for _ in $(seq 600); do
        [ "$(curl -s --unix-socket "$tmp/slow.sock" -o /dev/null -w '%{http_code}' http://x/health)" = 503 ] && break
        grep -q ' ready ' "$tmp/slow.log" && break
        sleep 0.1
    done
    begun=$(date +%s%N)
    stop
    equal "$?" 0
    took=$((($(date +%s%N) - begun) / 1000000))
    [ -e "$tmp/slow.sock" ] && fail 'the socket file is left'
    holds "$(cat "$tmp/slow.log")" stopped
    grep -q ' ready ' "$tmp/slow.log" || [ $took -ge 2000 ] || break
done
grep -q ' ready ' "$tmp/slow.log" && fail 'the model was there already'
[ $took -lt 2000 ] || fail 'it waited for the model'

# What does not open says so at once, in one line, and nothing listens before.
refused() {
    local model=$1 draft=$2
    timeout 20 "$salvo" serve -m "$model" ${draft:+-d "$draft"} -p 0 2>"$tmp/err" </dev/null
    equal "$?" 1
    equal "$(wc -l <"$tmp/err")" 1
    grep -q listening "$tmp/err" && fail "listening: $(cat "$tmp/err")"
}
refused /nonexistent ''
holds "$(cat "$tmp/err")" 'salvo: /nonexistent/config.json: cannot open'
refused "$demo/target" /nonexistent
holds "$(cat "$tmp/err")" '/nonexistent/config.json: cannot open'
mkdir "$tmp/half"
ln -s "$demo/target/config.json" "$tmp/half"
refused "$tmp/half" ''
holds "$(cat "$tmp/err")" "$tmp/half: no tokenizer.json"
ln -s "$demo/target/tokenizer.json" "$tmp/half"
refused "$tmp/half" ''
holds "$(cat "$tmp/err")" "$tmp/half"
head -c 1000000 "$demo/target/model.safetensors" >"$tmp/half/model.safetensors"
refused "$tmp/half" ''
holds "$(cat "$tmp/err")" 'truncated?'
refused "$demo/target" "$tiny/llama_draft_random_b4"
holds "$(cat "$tmp/err")" 'draft '
# What is found later is said once too, in the log.
mkdir "$tmp/broken"
ln -s "$demo"/target/{config.json,model.safetensors} "$tmp/broken"
echo '{}' >"$tmp/broken/tokenizer.json"
timeout 20 "$salvo" serve -m "$tmp/broken" -p 0 2>"$tmp/err" </dev/null
equal "$?" 1
equal "$(grep -c tokenizer.json "$tmp/err")" 1
holds "$(cat "$tmp/err")" ' error message='
finish
