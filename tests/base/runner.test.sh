#!/bin/bash
# runner.test.sh - the runner tells passed, failed, crashed, hanging and skipped tests apart, stops what a test
# leaves behind, filters, and runs each case whole in one of two builds.
set -u

runner=$PWD/${RUNNER:-build/runner}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
mkdir -p tests/x

# Programs with tests of their own; the runner asks them with --list.
cat >tests/x/prog <<'END'
#!/bin/bash
case ${1-} in
--list) printf '%s\n' good bad crash skip cmocka_skip ;;
good) echo 'silent when good' ;;
bad) echo 'the reason' && exit 3 ;;
crash) kill -SEGV $$ ;;
skip) echo 'no device' && exit 77 ;;
cmocka_skip) echo '[  SKIPPED ] cmocka_skip' ;;
esac
END
printf '#!/bin/bash\nexit 1\n' >tests/x/unlistable
printf '# timeout: 1\nsleep 1000 & echo $! >child; wait\n' >tests/x/hang.test.sh
printf 'sleep 1000 & echo $! >orphan\n' >tests/x/orphan.test.sh
printf '# timeout: 2\ntrap "" TERM INT; while :; do :; done\n' >tests/x/stubborn.test.sh
printf 'yes 0123456789 | head -c 1000000; exit 1\n' >tests/x/talker.test.sh
chmod +x tests/x/prog tests/x/unlistable

fail() {
    echo "$1"
    cat out
    exit 1
}
# run LAST_LINE EXIT_CODE ARGUMENT...
run() {
    local last=$1 code=$2
    shift 2
    "$runner" "$@" >out 2>&1
    [ $? = "$code" ] || fail "$*: exit code is not $code"
    [ "$(tail -n 1 out)" = "$last" ] || fail "$*: last line is not '$last'"
}
# The process is no more, or at most waits for somebody to notice its end.
gone() {
    for _ in $(seq 300); do
        case $(cut -d' ' -f3 "/proc/$(cat "$1")/stat" 2>/dev/null) in '' | Z | X) return ;; esac
        sleep 0.1
    done
    fail "the process in $1 still runs"
}

run '1 passed, 0 failed' 0 -k good tests/x/prog
! grep -q 'silent when good' out || fail 'output of a passed test was shown'
run '1 passed, 2 failed, 2 skipped' 1 tests/x/prog
grep -q 'prog/bad: exit code 3' out || fail 'no reason'
grep -q 'the reason' out || fail 'output of a failed test was not shown'
grep -q 'prog/crash: killed by signal 11' out || fail 'no signal'
# Behind all tests, where the end of a long log shows it.
tail -n 5 out | grep -A 1 '^FAILED x/prog/bad: exit code 3$' | grep -q '^the reason$' ||
    fail 'a failure was not repeated'
run '0 passed, 1 failed' 1 tests/x/unlistable
run '0 passed, 1 failed' 1 tests/x/no_such_program
run '0 passed, 0 failed' 1 -k nothing tests/x/prog # running no test is no success
run '0 passed, 2 failed' 1 -j 2 tests/x/hang.test.sh tests/x/stubborn.test.sh
grep -q 'hang.test.sh: no end after 1 s' out || fail 'no time limit'
gone child
run '1 passed, 0 failed' 0 tests/x/orphan.test.sh
gone orphan
run '0 passed, 1 failed' 1 tests/x/talker.test.sh
[ "$(wc -c <out)" -lt 300000 ] || fail 'output is not bounded'

# A declared case runs in part from the program, and whole from the release build, which runs no other.
mkdir -p release/tests/x
cat >tests/x/both <<'END'
#!/bin/bash
case ${1-} in
--list) printf '%s\n' short long ;;
short) [ -z "${SALVO_TEST_BRIEF-}" ] ;;
long) [ "${SALVO_TEST_BRIEF-}" = 1 ] ;;
*) exit 2 ;;
esac
END
cat >release/tests/x/both <<'END'
#!/bin/bash
case ${1-} in
--list) printf '%s\n' short long $(cat more 2>/dev/null) ;;
long) [ -z "${SALVO_TEST_BRIEF-}" ] ;;
*) exit 2 ;;
esac
END
chmod +x tests/x/both release/tests/x/both
printf '/*\n * release: long\n */\n' >tests/x/both.c
run '3 passed, 0 failed' 0 -r release tests/x/both
grep -qx '2 cases: 1 whole as given, 1 in part and whole in the release build' out || fail 'no count of cases'
grep -q 'x/both/long (in part)$' out && grep -q 'x/both/long (release)$' out || fail 'no names of parts'
run '1 passed, 1 failed' 1 tests/x/both # without -r: nothing in part
sed -i 's/release: long/release: all/' tests/x/both.c
run '2 passed, 2 failed' 1 -r release tests/x/both # all: short, too, which here has no part and no release build
# A name that is no case's, a case that only the release build has, and a program that is missing there.
printf '/*\n * release: long\n * release: lost\n */\n' >tests/x/both.c
run '3 passed, 1 failed' 1 -r release tests/x/both
grep -q 'x/both/lost (release): exit code 2' out || fail 'a name that is no case is taken'
printf '/*\n * release: long\n */\n' >tests/x/both.c
echo new >more
run '3 passed, 1 failed' 1 -r release tests/x/both
grep -q 'x/both/new: exit code 2' out || fail 'a case of one build only is not seen'
rm more release/tests/x/both
run '2 passed, 1 failed' 1 -r release tests/x/both

"$runner" --list tests/x/prog tests/x/hang.test.sh >out
grep -qx 'x/prog/good (60 s)' out && grep -qx 'x/hang.test.sh (1 s)' out || fail '--list'
"$runner" >out 2>&1
[ $? = 2 ] || fail 'usage'
