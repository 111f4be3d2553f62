#!/bin/bash
# full.test.sh - a disk that is full when results are written: every command says so, and what was measured is shown.
# timeout: 180
. tests/cli/lib.sh

printf '{"id": "a", "prompt_token_ids": [3, 1, 4, 1, 5], "max_tokens": 8}\n' >"$tmp/in.jsonl"
mkdir "$tmp/there"
pair="$salvo_bench -m $target -d $draft --prompts $tmp/in.jsonl --keep-loops --repeat 1 -q"
sim="$salvo_bench -m $target -d $draft --mode plain --context 32 --steps 2 --seconds 0.01 --repeat 1 -q"
random="$salvo_bench --random-weights $no_tokenizer --verify 2 --prefill 8 --seconds 0.01 --repeat 1 -q"
file=$tmp/there/file

# full SHOWN COMMAND: no file takes a single byte. The command fails, names the file and shows SHOWN. A file system
# without room fails in the same calls; the file from before stays where results replace it as a whole.
full() {
    local shown=$1 code=0 said
    shift
    said=$(trap '' XFSZ; ulimit -f 0; "$@" 2>&1 </dev/null) || code=$?
    equal "$*: $code" "$*: 1"
    [[ $said == *"$tmp/there/"* ]] || fail "$*: says no file: $said"
    [[ $said == *"$shown"* ]] || fail "$*: shows no '$shown': $said"
}
echo before >"$file"
# shellcheck disable=SC2086
{
    full '| all ' $pair --out "$file"
    full ',all,dflash,' $pair --format csv --out "$file"
    full '"arm": "dflash"' $pair --format json --out "$file"
    full '| plain' $sim --out "$file"
    full '| attention' $sim --profile-ops "$file"
    full '| plain' $sim --profile-ops "$file"
    full '' $random --tmp "$tmp/there"
}
equal "$(cat "$file")" before
full '' "$salvo" generate -m "$target" --in "$tmp/in.jsonl" --out "$file" -q
rm -f "$file"
equal "$(ls "$tmp/there")" ''

# Standard output, and a file that takes nothing and cannot be replaced.
if [ -w /dev/full ]; then
    for words in "$pair" "$pair --format csv" "$sim" "$random" "$salvo generate -m $target --in $tmp/in.jsonl --out - -q"; do
        code=0
        # shellcheck disable=SC2086
        $words >/dev/full 2>"$tmp/err" </dev/null || code=$?
        err=$(cat "$tmp/err")
        equal "$words: $code" "$words: 1"
        err_says 'standard output'
    done
    # What cannot be shown is not computed to its end.
    code=0
    "$salvo" run -m "$target" -p Hello -n 200 --ignore-eos >/dev/full 2>"$tmp/err" </dev/null || code=$?
    equal "$code" 1
    err=$(cat "$tmp/err")
    err_says '(canceled)'
    err_says 'standard output: cannot be written'
    for words in "$pair" "$sim" "$random"; do
        # shellcheck disable=SC2086
        run_program ${words%% *} 1 ${words#* } --out /dev/full
        err_says '/dev/full'
        out_says '|'
    done
fi
finish
