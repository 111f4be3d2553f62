#!/bin/bash
# special.test.sh - pipes, devices, sockets and directories in place of a model's files are refused at once, with the
# name; a file that is something else is not quoted; what the user names may be a pipe.
# timeout: 180
. tests/cli/lib.sh
demo=$PWD/models/demo

names='config.json tokenizer.json tokenizer_config.json generation_config.json chat_template.jinja model.safetensors
model.safetensors.index.json'
# put NAME COMMAND...: a model directory in which the command makes this file; sets $dir.
put() {
    local name=$1
    shift
    dir=$tmp/model
    rm -rf "$dir"
    cp -r "$demo/target" "$dir"
    rm -f "$dir/$name"
    [[ $name != *index* ]] || rm "$dir/model.safetensors"
    "$@" "$dir/$name"
}
# refused WORDS: info, generate and check say them, soon.
refused() {
    local command
    for command in "info $dir" "generate -m $dir --in /dev/null --out $tmp/out -q" "check -m $dir"; do
        timeout 20 "$salvo" $command >"$tmp/said" 2>&1 </dev/null
        code=$?
        [ "$code" = 1 ] || fail "salvo $command: exit code $code" # 124: it waits
        grep -qF -- "$dir/$name: $1" "$tmp/said" || fail "salvo $command does not say '$1': $(cat "$tmp/said")"
    done
}
printf 'rootsecret:$6$hash:1:2\nsecond:*:1\n' >"$tmp/shadow"
for name in $names; do
    put "$name" mkfifo
    refused 'cannot read: not a regular file but a pipe'
    put "$name" ln -s /dev/zero
    refused 'cannot read: not a regular file but a device'
    put "$name" mkdir
    refused 'cannot read: Is a directory'
    put "$name" ln -s "$tmp/shadow"
    for command in "info $dir" "generate -m $dir --in /dev/null --out $tmp/out -q"; do
        timeout 20 "$salvo" $command >"$tmp/said" 2>&1 </dev/null
        ! grep -qE 'rootsec|hash|8242543289567244146' "$tmp/said" || fail "$name is quoted: $(cat "$tmp/said")"
    done
done

# What the user names may be a pipe.
equal "$(printf Hello | "$salvo" run -m "$target" -n 5 -q -f /dev/stdin | wc -c)" "$("$salvo" run -m "$target" -n 5 -q -p Hello | wc -c)"
run 0 run -m "$target" -n 5 -q -f <(printf Hello)
printf '{"id":1,"prompt":"Hello","max_tokens":3}\n' >"$tmp/in"
"$salvo" generate -m "$target" --in /dev/stdin --out /dev/stdout -q <"$tmp/in" | grep -q '"id": 1' || fail 'generate --in /dev/stdin'
cat "$tmp/in" | "$salvo" generate -m "$target" --in /dev/stdin --out /dev/stdout -q | grep -q '"id": 1' || fail 'a pipe'
run 0 run -m "$target" -n 20 -q -p Hello --json-schema <(printf '{"enum":[1,2]}')
finish
