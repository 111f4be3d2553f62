#!/bin/bash
# fuzz.sh - builds the fuzz targets with clang's libFuzzer and runs each for a while, some side by side.
#
# Called by `make fuzz` and CI: fuzz.sh [--keep] BUILD_DIR SECONDS JOBS SOURCE... A target starts from its seeds,
# tests/fuzz/corpus/<name>/, and from the inputs kept of earlier runs, tests/fuzz/corpus/<name>.tar.gz; new inputs go to
# BUILD_DIR/fuzz/corpus/<name>/. --keep: the smallest set of all these with the same coverage becomes the archive.
# FUZZ_SEED fixes the order of mutations (0, the default: another one each time). A finding is left as BUILD_DIR/fuzz/<name>-crash-* (-timeout-*, -oom-*, -leak-*) and printed in base64.
set -euo pipefail

longest_kept=4096 # bytes of a kept input
corpus=tests/fuzz/corpus

# Prints what a target found: the end of its log and the inputs.
report() {
    local name=$1 log=$build/fuzz/$1.log input
    echo "fuzz $name: FAILED"
    tail -n 60 "$log"
    sed -n 's/.*Test unit written to //p' "$log" | while read -r input; do
        echo "fuzz $name: $input, $(stat -c %s "$input") bytes, gzip and base64; again with:"
        echo "base64 -d <<'END' | gunzip >input; make test T=fuzz_$name; $build/asan/tests/fuzz/fuzz_$name input"
        gzip -9nc "$input" | base64 -w 120
        echo END
    done
}

# One target, as xargs calls it.
if [ "${1:-}" = --one ]; then
    build=$2
    seconds=$3
    name=$4
    found=$build/fuzz/corpus/$name
    log=$build/fuzz/$name.log
    mkdir -p "$found"
    dirs=("$found")
    [ -d "$corpus/$name" ] && dirs+=("$corpus/$name")
    [ -f "$corpus/$name.tar.gz" ] && tar -xzf "$corpus/$name.tar.gz" -C "$found"
    if "$build/fuzz/tests/fuzz/fuzz_$name" -seed="${FUZZ_SEED:-0}" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 \
        -artifact_prefix="$build/fuzz/$name-" -print_final_stats=1 "${dirs[@]}" >"$log" 2>&1; then
        printf 'fuzz %s: %s s, %s runs, %s new inputs\n' "$name" "$seconds" \
            "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" "$(sed -n 's/^stat::new_units_added: *//p' "$log")"
        exit 0
    fi
    report "$name"
    exit 1
fi

keep=
if [ "$1" = --keep ]; then
    keep=1
    shift
fi
build=$1
seconds=$2
jobs=$3
shift 3

probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'int LLVMFuzzerTestOneInput(const unsigned char *p, unsigned long n) { return p && n > 1 ? 0 : 0; }' >"$probe/probe.c"
if ! clang -fsanitize=fuzzer,address -o "$probe/probe" "$probe/probe.c" 2>/dev/null; then
    echo 'make fuzz needs clang with its fuzzer library: apt-get install clang libclang-rt-dev' >&2
    exit 1
fi

"${MAKE:-make}" -s --no-print-directory FLAVOUR=fuzz B="$build" fuzz-programs
names=()
for source in "$@"; do
    name=$(basename "$source" .c)
    names+=("${name#fuzz_}")
done
failed=0
printf '%s\n' "${names[@]}" | xargs -P "$jobs" -n 1 "$0" --one "$build" "$seconds" || failed=1
[ -n "$keep" ] && [ $failed = 0 ] || exit $failed

for name in "${names[@]}"; do
    rm -rf "$probe/kept"
    mkdir "$probe/kept"
    "$build/fuzz/tests/fuzz/fuzz_$name" -merge=1 -max_len=$longest_kept "$probe/kept" "$build/fuzz/corpus/$name" \
        >"$build/fuzz/$name.merge.log" 2>&1
    tar -C "$probe/kept" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - . | gzip -9n >"$corpus/$name.tar.gz"
    echo "fuzz $name: $(find "$probe/kept" -type f | wc -l) inputs kept, $(stat -c %s "$corpus/$name.tar.gz") bytes"
done
