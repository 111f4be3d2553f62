#!/bin/bash
# driver.test.sh - the replay driver finds what it is there to find: overruns, leaks, hidden branches, broken
# seeds; and it says which input did it. timeout: 120
set -u

build=$(dirname "${RUNNER:-build/runner}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/build" "$work/tests/fuzz/corpus/x"

# target BODY: builds a target whose function has that body.
target() {
    printf '#include "base/base.h"\n#include <stdlib.h>\n#include <string.h>\n
        int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) { %s return p && n > 1 ? 0 : 0; }\n' "$1" >"$work/x.c"
    cc -std=c11 -g -fsanitize=address,undefined -fno-sanitize-recover=all -Isrc -Itests -o "$work/build/fuzz_x" \
        "$work/x.c" tests/fuzz/driver.c "$build/asan/libtest.a" "$build/asan/libsalvo.a" -lcmocka -ljansson -lm -pthread
}
# stops TEXT BODY: the target must fail and say TEXT. The driver has a time for all inputs, which a busy machine may take
# away: one try of ten has to do.
stops() {
    local try
    target "$2" || exit 1
    rm -f "$work/build/crash-x"
    for try in 1 2 3 4 5 6 7 8 9 10; do
        "$work/build/fuzz_x" >"$work/out" 2>&1 || break
    done
    if [ "$try" = 10 ] || ! grep -q "$1" "$work/out"; then
        echo "not found: $2"
        cat "$work/out"
        exit 1
    fi
}

printf 'magic 1234 words' >"$work/tests/fuzz/corpus/x/seed"
target '' && "$work/build/fuzz_x" || exit 1
stops 'SEGV' 'if (n > 10) return ((volatile const uint8_t *)p)[n];'
[ -s "$work/build/crash-x" ] || { echo 'the input was not kept'; exit 1; }
"$work/build/fuzz_x" "$work/build/crash-x" >/dev/null 2>&1 && { echo 'the kept input does not crash'; exit 1; }
stops 'blocks leaked' 'if (n == 15) sv_alloc(3);'
stops 'kept in' 'if (n > 12 && memcmp(p, "magic -", 7) == 0) abort();'
stops 'runtime error' 'if (n > 3 && p[0] == 0xff) { int k = INT32_MAX; k += p[0]; return k; }'
head -c 300000 /dev/zero >"$work/tests/fuzz/corpus/x/huge"
stops 'larger than' ''
