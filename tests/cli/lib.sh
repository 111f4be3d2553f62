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

# scripted_model DIR TEMPLATE TOKEN...: a model whose answer to each prompt that ends with the first token is the others, up to 60
# that differ; * before a token makes it special, and the last one ends the answer.
scripted_model() {
    local dir=$1 template=$2
    shift 2
    mkdir "$dir"
    printf '%s' "$template" >"$dir/chat_template.jinja"
    perl -MJSON::PP -e '
        my ($dir, @script) = @ARGV;
        my ($h, $n, %byte, @added) = (64, 0);
        for my $c (0 .. 255) {
            my $shown = $c > 32 && $c < 127 || $c > 160 && $c < 173 || $c > 173;
            $byte{chr($shown ? $c : 256 + $n++)} = $c;
        }
        for (@script) {
            my $special = s/^\*//;
            utf8::decode($_);
            push @added, {id => 256 + @added, content => $_, special => $special ? \1 : \0, map { $_ => \0 } qw(single_word lstrip
                rstrip normalized)};
        }
        sub file { open my $f, ">:raw", "$dir/$_[0]" or die; print $f $_[1] or die; close $f or die }
        my $level = {type => "ByteLevel", add_prefix_space => \0, trim_offsets => \1, use_regex => \1};
        file("tokenizer.json", encode_json {version => "1.0", added_tokens => \@added, pre_tokenizer => $level, decoder => $level,
            normalizer => undef, post_processor => undef, model => {type => "BPE", vocab => \%byte, merges => []}});
        file("config.json", encode_json {architectures => ["Qwen3ForCausalLM"], model_type => "qwen3", dtype => "float32",
            vocab_size => 256 + @added, hidden_size => $h, intermediate_size => 16, num_hidden_layers => 1, head_dim => 16,
            num_attention_heads => 1, num_key_value_heads => 1, hidden_act => "silu", max_position_embeddings => 1024,
            rms_norm_eps => 1e-6, rope_theta => 10000, tie_word_embeddings => \0, eos_token_id => 255 + @added});
        my $unit = sub { pack "f<*", map { $_ == $_[0] ? 1 : 0 } 0 .. $h - 1 };
        my ($layer, $zeros) = ("model.layers.0", "\0" x (4 * $h));
        my @tensors = (["model.embed_tokens.weight", $zeros x 256 . join "", map { $unit->($_) } 0 .. $#added],
            ["lm_head.weight", $zeros x 256 . join "", map { $unit->($_ - 1) } 0 .. $#added],
            map({ ["model.$_.weight", pack "f<*", (1) x $h] } qw(norm layers.0.input_layernorm layers.0.post_attention_layernorm)),
            map({ ["$layer.self_attn.${_}_norm.weight", pack "f<*", (1) x 16] } qw(q k)),
            map({ ["$layer.$_.weight", "\0" x (4 * 16 * $h), $_ =~ /o_|down/ ? [$h, 16] : [16, $h]] } map({ "self_attn.${_}_proj" }
                qw(q k v o)), map { "mlp.${_}_proj" } qw(gate up down)));
        my ($data, %header) = ("");
        for (@tensors) {
            my ($name, $bytes, $shape) = @$_;
            $shape ||= length $bytes > 4 * $h ? [length($bytes) / 4 / $h, $h] : [length($bytes) / 4];
            $header{$name} = {dtype => "F32", shape => $shape, data_offsets => [length $data, length($data) + length $bytes]};
            $data .= $bytes;
        }
        my $header = encode_json \%header;
        file("model.safetensors", pack("Q<", length $header) . $header . $data);' "$dir" "$@" || fail 'no scripted model'
}

finish() {
    [ "$n_failed" = 0 ] || exit 1
    exit 0
}
