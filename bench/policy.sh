#!/bin/sh
# policy.sh - the width policy against every fixed width: all profiles, 1 to 128 sequences, the shipped pair's shapes.
#
# Usage: bench/policy.sh [SALVO [OUT.csv]]. Then the shipped pair with real acceptance. Modes take turns, so a busy
# machine blurs the ratios but does not tilt them; auto_to_best below 0.97 is listed at the end.
# RUN="nice -n -5" or the like stands before every call: one level and profile each, some ten seconds long.
set -eu
salvo=${1:-build/salvo}
out=${2:-policy.csv}
pair="-m models/demo/target -d models/demo/draft"
first=yes
for n in ${LEVELS:-1 2 4 8 16 32 64 128}; do
    for p in ${PROFILES:-never 1.5 2.5 4 6.4 qwen3-8b always}; do
    # shellcheck disable=SC2086
    ${RUN:-} "$salvo" bench $pair --mode plain,dflash,auto --widths ${WIDTHS:-2,4,8,16} --accept-profile $p --concurrency $n \
        --context "${CONTEXT:-128}" --steps $((n < 8 ? 48 : n < 32 ? 24 : 8)) --repeat "${REPEAT:-21}" --seconds "${SECONDS_EACH:-0.7}" -q -o csv >"$out.part"
    if [ $first = yes ]; then cat "$out.part"; else tail -n +2 "$out.part"; fi >>"$out.new"
    first=no
    done
done
rm -f "$out.part"
mv "$out.new" "$out"
# shellcheck disable=SC2086
"$salvo" bench $pair --prompts models/demo/prompts.jsonl --concurrency 1,2,4,8,16,32,64 --repeat "${REPEAT_REAL:-5}" -q -o csv >"${out%.csv}-real.csv"
perl -ne 'next unless /,auto,(\d+),/; my $n = $1; my @f = /("[^"]*"|[^,]*)(?:,|$)/g;
    print "$n sequences, $f[12]: $f[24]\n" if $f[24] ne "" && $f[24] < 0.97' "$out"
