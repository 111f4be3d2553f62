#!/bin/sh
# The width policies of source trees beside each other, on machines made of arithmetic
# (policy_sweep.c):
#   bench/policy_sweep.sh DIR...      this tree alone when none is given
# For each machine and length of a process: the mean over 56 cells and the worst of tokens over
# time, as a share of the best fixed width's; then the cells in which two trees differ most.
set -e
here=$(cd "$(dirname "$0")/.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
[ $# -gt 0 ] || set -- "$here"
n=0
for tree; do
    n=$((n + 1))
    profile=$tree/src/bench/profile.c
    [ -f "$profile" ] || profile=$tree/src/spec/profile.c # until November 2026
    old= # names until November 2026
    if grep -q sv_policy_rests "$tree/src/policy/policy.h"; then
        old="-Dsv_policy_backs_off=sv_policy_rests -Dsv_policy_unprofitable=sv_policy_is_far"
        old="$old -Ddisabled=gave_up -Ddeferred_us=held_us -DCONFIDENCE=share"
    fi
    ! grep -q lacks "$tree/src/policy/policy.h" || old="$old -Ddraft_kv_missing=lacks"
    # shellcheck disable=SC2086 # a list of options
    ${CC:-cc} -O2 -w -std=gnu11 $old -I"$tree/src" -I"$tree/include" -o "$out/sweep$n" \
        "$here/bench/policy_sweep.c" "$tree"/src/policy/*.c "$profile" \
        "$tree"/src/base/*.c -ljansson -lm -lpthread
    "$out/sweep$n" >"$out/$n" &
done
wait
for i in $(seq $n); do
    grep mean "$out/$i" | sed "s/^/$i: /"
done
[ $n -ne 2 ] || paste -d ' ' "$out/1" "$out/2" | awk '
    NF == 12 && $3 != "mean" { printf "%-5s %5d steps, %3d x %-6s %.4f %.4f %+.4f\n", $1, $2, $3, $4, $5, $11,
               $11 - $5 }' | sort -k9 -g | sed -n '1,12p;$p'
