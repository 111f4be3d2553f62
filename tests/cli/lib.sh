# lib.sh - what the scripts here share: a scratch directory, the tiny pair, comparisons that say what they saw.
#
# Sourced by tests/cli/*.test.sh. The program is $SALVO. A script ends with `finish`.
# shellcheck shell=bash disable=SC2034
set -u

salvo=${SALVO:-build/salvo}
if [ ! -x "$salvo" ]; then
    echo "$salvo is not built"
    exit 1
fi
salvo=$(realpath "$salvo")
salvo_bench=$(realpath "${SALVO_BENCH:-build/salvo-bench}")
tiny=$PWD/tests/golden/tiny
target=$tiny/pair_target
draft=$tiny/pair_draft_sliding_b8
no_tokenizer=$tiny/qwen3_f32
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n_failed=0

# fail TEXT...: counts, names the caller's line, goes on.
fail() {
    echo "line ${BASH_LINENO[${#BASH_LINENO[@]} - 2]}: $*"
    n_failed=$((n_failed + 1))
}

# run CODE ARG...: runs salvo, which must end with CODE; $out and $err hold what it printed. run_bench: salvo-bench.
run() {
    run_program "$salvo" "$@"
}
run_bench() {
    run_program "$salvo_bench" "$@"
}
run_program() {
    local program=$1 want=$2 code=0
    shift 2
    "$program" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
    out=$(tr -d '\0' <"$tmp/out")
    err=$(cat "$tmp/err")
    [ "$code" = "$want" ] || fail "${program##*/} $*: exit code $code, not $want: $err"
}

# says TEXT in: $err or $out must hold it.
err_says() {
    [[ $err == *"$1"* ]] || fail "stderr does not say '$1': $err"
}
out_says() {
    [[ $out == *"$1"* ]] || fail "stdout does not say '$1': $out"
}
equal() {
    [ "$1" = "$2" ] || fail "'$1' is not '$2'"
}

# broken_model DIR NEW: a copy of the model whose last norm is not a number: its logits are all NaN, which is a device error.
broken_model() {
    cp -r "$1" "$2"
    perl -e '
        for my $path (glob "$ARGV[0]/*.safetensors") {
            open my $f, "+<:raw", $path or die;
            read $f, my $n, 8;
            $n = unpack "Q<", $n;
            read $f, my $header, $n;
            next unless $header =~ /"model\.norm\.weight":\{[^}]*"data_offsets":\[(\d+), ?(\d+)\]/;
            seek $f, 8 + $n + $1, 0;
            print $f "\xff" x ($2 - $1);
            exit 0;
        }
        die "no norm\n";' "$2" || fail 'no broken model'
}

finish() {
    [ "$n_failed" = 0 ] || exit 1
    exit 0
}
