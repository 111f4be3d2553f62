#!/bin/bash
# images.test.sh - `salvo run --image`: formats, several images, conversations, what is refused; the text is the server's for the
# same messages.
. tests/cli/lib.sh

command -v curl >/dev/null || { echo 'curl is not there'; exit 77; }
if ! script -qec true /dev/null </dev/null >/dev/null 2>&1; then
    echo 'no terminal can be opened here, or script(1) is not there'
    exit 77
fi
export HOME=$tmp TERM=xterm LC_ALL=C.UTF-8
images=$PWD/tests/golden/images

# Each byte and each id below 300 is a token; the template puts an image's tokens where it stands among the texts.
with_bytes() {
    cp -r "$tiny/$1" "$tmp/$1"
    perl -MJSON::PP -e '
        my ($n, %byte) = (0);
        for my $c (0 .. 255) {
            $byte{chr($c > 32 && $c < 127 || $c > 160 && $c < 173 || $c > 173 ? $c : 256 + $n++)} = $c;
        }
        my %name = (256 => "<|im_start|>", 257 => "<|im_end|>", 292 => "<|vision_start|>", 293 => "<|vision_end|>",
            295 => "<|image_pad|>");
        my @added = map { {id => $_, content => $name{$_} || "<|$_|>", special => \1, map { $_ => \0 } qw(single_word lstrip rstrip
            normalized)} } 256 .. 299;
        my $level = {type => "ByteLevel", add_prefix_space => \0, trim_offsets => \1, use_regex => \1};
        print encode_json {version => "1.0", added_tokens => \@added, pre_tokenizer => $level, decoder => $level,
            normalizer => undef, post_processor => undef, model => {type => "BPE", vocab => \%byte, merges => []}}' \
        >"$tmp/$1/tokenizer.json"
    cat >"$tmp/$1/chat_template.jinja" <<'END'
{%- for m in messages %}<|im_start|>{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}
{%- if p.type == 'image' or 'image_url' in p %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}
{%- endfor %}{% endif %}<|im_end|>{% endfor %}<|im_start|>assistant:
END
}
# ask_server TEXT...: messages of user and assistant in turn, the first with $pictures; $answer and $n_prompt.
ask_server() {
    perl -MJSON::PP -MMIME::Base64 -e '
        my ($pictures, @texts) = @ARGV;
        my @parts = map {
            open my $f, "<:raw", $_ or die $_;
            local $/;
            my $type = /(\w+)$/ ? $1 : "";
            {type => "image_url", image_url => {url => "data:image/$type;base64," . encode_base64(<$f>, "")}};
        } split / /, $pictures;
        my @messages = map { {role => $_ % 2 ? "assistant" : "user", content => $texts[$_]} } 0 .. $#texts;
        $messages[0]{content} = [@parts, {type => "text", text => $texts[0]}];
        print encode_json {messages => \@messages, max_tokens => 40, temperature => 0, structured_outputs => {regex => $ENV{form}}}' \
        "$pictures" "$@" >"$tmp/request"
    rm -f "$tmp/reply"
    curl -s -m 60 -o "$tmp/reply" -H 'Content-Type: application/json' --data-binary "@$tmp/request" "$url/v1/chat/completions"
    answer=$(perl -MJSON::PP -e 'local $/; my $r = decode_json <STDIN>; print $r->{choices}[0]{message}{content}' <"$tmp/reply") ||
        fail "the server says $(cat "$tmp/reply")"
    n_prompt=$(grep -o '"prompt_tokens":[0-9]*' "$tmp/reply" | tr -dc 0-9)
}
# same TEXT: what `run` and the server say to $pictures and a text.
same() {
    local list=()
    for p in $pictures; do list+=(--image "$p"); done
    ask_server "$1"
    run 0 run -m "$tmp/$model" "${list[@]}" -p "$1" --regex "$form"
    equal "$out" "$answer"
    err_says "prompt of $n_prompt in"
    said+=("$answer")
}

export form='[a-z ]{24}'
for model in qwen3_vl_bf16 qwen3_5_vl_bf16; do
    with_bytes "$model"
    rm -f "$tmp/log" # which the server's shell makes, maybe later than it is read here
    "$salvo" serve -m "$tmp/$model" -p 0 2>"$tmp/log" >/dev/null &
    server=$!
    for _ in $(seq 300); do
        grep -qs ' ready ' "$tmp/log" && break
        kill -0 $server 2>/dev/null || break
        sleep 0.1
    done
    url=$(grep -o 'http://[][0-9.:]*' "$tmp/log" | head -n 1)
    said=()
    pictures="$images/rgb.png" same 'What is this?'
    pictures="$images/orientation3.jpg" same 'What is this?'
    pictures="$images/lossy.webp" same 'What is this?'
    pictures="$images/grey.png $images/rgb.png $images/orientation6.jpg" same 'And these?'
    pictures="$images/rgb.png $images/grey.png $images/orientation6.jpg" same 'And these?'
    equal "$(printf '%s\n' "${said[@]}" | sort -u | wc -l)" 5
    # Later turns stand behind the image; /clear drops it, but not before it was shown.
    screen=$(printf '/clear\nWhat is this?\nAnd its colour?\n/clear\nWhat is this?\n/quit\n' | script -qec \
        "$salvo run -m $tmp/$model --image $images/lossy.webp --regex '$form'" /dev/null 2>&1 | tr -d '\r')
    pictures=$images/lossy.webp
    ask_server 'What is this?'
    first=$answer
    n_first=$n_prompt
    ask_server 'What is this?' "$first" 'And its colour?'
    second=$answer
    n_second=$n_prompt
    pictures=
    ask_server 'What is this?'
    wanted="$first|$n_first|$second|$n_second|$answer|$n_prompt|"
    equal "$(perl -ne 'print "$1|" if /([a-z ]{24})$/ || /prompt of (\d+) in/' <<<"$screen")" "$wanted"
    kill $server
    wait $server
done

# ---- what is refused names the file and the reason

vl=$tmp/qwen3_vl_bf16
# png FILE WIDTH HEIGHT
png() {
    perl -MCompress::Zlib -e '
        my ($w, $h) = @ARGV;
        print "\x89PNG\r\n\x1a\n", map { my $d = $$_[0] . $$_[1]; pack("N", length $$_[1]) . $d . pack("N", crc32($d)) }
            ["IHDR", pack("NNC5", $w, $h, 8, 0, 0, 0, 0)], ["IDAT", compress(("\0" . "\x55" x $w) x $h)], ["IEND", ""]' "$2" "$3" >"$1"
}
png "$tmp/wide.png" 900 3
png "$tmp/side.png" 40000 1
png "$tmp/many.png" 30000 3000
head -c 300 "$images/rgb.png" >"$tmp/cut.png"
: >"$tmp/empty.png"
refused() {
    run 1 run -m "$vl" -p hi --image "$images/rgb.png" --image "$1" -n 2
    err_says "$1: $2"
    equal "$out" ''
}
refused "$tmp/none.png" 'cannot open: No such file or directory'
refused "$tmp" 'cannot read: Is a directory'
refused /dev/zero 'larger than 33554432 bytes'
refused "$tmp/empty.png" 'empty, where an image was expected'
refused "$tmp/cut.png" 'PNG: byte 41: the file ends in the middle'
refused "$PWD/README.md" 'no known image'
refused "$images/still.gif" 'GIF is not supported'
refused "$images/cmyk.jpg" 'JPEG: CMYK is not supported'
refused "$tmp/side.png" 'PNG: 40000 x 1 pixels; a side may have 32768'
refused "$tmp/many.png" 'PNG: 30000 x 3000 pixels; an image may have 67108864 in all'
refused "$tmp/wide.png" 'an image of 900 x 3 pixels: one side may be at most 200 times the other'
code=0
screen=$(printf 'hi\nmore\n' | script -qec "$salvo run -m $vl --image $tmp/wide.png -n 2; exit \$?" /dev/null 2>&1) || code=$?
equal "$code $(grep -c 'at most 200 times the other' <<<"$screen")" '1 1'
run 1 run -m "$vl" -p hi --image "$images/rgb.png" -c 16
err_says 'the prompt has 29 tokens'
run 1 run -m "$target" -p hi --image "$images/rgb.png"
err_says "$target: option --image: the model has no vision tower"
cp -r "$vl" "$tmp/shown"
printf '{{ messages[0].content }}<|im_end|>' >"$tmp/shown/chat_template.jinja"
run 1 run -m "$tmp/shown" -p hi --image "$images/rgb.png"
err_says 'the prompt has 0 image tokens (295), the request 1 images'
rm "$tmp/shown/chat_template.jinja"
run 1 run -m "$tmp/shown" -p hi --image "$images/rgb.png"
err_says "$tmp/shown: option --image needs a model with a chat template"
finish
