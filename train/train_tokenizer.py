"""Train the demo tokenizer: byte-level BPE in the layout of the Qwen family.

Owns: models/demo/target/{tokenizer.json,tokenizer_config.json}: vocabulary, added tokens, chat template.
Run by hand: train_tokenizer.py --work WORK --out DIR     (needs the `tokenizers` package; about a minute)
"""
import argparse
import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
# The split expression that Qwen2 and Qwen3 tokenizers publish.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def read_texts(path, key, limit, rng):
    with open(path, encoding="utf-8") as f:
        texts = [json.loads(line)[key] for line in f]
    rng.shuffle(texts)
    out, n = [], 0
    for t in texts:
        if n > limit:
            break
        out.append(t)
        n += len(t)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--work", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--vocab", type=int, default=6144, help="total, added tokens included")
    p.add_argument("--code-chars", type=float, default=24e6)
    p.add_argument("--maths-repeat", type=int, default=3)
    args = p.parse_args()
    rng = random.Random(1)
    texts = read_texts(f"{args.work}/code.jsonl", "text", args.code_chars, rng)
    maths = read_texts(f"{args.work}/maths.jsonl", "text", 1e9, rng)
    for s in SPECIALS:
        maths = [m.replace(s, "") for m in maths]
    texts += maths * args.maths_repeat

    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=args.vocab - len(SPECIALS), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(texts, trainer)
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    assert tok.get_vocab_size() == args.vocab, tok.get_vocab_size()

    os.makedirs(args.out, exist_ok=True)
    tok.save(f"{args.out}/tokenizer.json")
    added = {str(tok.token_to_id(s)): {"content": s, "lstrip": False, "normalized": False, "rstrip": False,
                                       "single_word": False, "special": True} for s in SPECIALS}
    config = {"add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added,
              "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "bos_token": None,
              "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>",
              "errors": "replace", "mask_token": "<|mask|>", "model_max_length": 2048, "pad_token": "<|endoftext|>",
              "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}
    with open(f"{args.out}/tokenizer_config.json", "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2, ensure_ascii=False)
        f.write("\n")
    text = "def f(x):\n    return x + 1\n"
    print({s: tok.token_to_id(s) for s in SPECIALS}, tok.encode(text).tokens)


if __name__ == "__main__":
    main()
