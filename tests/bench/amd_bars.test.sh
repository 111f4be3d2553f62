#!/bin/bash
# amd_bars.test.sh - bench/amd_bars.sh where nothing can be measured: the floors and the published figures are printed, what
# is missing is said, and it fails; and how it reads a measurement, by a program that writes one.
set -u
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
n_failed=0
has() { grep -qE "$1" "$out/text" || { echo "no line like: $1"; n_failed=1; }; }

SALVO_BENCH=${SALVO_BENCH:-build/salvo-bench}
! OUT=$out bench/amd_bars.sh "$SALVO_BENCH" >"$out/text" 2>&1 || { echo 'measured without a card'; n_failed=1; }
has '^MI300X .*one row  2\.86 ms,  350 tok/s;.*: 148$'
has '^MI355X .*64 sequences: plain   3\.70 ms, .*16: 14\.31 ms$'
has '^ +4 +749 +1327$'
has '^ +64 +6034 +4268$'
has '^ +256 +10771 +4216$'
has '^amd_bars: nothing measured: .*hip'

cat >"$out/fake" <<'END'
#!/bin/bash
while [ $# -gt 0 ]; do [ "$1" = --out ] && to=$2; shift; done
{
    echo 'date,device,mode,sequences,tok_s_median'
    echo '2026,"hip MI355X (gfx950), portable kernels",plain,4,800.00'
    echo '2026,"hip MI355X (gfx950), portable kernels",width 16,64,4000.00'
} >"$to"
END
chmod +x "$out/fake"
OUT=$out bench/amd_bars.sh "$out/fake" >"$out/text" 2>&1 || { echo 'a measurement was refused'; n_failed=1; }
has '4 plain +published +749 measured +800 met$'
has '64 width 16 +published +4268 measured +4000 MISSED$'
has '256 auto +published +4216 not measured$'
[ $n_failed = 0 ] || cat "$out/text"
exit $n_failed
