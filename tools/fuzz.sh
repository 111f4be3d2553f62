#!/bin/bash
# fuzz.sh - builds the fuzz targets with clang's libFuzzer and runs each for a while.
#
# Called by `make fuzz`: fuzz.sh BUILD_DIR SECONDS SOURCE... New inputs go to BUILD_DIR/fuzz/corpus/<name>, the seeds of
# tests/fuzz/corpus/<name> are only read; a crashing input is left as BUILD_DIR/fuzz/<name>-crash-*.
set -euo pipefail

build=$1
seconds=$2
shift 2

probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'int LLVMFuzzerTestOneInput(const unsigned char *p, unsigned long n) { return p && n > 1 ? 0 : 0; }' >"$probe/probe.c"
if ! clang -fsanitize=fuzzer,address -o "$probe/probe" "$probe/probe.c" 2>/dev/null; then
    echo 'make fuzz needs clang with its fuzzer library: apt-get install clang libclang-rt-dev' >&2
    exit 1
fi

"${MAKE:-make}" -s --no-print-directory FLAVOUR=fuzz B="$build" fuzz-programs
failed=0
for source in "$@"; do
    name=$(basename "$source" .c)
    name=${name#fuzz_}
    found=$build/fuzz/corpus/$name
    seeds=tests/fuzz/corpus/$name
    mkdir -p "$found"
    [ -d "$seeds" ] || seeds=
    echo "fuzz $name: $seconds s"
    # shellcheck disable=SC2086 # no seeds, no argument
    if ! "$build/fuzz/tests/fuzz/fuzz_$name" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 \
        -artifact_prefix="$build/fuzz/$name-" -print_final_stats=1 "$found" $seeds >"$build/fuzz/$name.log" 2>&1; then
        tail -n 40 "$build/fuzz/$name.log"
        failed=1
    else
        grep -E 'new_units_added|number_of_executed_units' "$build/fuzz/$name.log" || true
    fi
done
exit $failed
