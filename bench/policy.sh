#!/bin/sh
# policy.sh - the width policy against every fixed width: all profiles, 1 to 128 sequences, the shipped pair's shapes.
#
# Usage: bench/policy.sh [SALVO [OUT.csv]]. Then the shipped pair with real acceptance. Modes take turns in samples of some
# 50 ms, and widths far behind are left out after a round or two, so that a busy machine blurs the ratios but does not tilt
# them; auto_to_best (median over turns) below 0.97 is listed at the end. WIDTHS=2,3,...,16 tries all.
# RUN="taskset -c 0,1" or the like stands before every call: one level and profile each, some ten seconds long.
set -eu
salvo=${1:-build/salvo}
out=${2:-policy.csv}
pair="-m models/demo/target -d models/demo/draft ${OPTIONS:-}"
first=yes
steps() { case $1 in 1) echo 32 ;; 2) echo 20 ;; 4) echo 12 ;; 8) echo 8 ;; 16) echo 5 ;; 32) echo 3 ;; *) echo 2 ;; esac; }
for n in ${LEVELS:-1 2 4 8 16 32 64 128}; do
    for p in ${PROFILES:-never 1.5 2.5 4 6.4 qwen3-8b always}; do
    # shellcheck disable=SC2086
    ${RUN:-} "$salvo" bench $pair --mode plain,dflash,auto --widths ${WIDTHS:-2,4,8,16} --accept-profile $p --concurrency $n \
        --context "${CONTEXT:-128}" --steps "$(steps $n)" --repeat "${REPEAT:-60}" --seconds "${SECONDS_EACH:-1}" --keep-within 0.88 -q -o csv >"$out.part"
    if [ $first = yes ]; then cat "$out.part"; else tail -n +2 "$out.part"; fi >>"$out.new"
    first=no
    done
done
rm -f "$out.part"
mv "$out.new" "$out"
# The 24 prompts several times over: there must be more of each kind than sequences.
for i in 1 2 3 4 5 6; do cat models/demo/prompts.jsonl; done >"$out.prompts"
# shellcheck disable=SC2086
${RUN:-} "$salvo" bench $pair --one-engine --prompts "$out.prompts" --concurrency 1,2,4,8,16,32,64 --repeat "${REPEAT_REAL:-16}" -q -o csv >"${out%.csv}-real.csv"
rm -f "$out.prompts"
perl -ne 's/\r?\n//; my @f = /("[^"]*"|[^,]*)(?:,|$)/g; if ($f[0] eq "date") { @h = @f; next }
    my %v; @v{@h} = @f; next unless $v{mode} eq "auto" and $v{auto_to_best} ne "" and $v{auto_to_best} < 0.97;
    print "$v{sequences} sequences, $v{profile}: $v{auto_to_best} ($v{repeats} turns)\n"' "$out"
