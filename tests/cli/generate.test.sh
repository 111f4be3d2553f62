#!/bin/bash
# generate.test.sh - JSON lines in and out: every line answered, in order, the same in any batch and with a draft.
# timeout: 180
. tests/cli/lib.sh

# What must not depend on batch, draft or the machine's pace.
answers() {
    sed -E 's/, "accept_lengths".*//' "$1"
}

# gen CODE ARG...: in.jsonl to out.jsonl
gen() {
    local code=$1
    shift
    run "$code" generate -m "$target" --in "$tmp/in.jsonl" --out "$tmp/out.jsonl" "$@"
}

# ---- good and bad lines

{
    printf '{"id":"a","prompt":"Hello","max_tokens":5}\r\n'
    printf ' \t\n'
    printf '{"id":2,"prompt_token_ids":[5,6,7],"max_tokens":4,"ignore_eos":true}\n'
    printf '{"id":3,"prompt":"x","max_tokens":\n'
    printf '{"id":4,"prompt":"x","colour":1}\n'
    printf '{"id":5,"prompt":"x","temperature":"hot"}\n'
    printf '{"id":6,"prompt_token_ids":[1,99999]}\n'
    printf 'nonsense\n'
    printf '{"id":7,"prompt":"bad \xff byte"}\n'
    printf '{"id":8,"prompt":""}\n'
    printf '{"id":9,"prompt":"x","top_logprobs":3}\n'
    printf '{"id":11,"prompt":"x","top_p":0}\n'
    printf '{"id":10,"prompt":"x","logit_bias":{"5":1,"05":2}}\n'
    printf '{"id":"\\u00e9\\"","prompt":"last","max_tokens":3}'
} >"$tmp/in.jsonl"
gen 1 -q
equal "$(wc -l <"$tmp/out.jsonl")" 13
err_says "10 of 13 lines"
line() {
    sed -n "$1p" "$tmp/out.jsonl"
}
has() {
    [[ $(line "$1") == *"$2"* ]] || fail "output line $1 has no '$2': $(line "$1")"
}
has 1 '{"id": "a", "text": "'
has 1 '"finish_reason": "'
has 1 '"accept_lengths": [1'
has 1 '"prompt_tokens": '
for field in queue_ms prefill_ms decode_ms tokens_per_second; do
    has 1 "\"$field\": "
done
has 2 '{"id": 2, '
has 2 '"finish_reason": "length"'
has 2 '"accept_lengths": [1, 1, 1]'
has 3 '{"line": 4, "error": "JSON, byte '
has 4 '"line": 5, "id": 4, "error": "field '"'colour'"
has 5 "field 'temperature'"
has 6 "field 'prompt_token_ids[1]'"
has 7 '{"line": 8, "error": "JSON, byte'
has 8 'not valid UTF-8'
has 9 '{"line": 10, "id": 8, "error": "the prompt is empty"}'
has 10 "field 'top_logprobs' needs"
has 11 "field 'top_p': 0 would leave no token"
has 12 "'05' is no token id"
has 13 '{"id": "é\"", "text": "'

# ---- limits

{
    printf '{"id":1,"prompt":"'
    head -c 17000000 /dev/zero | tr '\0' x
    printf '"}\n{"id":2,"prompt":"y","max_tokens":2}\n'
} >"$tmp/in.jsonl"
gen 1 -q
has 1 '{"line": 1, "error": "the line is longer than 16777216 bytes"}'
has 2 '{"id": 2'
{
    printf '{"id":1,"prompt_token_ids":[3'
    for _ in $(seq 9000); do printf ',3'; done
    printf ']}\n'
} >"$tmp/in.jsonl"
gen 1 -q
has 1 'the context of'
: >"$tmp/in.jsonl"
gen 0
equal "$(wc -c <"$tmp/out.jsonl")" 0

# ---- batch equals single, draft equals plain, any widths and pages

for i in $(seq 40); do
    case $((i % 4)) in
    0) printf '{"id":%d,"prompt":"Number %d is","max_tokens":%d}\n' "$i" "$i" $((i + 20)) ;;
    1) printf '{"id":%d,"prompt_token_ids":[%d,7,%d],"max_tokens":30}\n' "$i" $((i + 3)) $((i * 5)) ;;
    2) printf '{"id":%d,"prompt":"aa bb %d","max_tokens":25,"temperature":1,"seed":%d,"top_k":50}\n' "$i" "$i" "$i" ;;
    3) printf '{"id":%d,"prompt":"stop %d","max_tokens":40,"stop":["e","~~"],"ignore_eos":true}\n' "$i" "$i" ;;
    esac
done >"$tmp/in.jsonl"
gen 0 -q --batch 1
answers "$tmp/out.jsonl" >"$tmp/want"
equal "$(wc -l <"$tmp/want")" 40
while read -r arguments; do
    # shellcheck disable=SC2086
    gen 0 -q $arguments
    answers "$tmp/out.jsonl" | cmp -s - "$tmp/want" || fail "answers differ with: $arguments"
done <<END
--batch 7
--batch 64
--batch 1 -d $draft
--batch 16 -d $draft
--batch 5 -d $draft --width 3 --page-size 1 --chunk 4
--batch 3 -d $draft --width 1 --page-size 64 --threads 1
--batch 8 -d $tiny/pair_draft_full_b16
END

# ---- side by side, as many as --batch says: what all took together against the time that passed

for i in $(seq 80); do
    printf '{"id":%d,"prompt":"Number %d is","max_tokens":200,"ignore_eos":true}\n' "$i" "$i"
done >"$tmp/many.jsonl"
# at_once ARG...: how many were under way at a time, in the mean; by what answers took, not counting their waiting.
at_once() {
    run 0 generate -m "$target" --in "$tmp/many.jsonl" --out "$tmp/out.jsonl" "$@"
    perl -ne '
        BEGIN { ($wall) = shift =~ / tokens in ([\d.]+) s/ or die "no time\n"; }
        /"prefill_ms": ([\d.]+), "decode_ms": ([\d.]+)/ or die; $sum += $1 + $2;
        END { printf "%d\n", 100 * $sum / 1000 / ($wall + 0.01); }' "$err" "$tmp/out.jsonl"
}
# Where a busy machine stops it counts as well, and one try of ten has to do.
for try in $(seq 10); do
    n=$(at_once --batch 1)
    [ "$n" -le 101 ] || fail "--batch 1: $n % of the time"
    six=$(at_once --batch 6)
    [ "$six" -le 601 ] || fail "--batch 6: $six % of the time"
    n=$(at_once)
    # Eight begin at once; the ninth waits until one of them is done.
    who=$(perl -ne '
        ($queue, $decode) = /"queue_ms": ([\d.]+).*"decode_ms": ([\d.]+)/ or die;
        $first //= $decode;
        print "line $.: waits $queue ms, an answer takes $first\n" if $. <= 9 && ($. == 9) != ($queue > $first / 2);' \
        "$tmp/out.jsonl")
    [ "$six" -ge 300 ] && [ "$n" -ge 400 ] && [ -z "$who" ] && break
done
[ "$six" -ge 300 ] || fail "--batch 6: $six % of the time"
[ "$n" -ge 400 ] || fail "--batch 8, the default: $n % of the time"
equal "$who" ''

# ---- accept lengths add up to the tokens after the first

gen 0 -q -d "$draft" -w 8
perl -ne '
    my ($ids) = /"token_ids": \[([^\]]*)\]/; my ($lens) = /"accept_lengths": \[([^\]]*)\]/;
    my $n = () = $ids =~ /\d+/g; my $sum = 0; $sum += $_ for $lens =~ /\d+/g;
    exit 1 if $n != $sum + 1;' "$tmp/out.jsonl" || fail "accept lengths do not add up"
grep -q '"accept_lengths": \[[^]]*[2-8]' "$tmp/out.jsonl" || fail "no draft was ever accepted"

# ---- defaults from the command line, several stop strings

printf '{"id":1,"prompt":"Hello"}\n' >"$tmp/in.jsonl"
gen 0 -q -n 9 --ignore-eos
equal "$(grep -o '"token_ids": \[[^]]*' "$tmp/out.jsonl" | tr -cd , | wc -c)" 8

# ---- standard input and output; an answer comes before the next line is written

coproc "$salvo" generate -m "$target" -d "$draft" --in - --out - -n 4 -q
for i in 1 2 3; do
    printf '{"id":"q%d","prompt":"Hello"}\n' "$i" >&"${COPROC[1]}"
    if ! read -r -t 30 answer <&"${COPROC[0]}"; then
        fail "no answer to line $i of a pipe that waits for it"
        break
    fi
    [[ $answer == "{\"id\": \"q$i\""* ]] || fail "wrong answer: $answer"
done
pid=$COPROC_PID
eval "exec ${COPROC[1]}>&-"
wait "$pid" || fail "exit code $? at the end of the pipe"

# ---- what answers must be

{
    printf '{"id":1,"prompt":"Hello"}\n'
    printf '{"id":2,"prompt":"Hello","choice":["only this"]}\n'
    printf '{"id":3,"prompt":"Hello","regex":"[0-9]{3}-[0-9]{2}"}\n'
    printf '{"id":4,"prompt":"Hello","json_schema":{"const":{"a":[1,null]}}}\n'
    printf '{"id":5,"prompt":"Hello","regex":"(a"}\n'
} >"$tmp/in.jsonl"
printf 'root ::= "x"+ "y"' >"$tmp/xy.gbnf"
gen 1 --grammar "$tmp/xy.gbnf" -n 20 -q
[[ $(line 1) =~ '"text": "x'x*y?'"' ]] || fail "no x: $(line 1)"
[[ $(line 2) == *'"text": "only this"'*'"finish_reason": "stop"'* ]] || fail "a choice: $(line 2)"
[[ $(line 3) =~ '"text": "'[0-9]{3}-[0-9]{2}'"' ]] || fail "a pattern: $(line 3)"
[[ $(line 4) == *'{\"a\":'*null* ]] || fail "a schema: $(line 4)"
[[ $(line 5) == *"field 'regex': byte 0"* ]] || fail "an error: $(line 5)"
run 0 run -m "$target" -p Hello --choice '["one"]' -q
equal "$out" one
equal "$("$salvo" run -m "$target" -p Hello --json-schema - -q <<<'{"enum": [17]}')" 17
run 1 run -m "$target" -p Hello --regex 'a{3,1}'
err_says "option --regex: byte"
run 1 run -m "$target" -p Hello --grammar "$tmp/nothing"
err_says "option --grammar: $tmp/nothing"
run 2 run -m "$target" -p Hello --json --regex a
err_says "--json and --regex exclude each other"

# ---- files that cannot be

printf '{"id":1,"prompt":"Hello","max_tokens":2}\n' >"$tmp/in.jsonl"
run 1 generate -m "$target" --in "$tmp/in.jsonl" --out "$tmp/in.jsonl"
err_says "same file"
ln -s in.jsonl "$tmp/alias.jsonl"
run 1 generate -m "$target" --in "$tmp/in.jsonl" --out "$tmp/alias.jsonl"
err_says "same file"
cp "$tmp/in.jsonl" "$tmp/before"
"$salvo" generate -m "$target" --in - --out "$tmp/in.jsonl" <"$tmp/in.jsonl" 2>"$tmp/err" && fail "the same file by redirection"
grep -q 'same file' "$tmp/err" || fail "stdin as output: $(cat "$tmp/err")"
# Answers behind the prompts are no prompts.
timeout 20 "$salvo" generate -m "$target" --in "$tmp/in.jsonl" --out - >>"$tmp/in.jsonl" 2>"$tmp/err"
equal $? 1
grep -q 'standard output: input and output are the same file' "$tmp/err" || fail "stdout as input: $(cat "$tmp/err")"
cmp -s "$tmp/before" "$tmp/in.jsonl" || fail "the input has changed"
run 1 generate -m "$target" --in "$tmp/in.jsonl" --out "$tmp/no/such/dir"
err_says "$tmp/no/such/dir"
run 1 generate -m "$target" --in "$tmp/nothing" --out "$tmp/out.jsonl"
err_says "$tmp/nothing"
echo precious >"$tmp/keep"
run 1 generate -m /nonexistent --in "$tmp/in.jsonl" --out "$tmp/keep"
equal "$(cat "$tmp/keep")" precious
if [ -w /dev/full ]; then
    run 1 generate -m "$target" --in "$tmp/in.jsonl" --out /dev/full
    err_says "/dev/full"
fi

# ---- input that breaks off: what came before is answered, and the reason is said

perl -e '
    use Socket;
    socketpair my $theirs, my $ours, AF_UNIX, SOCK_STREAM, 0 or die;
    syswrite $ours, "x"; # left unread, which makes the end a broken connection
    syswrite $theirs, join "", map { "{\"id\":$_,\"prompt\":\"Hello $_\",\"max_tokens\":3}\n" } 1 .. 3;
    close $theirs;
    open STDIN, "<&", $ours or die;
    exec @ARGV or die;' "$salvo" generate -m "$target" --in - --out "$tmp/out.jsonl" -q 2>"$tmp/err"
equal $? 1
equal "$(cat "$tmp/err")" 'salvo: standard input: line 4: Connection reset by peer'
equal "$(grep -c '"finish_reason": "length"' "$tmp/out.jsonl")" 3

# ---- standard descriptors that are closed are given to no file

"$salvo" generate -m "$target" --in - --out "$tmp/out.jsonl" <"$tmp/in.jsonl" 2>&-
equal $? 0
equal "$(grep -vc '^{"id": 1, .*}$' "$tmp/out.jsonl")" 0
code=0
"$salvo" info "$target" >&- 2>"$tmp/err" || code=$?
equal "$code" 1
grep -q 'standard output: cannot be written' "$tmp/err" || fail "a closed stdout: $(cat "$tmp/err")"
code=0
"$salvo" run -m "$target" <&- >"$tmp/out" 2>"$tmp/err" || code=$?
equal "$code" 1
grep -q 'standard input: Bad file descriptor' "$tmp/err" || fail "a closed stdin: $(cat "$tmp/err")"

# ---- plain lines of progress when there is no terminal

run 0 generate -m "$target" --in "$tmp/in.jsonl" --out "$tmp/out.jsonl"
err_says "1 answers"
[[ $err != *$'\r'* ]] || fail "a progress bar without a terminal"
finish
