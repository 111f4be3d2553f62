#!/bin/bash
# hostile.test.sh - a server whose event loop is stuck, whose chat template is hostile, or whose model files change:
# signals end it, /health answers, and nothing wrong is served.
# timeout: 240
. tests/serve/lib.sh
need curl mkfifo

# ended SECONDS: sets $code to the exit code of the server, "alive" when it has not ended by then.
ended() {
    code=alive
    for _ in $(seq $(($1 * 20))); do
        kill -0 "$server" 2>/dev/null || { wait "$server"; code=$?; return; }
        sleep 0.05
    done
}

# The log goes to a pipe that nothing reads any more: the loop's thread waits in write. One signal is not seen, the
# second ends the process.
for signal in TERM INT; do
    mkfifo "$tmp/log.$signal"
    sleep 1000 <>"$tmp/log.$signal" &
    holder=$!
    (
        exec 2<>"$tmp/log.$signal"
        exec "$salvo" serve -m "$demo/target" --unix "$tmp/sock.$signal" -b 1 --log-every 0 >/dev/null
    ) &
    server=$!
    servers+=("$server" "$holder")
    for i in $(seq 300); do
        [ "$(curl -s -m 1 --unix-socket "$tmp/sock.$signal" http://x/health)" = '{"status":"ok"}' ] && break
        sleep 0.1
    done
    for try in 1 2; do # one of them has no answer in time; twice, as the machine may have stopped the server once
        curl -s --fail-early -m 5 -o /dev/null --unix-socket "$tmp/sock.$signal" "http://x/nowhere/$(printf '%0100d' 0)[1-2000]"
        equal $? 28
    done
    kill -$signal "$server"
    sleep 0.5
    kill -0 "$server" 2>/dev/null || fail "$signal: the first one ended it"
    kill -$signal "$server"
    want=143
    [ $signal = TERM ] || want=130
    ended 30
    equal "$code" $want
    kill $holder
done

# A template that takes all the steps it may have is refused, and meanwhile /health is answered: nothing long is
# rendered on the loop's thread. One that takes more than that thread's share, but not too many, answers as usual.
cat >"$tmp/burns.jinja" <<'END'
{% set s = 'a' * 65535 %}{% set t = 'a' * 100 + 'b' + 'a' * 100 %}
{% for i in range(99999) %}{% for j in range(99999) %}{{ s.find(t) }}{% endfor %}{% endfor %}
END
cat >"$tmp/slow.jinja" <<'END'
{% for i in range(99999) %}{% for j in range(9) %}{% endfor %}{% endfor %}{{ messages[0].content }}
END
chat='{"messages":[{"role":"user","content":"def add(a, b):"}],"max_tokens":4,"temperature":0}'
serve -b 2 --chat-template "$tmp/burns.jinja"
# Meanwhile: on a busy machine curl may take longer to start than a template to its end, and one try of ten has to do.
# Rendered on the loop's thread it would be in time in none.
for path in /v1/chat/completions /tokenize; do
    said='{"messages":[{"role":"user","content":"Hi"}]}'
    for try in $(seq 10); do
        rm -f "$tmp/done"
        (curl -s -m 60 -H 'Content-Type: application/json' -d "$said" "$url$path" >"$tmp/burnt" && touch "$tmp/done") &
        chat_pid=$!
        sleep 0.1
        for i in 1 2 3; do
            get /health
        done
        [ -e "$tmp/done" ] && meanwhile='' || meanwhile=1
        wait $chat_pid
        holds "$(cat "$tmp/burnt")" 'the template takes more than 20000000 steps'
        [ -z "$meanwhile" ] || break
    done
    [ -n "$meanwhile" ] || fail "$path: /health waited for a template"
done
stop
serve -b 2 --chat-template "$tmp/slow.jinja"
post /v1/chat/completions "$chat"
equal "$status" 200
equal "$(field prompt_tokens "$body")" 6
post /tokenize '{"messages":[{"role":"user","content":"def add(a, b):"}]}'
equal "$(field count "$body")" 6
stop

# A model file that changes under a server. Overwritten in place, its answers would be garbage: /health and requests say
# so with the file's name. Replaced by another file, the old one stays in use. Truncated, the process ends and says why.
# model: a copy of the demo pair in $dir, and a server of it with these options.
model() {
    dir=$tmp/model.${#servers[@]}
    mkdir "$dir"
    cp -r "$demo/target" "$demo/draft" "$dir"
    weights=$dir/target/model.safetensors
    serve -m "$dir/target" -d "$dir/draft" -b 2 "$@"
}
# healthy WORDS: waits for /health to say them.
healthy() {
    local i
    for i in $(seq 600); do
        get /health
        [[ $body == *"$1"* ]] && return
        sleep 0.1
    done
    fail "/health does not say '$1': $body"
}
overwrite() {
    dd if=/dev/zero of="$1" bs=1M seek=1 count=17 conv=notrunc status=none
}
ask='{"prompt":"def add(a, b):","max_tokens":24,"temperature":0}'
for file in target/model.safetensors draft/model.safetensors; do
    model
    post /v1/completions "$ask"
    equal "$status" 200
    want=$(field text "$body")
    # under way when it happens: 64 long answers, two at a time
    curl -sN -m 60 -H 'Content-Type: application/json' "$url/v1/completions" \
        -d '{"prompt":"def","n":64,"max_tokens":1900,"ignore_eos":true,"stream":true}' >"$tmp/stream" &
    stream=$!
    filled "$tmp/stream"
    overwrite "$dir/$file"
    healthy '"status":"failed"'
    holds "$body" "$dir/$file"
    equal "$status" 503
    post /v1/completions "$ask"
    equal "$status" 503
    holds "$body" "$dir/$file"
    wait $stream
    grep -qF "the model file $dir/$file was changed" "$tmp/stream" || fail "no error ends the stream: $(tail -n 3 "$tmp/stream")"
    sleep 1.5
    equal "$(grep -c ' error message=.*was changed while it was in use' "$log")" 1
    stop
    equal "$?" 1
done

model
cp "$weights" "$dir/new"
overwrite "$dir/new"
mv "$dir/new" "$weights"
await "model file replaced.* file=$weights"
post /v1/completions "$ask"
equal "$(field text "$body")" "$want"
sleep 1.5
equal "$(grep -c 'model file replaced' "$log")" 1
get /health
equal "$body" '{"status":"ok"}'
stop
equal "$?" 0

model --copy-weights
overwrite "$weights"
overwrite "$dir/draft/model.safetensors"
sleep 1.5
post /v1/completions "$ask"
equal "$(field text "$body")" "$want"
truncate -s 1000 "$weights"
get /flush_cache
post /v1/completions "$ask"
equal "$(field text "$body")" "$want"
get /health
equal "$body" '{"status":"ok"}'
stop
equal "$?" 0

# The server looks at its files once a second. Where it does between the two, it refuses the request: once more.
for try in $(seq 10); do
    model --isa plain --compress-weights off
    truncate -s 1000 "$weights"
    post /v1/completions "$ask"
    grep -q 'was changed while it was in use' "$log" || break
    stop
done
ended 10
equal "$code" 1
grep -qx "salvo: error: a model file was truncated while mapped: $weights" "$log" || fail "the log: $(tail -n 3 "$log")"
mkdir "$tmp/cut"
cp -r "$demo/target" "$tmp/cut"
mkfifo "$tmp/lines"
"$salvo" generate -m "$tmp/cut/target" --isa plain --in "$tmp/lines" --out "$tmp/answers" -q 2>"$tmp/said" &
server=$!
exec 5>"$tmp/lines"
echo '{"id":1,"prompt":"def","max_tokens":4}' >&5
filled "$tmp/answers"
truncate -s 1000 "$tmp/cut/target/model.safetensors"
echo '{"id":2,"prompt":"def","max_tokens":4}' >&5
ended 20
exec 5>&-
equal "$code" 1
grep -qF "truncated while mapped: $tmp/cut/target/model.safetensors" "$tmp/said" || fail "generate: $(cat "$tmp/said")"
finish
