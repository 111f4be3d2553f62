#!/bin/sh
# policy.sh - the width policy against every fixed width: all profiles, 1 to 128 sequences; one program, or two side by side.
#
# Usage: bench/policy.sh [OLD] [NEW]. Each is a command: 'build/salvo-bench', or 'old/salvo bench' where the benchmarks were a part
# of salvo; default: build/salvo-bench alone. Prints for every cell the speed of auto over the best of plain decoding and the fixed
# widths, in turns in one process, of both programs and their ratio; then mean and worst. All rows go to OUT (policy.csv).
# A process measures all profiles at one number of sequences; the programs take turns.
#   LIMIT=540           seconds for all of it: no process begins that would not end in time, and cells that are missing are counted
#   LEVELS='1 64 8 ...' PROFILES=never,1.5,... WIDTHS=2,4,8,16 CONTEXT=128 REPEAT=60 SECONDS_EACH=1
#   PAIR='--random-weights bench/shapes/qwen3-8b --draft-config bench/shapes/qwen3-8b-dflash'   instead of the shipped pair
#   OPTIONS='--device cuda' RUN='taskset -c 0,1'   for, and before, every call
#   REAL=1              then the shipped pair on its own prompts
# On an H200: PAIR=... CONTEXT=512 REPEAT=8 SECONDS_EACH=0.5 LIMIT=540 bench/policy.sh old/build/salvo-bench build/salvo-bench
set -eu
[ $# -gt 0 ] || set -- build/salvo-bench
out=${OUT:-policy.csv}
pair=${PAIR:--m models/demo/target -d models/demo/draft}
began=$(date +%s)
longest=0
: >"$out"
steps() { case $1 in 1) echo 32 ;; 2) echo 20 ;; 4) echo 12 ;; 8) echo 8 ;; 16) echo 5 ;; 32) echo 3 ;; *) echo 2 ;; esac; }
# Few and many first: a limit leaves out the numbers in between.
for n in ${LEVELS:-1 64 8 32 4 16 2 128}; do
    i=0
    for program; do
        i=$((i + 1))
        start=$(date +%s)
        [ $((start - began + longest)) -lt "${LIMIT:-1000000}" ] || continue
        # shellcheck disable=SC2086
        ${RUN:-} $program $pair ${OPTIONS:-} --mode plain,dflash,auto --widths "${WIDTHS:-2,4,8,16}" \
            --accept-profile "${PROFILES:-never,1.5,2.5,4,6.4,qwen3-8b,always}" --concurrency "$n" --context "${CONTEXT:-128}" \
            --steps "$(steps "$n")" --repeat "${REPEAT:-60}" --seconds "${SECONDS_EACH:-1}" --keep-within 0.88 -q -o csv |
            sed "s/^/$i,/" >>"$out"
        took=$(($(date +%s) - start))
        [ $took -le $longest ] || longest=$took
    done
done
perl -e '
    my ($programs, $file) = @ARGV;
    my (@head, %cell, @order);
    open(my $in, "<", $file) or die "$file: $!\n";
    while (<$in>) {
        s/\r?\n//;
        my @f = /("[^"]*"|[^,]*)(?:,|$)/g;
        if ($f[1] eq "date") { @head = @f; next }
        my %v;
        @v{@head} = @f;
        next unless $v{mode} eq "auto" && $v{auto_to_best} ne "";
        my $name = sprintf("%4d x %-9s", $v{sequences}, $v{profile});
        push @order, $name unless $cell{$name};
        $cell{$name}[$f[0]] = $v{auto_to_best};
    }
    my (@sum, @worst, $n);
    sub row { printf("%s", shift); printf(" %7s", defined $_ ? sprintf("%.3f", $_) : "-") for @_; print "\n" }
    print "sequences x profile", $programs == 2 ? "    old     new   ratio\n" : "  auto / best\n";
    for my $name (sort @order) {
        my @r = @{$cell{$name}}[1 .. $programs];
        my $whole = !grep { !defined } @r;
        push @r, $r[0] > 0 ? $r[1] / $r[0] : undef if $programs == 2 && $whole;
        row($name, @r);
        next unless $whole;
        $n++;
        for my $i (0 .. $#r) {
            $sum[$i] += $r[$i];
            $worst[$i] = $r[$i] if !defined $worst[$i] || $r[$i] < $worst[$i];
        }
    }
    exit 1 unless $n;
    row("mean            ", map { $_ / $n } @sum);
    row("worst           ", @worst);
    print "$n cells\n";
' $# "$out"
[ -n "${REAL:-}" ] || exit 0
# The 24 prompts several times over: there must be more of each kind than sequences.
for i in 1 2 3 4 5 6; do cat models/demo/prompts.jsonl; done >"$out.prompts"
for program; do
    # shellcheck disable=SC2086
    ${RUN:-} $program -m models/demo/target -d models/demo/draft ${OPTIONS:-} --one-engine --prompts "$out.prompts" \
        --concurrency 1,2,4,8,16,32,64 --repeat "${REPEAT_REAL:-16}" -q -o csv
done >"${out%.csv}-real.csv"
rm -f "$out.prompts"
