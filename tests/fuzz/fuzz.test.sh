#!/bin/bash
# fuzz.test.sh - tools/fuzz.sh fails when a target does and prints the input, starts from the inputs that were kept and
# keeps new ones. timeout: 120
set -u

probe='int LLVMFuzzerTestOneInput(const unsigned char *p, unsigned long n)'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$PWD
cd "$work" || exit 1
mkdir -p build/fuzz/tests/fuzz tests/fuzz/corpus/one

fail() {
    echo "$1"
    cat out
    exit 1
}
# target NAME BODY
target() {
    printf '#include <stdlib.h>\n#include <string.h>\n%s { %s; return 0; }\n' "$probe" "$2" >"$1.c"
    clang -w -g -fsanitize=fuzzer,address -o "build/fuzz/tests/fuzz/fuzz_$1" "$1.c"
}
# fuzz ARG...: the targets are built already.
fuzz() {
    MAKE=true "$root/tools/fuzz.sh" "$@" >out 2>&1
}

if ! target one 'if (n > 3 && p[0] == 115 && p[1] == 101) p[2] == 101 && p[3] == 101 ? abort() : 0' 2>out; then
    [ "${SALVO_CI:-0}" = 1 ] && fail 'clang with its fuzzer library is missing'
    echo 'skipped: clang with its fuzzer library is missing'
    exit 77
fi
target two 'if (n > 1 && p[0] == 107 && p[1] == 49) n--' || exit 1

printf 'seed' >tests/fuzz/corpus/one/seed
fuzz build 5 2 fuzz_two.c fuzz_one.c && fail 'a finding does not fail the run'
grep -q 'fuzz one: FAILED' out || fail 'the failed target is not named'
grep -q '^fuzz two: 5 s, ' out || fail 'the other target did not run'
sed -n '/^base64 -d/,/^END/p' out | sed '1d;$d' | base64 -d | gunzip >input || fail 'the input is not printed'
[ "$(head -c 4 input)" = seee ] || fail 'the printed input is another one'
build/fuzz/tests/fuzz/fuzz_one input >/dev/null 2>&1 && fail 'the printed input does not fail'

# What is kept is small and the next run, elsewhere, begins with it.
for try in 1 2 3 4 5 6 7 8 9 10; do # a busy machine may take the time of one
    fuzz --keep build 2 1 fuzz_two.c || fail 'keeping fails'
    tar -xzOf tests/fuzz/corpus/two.tar.gz | grep -aq k1 && break
done
tar -xzOf tests/fuzz/corpus/two.tar.gz | grep -aq k1 || fail 'what covers the branch is not kept'
rm -r build/fuzz/corpus
fuzz build 1 1 fuzz_two.c || fail 'a run with kept inputs fails'
grep -aqr k1 build/fuzz/corpus/two || fail 'kept inputs are not read'
