#!/bin/bash
# terminal.test.sh - what happens on a terminal: progress bar, colours, Ctrl-C, the conversation.
# timeout: 120
. tests/cli/lib.sh

if ! command -v script >/dev/null; then
    echo "script(1) is not there"
    exit 77
fi
if ! script -qec true /dev/null </dev/null >/dev/null 2>&1; then
    echo "no terminal can be opened here (is /dev/pts mounted?)"
    exit 77
fi
export HOME=$tmp TERM=xterm LC_ALL=C.UTF-8
unset NO_COLOR

# on_tty COMMAND: runs it on a terminal of its own; $screen is what that got.
on_tty() {
    screen=$(script -qec "$1" /dev/null </dev/null 2>&1)
}
shows() {
    [[ $screen == *"$1"* ]] || fail "the terminal does not show '$1': $(cat -v <<<"$screen")"
}

# ---- progress bar

for i in $(seq 30); do
    printf '{"id":%d,"prompt":"Number %d","max_tokens":60,"ignore_eos":true}\n' "$i" "$i"
done >"$tmp/in.jsonl"
on_tty "$salvo generate -m $target --in $tmp/in.jsonl --out $tmp/out.jsonl"
shows $'\r'
shows '['
shows '30 answers'
shows 'tok/s'
equal "$(wc -l <"$tmp/out.jsonl")" 30

# ---- drafted tokens have a colour; without colours the text is the same

run 0 run -m "$target" -d "$draft" -p Hello -n 40 -q
plain=$out
run 0 run -m "$target" -d "$draft" -p Hello -n 40 -q -w 8 --show-draft
equal "$out" "$plain"
run 0 run -m "$target" -d "$draft" -p Hello -n 40 -q -w 8 --show-draft --colour always
out_says $'\033[32m'
out_says $'\033[1;33m'
equal "$(sed 's/\x1b\[[0-9;]*m//g' <<<"$out")" "$plain"
run 0 run -m "$target" -d "$draft" -p Hello -n 40 -q --no-draft
equal "$out" "$plain"
on_tty "$salvo run -m $target -d $draft -p Hello -n 40 -q -w 8 --show-draft"
shows $'\033[32m'
NO_COLOR=1 on_tty "$salvo run -m $target -d $draft -p Hello -n 40 -q -w 8 --show-draft"
[[ $screen != *$'\033'* ]] || fail "NO_COLOR is not heeded"

# ---- the prompt from a file and from standard input

printf Hello >"$tmp/prompt"
run 0 run -m "$target" -f "$tmp/prompt" -n 40 -q
equal "$out" "$plain"
equal "$(printf Hello | "$salvo" run -m "$target" -n 40 -q | tr -d '\0')" "$plain"
run 0 run -m "$target" -d "$draft" -p Hello -n 40
err_says "accept length"
err_says "tok/s"
err_says "GB/s"

# ---- Ctrl-C and being told to end cancel the answers; what there is of them is written

for i in $(seq 10000); do # far more than is done before the signal comes
    printf '{"id":%d,"prompt":"Number %d","max_tokens":200,"ignore_eos":true}\n' "$i" "$i"
done >"$tmp/in.jsonl"
for signal in INT TERM HUP; do
    rm "$tmp/out.jsonl"
    # HUP as usual, also where this test was started with nohup.
    env --default-signal=HUP "$salvo" generate -m "$target" --in "$tmp/in.jsonl" --out "$tmp/out.jsonl" --batch 4 2>"$tmp/err" &
    pid=$!
    while kill -0 $pid 2>/dev/null && [ ! -s "$tmp/out.jsonl" ]; do sleep 0.01; done
    # bash starts background commands with SIGINT ignored; salvo takes it back by its own handler.
    kill -$signal $pid
    code=0
    wait $pid || code=$?
    equal $code 1
    grep -q 'canceled at line' "$tmp/err" || fail "$signal: a canceled job does not say so: $(cat "$tmp/err")"
    [ "$(wc -l <"$tmp/out.jsonl")" -lt 10000 ] || fail "$signal: nothing was canceled"
    tail -n 1 "$tmp/out.jsonl" | grep -q '"finish_reason": "canceled"' ||
        fail "$signal: the last answer is not a canceled one"
done

# Whoever started it with nohup wants it to go on.
head -n 40 "$tmp/in.jsonl" >"$tmp/few.jsonl"
rm "$tmp/out.jsonl"
(trap '' HUP && exec "$salvo" generate -m "$target" --in "$tmp/few.jsonl" --out "$tmp/out.jsonl" --batch 4 -q) &
pid=$!
while kill -0 $pid 2>/dev/null && [ ! -s "$tmp/out.jsonl" ]; do sleep 0.01; done
kill -HUP $pid
code=0
wait $pid || code=$?
equal $code 0
equal "$(grep -c '"finish_reason": "length"' "$tmp/out.jsonl")" 40

# ---- a conversation goes on after a message that is refused; it ends with the device, also when more was typed

# talk CODE LINES ARG...: a conversation in which these lines are typed, and then Ctrl-D.
talk() {
    local want=$1 lines=$2 code=0
    shift 2
    screen=$(printf "$lines" | script -qec "$salvo run $*; exit \$?" /dev/null 2>&1) || code=$?
    [ "$code" = "$want" ] || fail "salvo run $*: exit code $code, not $want: $(cat -v <<<"$screen")"
}
long=$(printf '%0500d' 0)
talk 0 "$long\\nHello\\n" -m "$target" -n 5 -c 64
shows 'leaves no room for an answer'
shows '5 tokens in'
broken_model "$target" "$tmp/broken"
talk 1 'Hello\n/stats\n/nope\n' -m "$tmp/broken" -n 5
shows 'are all NaN'
[[ $screen != *'is not known'* && $screen != *'accept length'* ]] || fail "it goes on: $(cat -v <<<"$screen")"

# ---- history: replaced as a whole or not at all, in place of a link's file, never of what cannot be read

mkdir "$tmp/files"
rm -f "$tmp/.salvo_history"
: >"$tmp/files/history"
ln -s files/history "$tmp/.salvo_history"
talk 0 'first words\n/quit\n' -m "$target" -n 2
grep -q 'first' "$tmp/files/history" || fail "history: $(cat "$tmp/files/history")"
equal "$(stat -c %a "$tmp/files/history")" 600
[ -L "$tmp/.salvo_history" ] || fail 'the link is gone'
cp "$tmp/files/history" "$tmp/before"
(trap '' XFSZ && ulimit -f 0 && talk 0 'lost words\n/quit\n' -m "$target" -n 2)
cmp "$tmp/before" "$tmp/files/history" || fail 'a full disk took the history'
echo 'other words' >"$tmp/files/history"
talk 0 'third words\n/quit\n' -m "$target" -n 2
equal "$(cat "$tmp/files/history")" 'other words'
equal "$(ls "$tmp/files")" history
rm "$tmp/.salvo_history"

# ---- letters beyond ASCII where no locale is set; a line that is continued by nothing is no message

LC_ALL=C talk 0 'gr\303\266\303\237er\n/quit\n' -m "$target" -n 2
grep -qE 'größer|gr\\303\\266\\303\\237er' "$tmp/.salvo_history" || fail "history: $(cat "$tmp/.salvo_history")"
rm "$tmp/.salvo_history"
talk 0 '\\\n' -m "$target" -n 2
[[ $screen != *'tokens in'* ]] || fail "nothing is answered: $(cat -v <<<"$screen")"

# ---- a paste of several lines is one message, however its bytes arrive; the terminal is asked to mark pastes only at the prompt

on=$'\033[?2004h' off=$'\033[?2004l' paste=$'\033[200~' pasted=$'\033[201~'
# shown TEXT [N]: waits until the terminal has got this text N times.
shown() {
    for _ in $(seq 1200); do
        [ "$(grep -aoF -- "$1" "$tmp/typescript" | wc -l)" -ge "${2:-1}" ] && return
        sleep 0.05
    done
    echo "'$1' is not shown: $(cat -v "$tmp/typescript")" >>"$tmp/missing"
}
# typed CODE FUNCTION COMMAND: the function writes what is typed while the command runs on a terminal, and then Ctrl-D.
# Ctrl-C goes to the shell between as well, and dash ends by it where bash waits for the command.
typed() {
    local code=0
    rm -f "$tmp/.salvo_history" "$tmp/missing"
    : >"$tmp/typescript"
    "$2" | SHELL=/bin/bash timeout 180 script -qefc "$3; exit \$?" "$tmp/typescript" >/dev/null 2>&1 || code=$?
    screen=$(tr -d '\0' <"$tmp/typescript")
    [ "$code" = "$1" ] || fail "$2: exit code $code, not $1: $(cat -v <<<"$screen")"
    [ ! -e "$tmp/missing" ] || fail "$2: $(cat "$tmp/missing")"
}
# history: what was sent, a line end after each message; libedit writes white space as \ooo.
history() {
    sed 1d "$tmp/.salvo_history" | perl -pe 's/\\([0-7]{3})/chr oct $1/ge'
}
talk_tiny="$salvo run -m $target -n 5"
marks() {
    grep -aoE $'\033\\[\\?2004[hl]' <<<"$screen" | tr -d '\033[?\n'
}

in_parts() {
    shown "$on"
    for part in '\033[20' '0~first li' 'ne\rsecond gr\303' '\266\n\tthird\n\033[20' '1~ and more'; do
        printf "$part"
        sleep 0.1
    done
    shown 'and more'
    printf '\r'
    shown 'tokens in'
    shown "$on" 2
}
# tried FUNCTION: whether all that it asks for is so. Silence ends a paste, and what sends one may be late on a busy machine:
# one try of three has to do.
tried() {
    local try
    for try in 1 2 3; do
        (n_failed=0; "$1"; exit "$n_failed") && return
    done
    fail "$1"
}
paste_in_parts() {
    typed 0 in_parts "$talk_tiny"
    printf 'first line\nsecond grö\n\tthird\n and more' >"$tmp/prompt"
    equal "$(history)" "$(cat "$tmp/prompt")"
    equal "$(grep -c 'tokens in' <<<"$screen")" 1
    run 0 run -m "$target" -n 5 -f "$tmp/prompt"
    shows "$(grep -o 'prompt of [0-9]*' <<<"$err")"
    equal "$(marks)" 2004h2004l2004h2004l
}
tried paste_in_parts

# Far larger than a read and than the terminal's own buffer; the refusal names the same count as for a file.
for i in $(seq 300); do printf '%d: the quick brown fox jumps over the lazy dog and then some more\n' "$i"; done >"$tmp/prompt"
large() {
    shown "$on"
    printf '%s' "$paste"
    cat "$tmp/prompt"
    printf '%s\r' "$pasted"
    shown 'leaves no room'
    shown "$on" 2
}
large_paste() {
    typed 0 large "$talk_tiny"
    equal "$(history)" "$(cat "$tmp/prompt")"
    equal "$(grep -c 'leaves no room' <<<"$screen")" 1
    printf '%s' "$(cat "$tmp/prompt")" >"$tmp/stripped"
    run 1 run -m "$target" -n 5 -f "$tmp/stripped"
    shows "$(grep -o 'prompt has [0-9]* tokens' <<<"$err")"
}
tried large_paste

# Without an end mark the paste is over when nothing more comes, and can be edited and sent.
no_end() {
    shown "$on"
    printf '%sone\ntwo\n' "$paste"
    shown two
    printf 'thr%see\033[De\033[C\b\r' "$pasted" # the mark that is late, and a correction
    shown 'tokens in'
    shown "$on" 2
}
typed 0 no_end "$talk_tiny"
equal "$(history)" $'one\ntwo\nthree'

# Ctrl-C drops an open paste.
dropped() {
    shown "$on"
    printf '%slost\n' "$paste"
    sleep 0.2
    printf '\003'
    shown "$on" 2
    printf 'kept\r'
    shown 'tokens in'
    shown "$on" 3
}
typed 0 dropped "$talk_tiny"
equal "$(history)" kept

# A program that begins with a slash is no command; a paste of one line is.
slash() {
    shown "$on"
    printf '%s// one\nint two;%s\r' "$paste" "$pasted"
    shown 'tokens in'
    shown "$on" 2
    printf '%s/quit%s\r' "$paste" "$pasted"
}
typed 0 slash "$talk_tiny"
equal "$(grep -c 'tokens in' <<<"$screen")" 1
[[ $screen != *'is not known'* ]] || fail "a paste is taken for a command: $(cat -v <<<"$screen")"

# A signal leaves no terminal that marks pastes. Neither a dumb terminal nor a pipe is asked to.
told() {
    shown "$on"
    kill -TERM "$(cat "$tmp/pid")"
    shown "$off"
}
typed 1 told "echo \$\$ >$tmp/pid; exec $talk_tiny"
equal "$(marks)" 2004h2004l
quit() {
    shown "$on"
    printf '\034'
    shown "$off"
}
(n_failed=0; ulimit -c 0; typed 131 quit "exec $talk_tiny"; equal "$(marks)" 2004h2004l; exit "$n_failed") || fail 'Ctrl-\'
stopped() {
    shown "$on"
    printf '\032'
    shown '<stopped>'
    shown "$on" 2
    printf '%sone\ntwo%s\r' "$paste" "$pasted"
    shown 'tokens in'
    shown "$on" 3
}
typed 0 stopped "bash --norc -mc '$talk_tiny; printf \"<stopped>\"; fg'"
equal "$(history)" $'one\ntwo'
[[ $screen == *"$off"*'<stopped>'*"$on"* ]] || fail "pastes are marked for another program: $(cat -v <<<"$screen")"
plainly() {
    shown '>'
    printf '/quit\r'
}
typed 0 plainly "TERM=dumb $talk_tiny"
equal "$(marks)" ''
at_once() {
    printf '/quit\r'
}
typed 0 at_once "$talk_tiny | cat"
shows '>'
equal "$(marks)" ''
rm -f "$tmp/.salvo_history"

# ---- a conversation: history, commands, Ctrl-C inside an answer goes on with the next line

if command -v tmux >/dev/null; then
    tmux="tmux -u -L salvo-test-$$ -f /dev/null"
    screen() {
        $tmux capture-pane -p
    }
    wait_for() {
        for _ in $(seq 1200); do
            screen | grep -qF -- "$1" && return
            sleep 0.05
        done
        fail "the conversation does not show '$1': $(screen)"
    }
    # Nothing is typed before the next line is asked for: what comes earlier is thrown away.
    wait_for_prompt() {
        for _ in $(seq 1200); do
            [ "$(screen | sed '/^ *$/d' | tail -n 1)" = '>' ] && return
            sleep 0.05
        done
        fail "the conversation asks for no line: $(screen)"
    }
    $tmux new-session -d -x 100 -y 50 "HOME=$tmp LC_ALL=C.UTF-8 $salvo run -m $target -d $draft -w 8 -n 20; echo ended \$?; sleep 1000"
    wait_for '>'
    $tmux send-keys 'Hello' Enter
    wait_for 'accept length'
    $tmux send-keys '/stats' Enter
    wait_for '   8   '
    $tmux send-keys 'half a line'
    wait_for '> half a line'
    $tmux send-keys C-c
    wait_for_prompt
    $tmux send-keys 'größer' Enter
    wait_for '> größer'
    $tmux send-keys C-c
    wait_for_prompt
    $tmux send-keys 'begun'
    wait_for '> begun'
    $tmux send-keys C-c # not the second one in a row: a line was begun
    wait_for_prompt
    $tmux send-keys '/nope' Enter
    wait_for '/nope is not known'
    $tmux send-keys '/quit' Enter
    wait_for 'ended 0'
    $tmux kill-server
    tmux="tmux -u -L salvo-told-$$ -f /dev/null" # the first server may still be on its way out
    $tmux new-session -d -x 100 -y 50 "HOME=$tmp LC_ALL=C.UTF-8 $salvo run -m $target -n 20; echo ended \$?; sleep 1000"
    wait_for '>'
    pid=$($tmux list-panes -F '#{pane_pid}')
    kill -TERM "$(cat "/proc/$pid/task/$pid/children")"
    wait_for 'ended 1'
    $tmux kill-server
    # The second Ctrl-C in a row ends.
    tmux="tmux -u -L salvo-twice-$$ -f /dev/null"
    $tmux new-session -d -x 100 -y 50 "HOME=$tmp LC_ALL=C.UTF-8 $salvo run -m $target -n 20; echo ended \$?; sleep 1000"
    wait_for_prompt
    $tmux send-keys C-c
    for _ in $(seq 1200); do
        [ "$(screen | grep -c '^>')" -ge 2 ] && break
        sleep 0.05
    done
    $tmux send-keys C-c
    wait_for 'ended 1'
    $tmux kill-server
    grep -q 'größer' "$tmp/.salvo_history" || fail "history: $(cat "$tmp/.salvo_history")"
    grep -q Hello "$tmp/.salvo_history" || fail "no history was kept"
fi
finish
