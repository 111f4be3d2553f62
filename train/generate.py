"""Let the target write the text that the draft is trained on.

Owns: batched decoding with CUDA graphs, the mixture of prompts and temperatures, the loop test.
Run by hand on a GPU after train_target.py: generate.py --target DIR --data tokens.npz.xz --out text.npz
Output arrays: ids (N, S) uint16, prompt_len (N), total_len (N), kind (N: 0 maths, 1 code), temperature (N).
"""
import argparse
import json
import time

import numpy as np
import torch
import torch.nn.functional as F

import model
from train_target import load_tokens


class Decoder:
    """Static-shape decoding of B rows in step: all rows are at the same position; a row still inside its prompt takes
    the prompt's token, one past it takes the sampled one."""

    def __init__(self, net, rows, length, bucket=64):
        self.net, self.rows, self.length, self.bucket = net, rows, length, bucket
        self.dev, self.dtype = net.embed_weight().device, net.embed_weight().dtype
        c = net.cfg
        self.r = c["num_attention_heads"] // c["num_key_value_heads"]
        shape = (rows, c["num_key_value_heads"], length, c["head_dim"])
        self.k = [torch.zeros(shape, device=self.dev, dtype=self.dtype) for _ in net.model.layers]
        self.v = [torch.zeros_like(x) for x in self.k]
        self.ids = torch.zeros(rows, length + 1, device=self.dev, dtype=torch.long)
        self.plen = torch.ones(rows, device=self.dev, dtype=torch.long)
        self.inv_t = torch.ones(rows, 1, device=self.dev)
        self.noisy = torch.zeros(rows, 1, device=self.dev)
        self.t = torch.zeros(1, device=self.dev, dtype=torch.long)
        self.cos, self.sin = model.rope_table(c, length + 1, self.dev)
        self.graphs = {}

    def step(self, n_keys):
        """One token for every row; keys [0, n_keys) are looked at, those after t are masked."""
        net, rows = self.net, self.rows
        cos, sin = self.cos.index_select(0, self.t)[None], self.sin.index_select(0, self.t)[None]
        x = net.model.embed_tokens(self.ids.index_select(1, self.t))
        hidden = torch.arange(n_keys, device=self.dev) > self.t
        for i, layer in enumerate(net.model.layers):
            a, at = layer.input_layernorm(x), layer.self_attn
            k, v = at.keys_values(a, cos, sin)
            self.k[i].index_copy_(2, self.t, k)
            self.v[i].index_copy_(2, self.t, v)
            q = at.queries(a, cos, sin).reshape(rows, at.nkv, self.r, at.hd)
            s = (q @ self.k[i][:, :, :n_keys].mT).float() * at.hd ** -0.5
            p = s.masked_fill(hidden, float("-inf")).softmax(-1).to(x.dtype)
            x = x + at.o_proj((p @ self.v[i][:, :, :n_keys]).reshape(rows, 1, -1))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        logits = F.linear(net.model.norm(x)[:, 0], net.head_weight()).float()
        gumbel = -torch.log(-torch.log(torch.rand_like(logits).clamp_(1e-20, 1 - 1e-7)))
        nxt = (logits * self.inv_t + gumbel * self.noisy).argmax(-1)
        after = self.t + 1
        given = self.ids.index_select(1, after)[:, 0]
        self.ids.index_copy_(1, after, torch.where(after < self.plen, given, nxt)[:, None])
        self.t += 1

    def run_step(self, t):
        n = min((t // self.bucket + 1) * self.bucket, self.length)
        if self.dev.type != "cuda":
            return self.step(n)
        if n not in self.graphs:
            keep = self.t.clone(), self.ids.clone()
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.step(n)
            torch.cuda.current_stream().wait_stream(side)
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g):
                self.step(n)
            self.graphs[n] = g
            self.t.copy_(keep[0])
            self.ids.copy_(keep[1])
        self.graphs[n].replay()

    @torch.no_grad()
    def run(self, prompts, temperature, new_tokens):
        """prompts: at most `rows` id arrays; temperature: array; -> ids (n, S) as numpy, everything generated."""
        n = len(prompts)
        lens = np.array([len(p) for p in prompts])
        steps = int(min(lens.max() + new_tokens, self.length)) - 1
        ids = np.zeros((self.rows, self.length + 1), dtype=np.int64)
        for i, p in enumerate(prompts):
            ids[i, :len(p)] = p
        plen, temp = np.ones(self.rows, dtype=np.int64), np.zeros(self.rows, dtype=np.float32)
        plen[:n], temp[:n] = lens, temperature
        self.ids.copy_(torch.from_numpy(ids))
        self.plen.copy_(torch.from_numpy(plen))
        self.inv_t.copy_(torch.from_numpy(np.where(temp > 0, 1 / np.maximum(temp, 1e-6), 1).astype(np.float32))[:, None])
        self.noisy.copy_(torch.from_numpy((temp > 0).astype(np.float32))[:, None])
        self.t.zero_()
        for t in range(steps):
            self.run_step(t)
        return self.ids[:n, :steps + 1].cpu().numpy()


def is_looping(ids):
    """True when the end of a text repeats with a period of at most 48 tokens for three periods (32 tokens at least), or
    when more than half of all its 8-token pieces occur more than once."""
    ids = np.asarray(ids)
    n = len(ids)
    for q in range(1, 49):
        m = max(3 * q, 32)
        if m + q <= n and (ids[n - m:] == ids[n - m - q:n - q]).all():
            return True
    if n < 48:
        return False
    pieces = np.lib.stride_tricks.sliding_window_view(ids, 8)
    return len(np.unique(pieces, axis=0)) < 0.5 * len(pieces)


def loop_flags(ids, plen, total, device, chunk=16384):
    """is_looping of the generated part of many padded rows at once: (N) bool, and the share of repeated 8-token pieces."""
    loops, share, w, n8 = [], [], 192, 8
    back = torch.arange(w, device=device) - w
    for i in range(0, len(ids), chunk):
        x = torch.as_tensor(np.asarray(ids[i:i + chunk]).astype(np.int64)).to(device)
        p, n = (torch.as_tensor(np.asarray(a[i:i + chunk]).astype(np.int64)).to(device)[:, None] for a in (plen, total))
        at = n + back
        tail = torch.where(at >= p, x.gather(1, at.clamp(min=0)), back)      # tokens outside the text equal nothing
        flag = torch.zeros(len(x), dtype=torch.bool, device=device)
        for q in range(1, 49):
            flag |= (tail[:, q:] == tail[:, :-q])[:, -max(3 * q, 32):].all(1)
        code = torch.zeros(len(x), x.shape[1] - n8 + 1, dtype=torch.int64, device=device)
        for j in range(n8):
            code = code * 1000003 + x[:, j:x.shape[1] - n8 + 1 + j]
        start = torch.arange(code.shape[1], device=device)
        ok = (start >= p) & (start + n8 <= n)
        code = torch.where(ok, code & (2**62 - 1), -1).sort(1).values
        new = code >= 0
        new[:, 1:] &= code[:, 1:] != code[:, :-1]
        count, distinct = ok.sum(1), new.sum(1)
        flag |= (distinct < 0.5 * count) & ((n - p)[:, 0] >= 48)
        loops.append(flag.cpu())
        share.append((1 - distinct / count.clamp(min=1)).cpu())
    return torch.cat(loops).numpy(), torch.cat(share).numpy()


def padded(made, length, fill=6140):
    """decode_all's texts as arrays: ids (N, length), prompt lengths, total lengths."""
    ids = np.full((len(made), length), fill, dtype=np.int64)
    for row, (x, _) in zip(ids, made):
        row[:len(x)] = x
    return ids, np.array([p for _, p in made]), np.array([len(x) for x, _ in made])


def total_lengths(ids, plen, new_tokens, eos):
    """Length of prompt + answer, the end token included."""
    out = []
    for row, p in zip(ids, plen):
        stop = min(p + new_tokens, len(row))
        hit = np.flatnonzero(np.isin(row[p:stop], eos))
        out.append(p + hit[0] + 1 if len(hit) else stop)
    return np.array(out)


def decode_all(dec, prompts, temps, new_tokens, eos):
    """[(ids, prompt_len)] for all prompts, in batches of similar prompt length."""
    order = np.argsort([len(p) for p in prompts], kind="stable")
    out = [None] * len(prompts)
    for i in range(0, len(order), dec.rows):
        part = order[i:i + dec.rows]
        ids = dec.run([prompts[j] for j in part], temps[part], new_tokens)
        plen = [len(prompts[j]) for j in part]
        for j, row, p, n in zip(part, ids, plen, total_lengths(ids, plen, new_tokens, eos)):
            out[j] = (row[:n].astype(np.uint16), p)
    return out


def made_up_questions(dec, net_ids, count, temperature, eos):
    """Questions that the target itself writes after `<|im_start|>user\\n`, cut after the assistant mark."""
    start, end, mark = net_ids["user"], net_ids["im_end"], net_ids["assistant"]
    found = decode_all(dec, [start] * count, np.full(count, temperature, np.float32), 176, [])
    prompts = {}
    for ids, _ in found:
        hit = np.flatnonzero(ids == end)
        if len(hit) and 16 <= hit[0] <= 160 and (ids[:hit[0]] < 6140).sum() == hit[0] - 1:
            p = np.concatenate([ids[:hit[0]], mark])
            prompts[p.tobytes()] = p
    return list(prompts.values())


def code_prefixes(data, count, rng, newline_ids):
    """Prefixes of 16 to 96 tokens of training files, from a file's start (1 in 3) or from a line's start; most end with a line."""
    ids, starts = data["code"], data["code_starts"]
    breaks = np.flatnonzero(np.isin(ids[:-200], newline_ids)) + 1
    first = np.where(rng.random(count) < 0.33, rng.choice(starts[starts < len(ids) - 200], count), rng.choice(breaks, count))
    size = rng.integers(16, 97, count)
    whole = rng.random(count) < 0.7
    newline = np.isin(np.arange(65536), newline_ids)
    out = []
    for f, s, w in zip(first, size, whole):
        p = ids[f:f + s]
        if w:
            last = np.flatnonzero(newline[p])
            p = p[:last[-1] + 1] if len(last) and last[-1] >= 8 else p
        if (p < 6140).all():
            out.append(p)
    return out


def marks(tokenizer_dir):
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(f"{tokenizer_dir}/tokenizer.json")
    enc = lambda s: np.array(tok.encode(s, add_special_tokens=False).ids, dtype=np.uint16)
    newline = [i for i in range(tok.get_vocab_size()) if tok.decode([i], skip_special_tokens=False).endswith("\n")]
    return tok, {"user": enc("<|im_start|>user\n"), "im_end": tok.token_to_id("<|im_end|>"),
                 "assistant": enc("<|im_end|>\n<|im_start|>assistant\n")}, newline


def report(name, rows, temps):
    greedy = [r for r, t in zip(rows, temps) if t == 0]
    loops = np.mean([is_looping(ids[p:]) for ids, p in greedy[:2000]]) if greedy else 0
    new = sum(len(ids) - p for ids, p in rows)
    print(f"{name}: {len(rows)} texts, {new / 1e6:.2f} M new tokens, mean {new / max(len(rows), 1):.0f}; "
          f"greedy ones that loop: {loops:.3f}", flush=True)


def answer_prompts(a, net, tok):
    """Greedy text for the prompts of a jsonl file, in the same output format; loops are reported and left out."""
    with open(a.prompts, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    prompts = [np.array(tok.encode(r["prompt"], add_special_tokens=False).ids, dtype=np.uint16) for r in rows]
    fit = [i for i, p in enumerate(prompts) if len(p) + a.new_tokens <= a.length]
    rows, prompts = [rows[i] for i in fit], [prompts[i] for i in fit]
    with torch.no_grad():
        dec = Decoder(net, len(rows), a.length)
        made = decode_all(dec, prompts, np.zeros(len(rows), np.float32), a.new_tokens, [6140, 6142])
    kind = np.array([1 if r["kind"] == "code" else 0 for r in rows])
    loops = np.array([is_looping(ids[p:]) for ids, p in made])
    for k, name in ((0, "maths"), (1, "code")):
        n = max(1, int((kind == k).sum()))
        print(f"{a.prompts}: {name} {n} prompts, {loops[kind == k].sum()} texts loop ({loops[kind == k].sum() / n:.3f})")
    out = np.full((len(rows), a.length), 6140, dtype=np.uint16)
    for row, (ids, _) in zip(out, made):
        row[:len(ids)] = ids
    keep = ~loops
    np.savez(a.out, ids=out[keep], prompt_len=np.array([p for _, p in made])[keep],
             total_len=np.array([len(ids) for ids, _ in made])[keep], kind=kind[keep], temperature=np.zeros(keep.sum()))
    for i in list(range(0, len(rows), max(1, len(rows) // a.show)))[:a.show]:
        ids, p = made[i]
        print("=====", rows[i]["id"], "loops" if loops[i] else "", "\n" + tok.decode(ids[:p].tolist(), skip_special_tokens=False)
              + ">>>" + tok.decode(ids[p:].tolist(), skip_special_tokens=False))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--target", required=True)
    p.add_argument("--data")
    p.add_argument("--prompts", help="jsonl with id, kind, prompt: answer these greedily instead of making training text")
    p.add_argument("--show", type=int, default=8, help="with --prompts: texts to print")
    p.add_argument("--out", required=True)
    p.add_argument("--rows", type=int, default=8192, help="batch")
    p.add_argument("--questions", type=int, default=65536, help="made-up questions to ask for")
    p.add_argument("--code", type=int, default=131072)
    p.add_argument("--sampled", type=float, default=0.15, help="share of answers drawn at T in 0.2..0.7 instead of T=0")
    p.add_argument("--new-tokens", type=int, default=192)
    p.add_argument("--length", type=int, default=384)
    p.add_argument("--keep-loops", type=float, default=0.1, help="share of looping greedy texts that stay in")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    rng = np.random.default_rng(a.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = model.load_target(a.target, device, torch.bfloat16)
    tok, mk, newline = marks(a.target)
    if a.prompts:
        return answer_prompts(a, net, tok)
    data = load_tokens(a.data)
    eos = [6140, 6142]
    t0 = time.time()
    with torch.no_grad():
        dec = Decoder(net, a.rows, a.length)
        asked = made_up_questions(dec, mk, a.questions, 0.9, eos)
        print(f"{len(asked)} usable made-up questions of {a.questions}, {time.time() - t0:.1f} s", flush=True)
        ids, starts = data["maths"], data["maths_starts"]
        bounds = zip(starts, np.append(starts[1:], len(ids)))
        split = int(np.flatnonzero(mk["assistant"] == 6141)[0])
        real = []
        for s, e in bounds:
            doc = ids[s:e]
            cut = int(np.flatnonzero(doc == mk["im_end"])[0]) + len(mk["assistant"])
            if cut <= 176 and split:
                real.append(doc[:cut])
        jobs = [("maths", asked + real, 0), ("code", code_prefixes(data, a.code, rng, newline), 1)]
        all_rows, all_temps, all_kinds = [], [], []
        for name, prompts, kind in jobs:
            temps = np.where(rng.random(len(prompts)) < a.sampled, rng.choice([0.2, 0.4, 0.7], len(prompts)), 0).astype(np.float32)
            rows = decode_all(dec, prompts, temps, a.new_tokens, eos)
            report(name, rows, temps)
            print(f"  {time.time() - t0:.1f} s", flush=True)
            all_rows += rows
            all_temps.append(temps)
            all_kinds.append(np.full(len(rows), kind))
    temps, kinds = np.concatenate(all_temps), np.concatenate(all_kinds)
    keep = [i for i, (x, q) in enumerate(all_rows) if len(x) - q >= 20]
    if a.keep_loops < 1:
        keep = [i for i in keep if not quick_loop(all_rows[i][0][all_rows[i][1]:]) or rng.random() < a.keep_loops]
    out = np.full((len(keep), a.length), 6140, dtype=np.uint16)
    for j, i in enumerate(keep):
        out[j, :len(all_rows[i][0])] = all_rows[i][0]
    np.savez(a.out, ids=out, prompt_len=np.array([all_rows[i][1] for i in keep]),
             total_len=np.array([len(all_rows[i][0]) for i in keep]), kind=kinds[keep], temperature=temps[keep])
    print(f"{a.out}: {len(keep)} texts kept, {time.time() - t0:.1f} s")
    for i in rng.choice(len(keep), 4, replace=False):
        x, q = all_rows[keep[i]]
        print("-----", temps[keep[i]], "\n" + tok.decode(x[:q].tolist(), skip_special_tokens=False), end="")
        print(">>>" + tok.decode(x[q:].tolist(), skip_special_tokens=False))


def quick_loop(ids):
    """The periodic-tail half of is_looping, cheap enough for hundreds of thousands of texts."""
    n = len(ids)
    if n < 64:
        return False
    tail = ids[-64:]
    for q in range(1, 25):
        if tail[-1] == tail[-1 - q] and (tail[q + 16:] == tail[16:-q]).all():
            return True
    return False


if __name__ == "__main__":
    main()
