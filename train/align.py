"""Third, short phase of the demo pair: target and draft learn from each other on the target's own greedy text.

Owns: the joint phase. In rounds, the target answers training prompts greedily; then, in small steps,
  - the draft learns that text (the objective of train_draft.py);
  - where the draft's first wrong guess was nearly as probable to the target as the token it chose, the target is nudged to
    prefer the guess: such near ties carry no meaning and cost a whole cycle;
  - repeating texts are pushed down as in unloop.py, and ordinary rows keep the language model in place.
Run by hand after a first draft exists: align.py --target DIR --draft DIR --data tokens.npz.xz --out DIR
Changes the target, so it is only for pairs whose target is ours; the text must be generated anew afterwards.
"""
import argparse
import math
import shutil
import time

import numpy as np
import torch
import torch.nn.functional as F

import generate
import model
import optim
from train_draft import Blocks, block_loss, labels_of, sample_anchors
from train_target import GENERATION_CONFIG, Rows, held_out, load_tokens
from unloop import maths_prompts, repeats


def near_tie_loss(logits, guess, labels, ok, anchors, ratio, margin):
    """logits (N, S, V) of the target; the draft's guesses, the target's own tokens and their validity (N, A, B-1).
    Softplus of how far the own token leads the guess, at first mistakes whose probability is at least `ratio` of the own."""
    n, _, vocab = logits.shape
    right = (guess == labels) & ok
    before = F.pad(right.cumprod(-1), (1, 0), value=1)[..., :-1].bool()
    miss = before & ok & ~right
    row = (anchors[:, :, None] + torch.arange(labels.shape[-1], device=labels.device)).clamp(0, logits.shape[1] - 1)
    flat = logits.flatten(1)
    own = flat.gather(1, (row * vocab + labels).flatten(1)).view(labels.shape).float()
    other = flat.gather(1, (row * vocab + guess).flatten(1)).view(labels.shape).float()
    use = miss & (other.detach() > own.detach() + math.log(ratio))
    loss = (F.softplus(own - other + margin) * use).sum() / use.sum().clamp(min=1)
    valid = ok[..., 0]
    accept = ((right.cumprod(-1).sum(-1) + 1) * valid).sum() / valid.sum()
    return loss, accept, use.sum() / miss.sum()


def greedy_round(dec, data, questions, newline, rng, code_share, length, new_tokens):
    """(ids (n, length), prompt lengths, total lengths, is code) of fresh greedy texts."""
    count = int(dec.rows * code_share)
    prompts = generate.code_prefixes(data, count, rng, newline)
    code = len(prompts)
    prompts += [questions[i] for i in rng.integers(0, len(questions), dec.rows - count)]
    made = generate.decode_all(dec, prompts, np.zeros(len(prompts), np.float32), new_tokens, [6140, 6142])
    ids = np.full((len(made), length), 6140, dtype=np.int64)
    for row, (x, _) in zip(ids, made):
        row[:len(x)] = x
    return ids, np.array([q for _, q in made]), np.array([len(x) for x, _ in made]), np.arange(len(made)) < code


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--target", required=True)
    p.add_argument("--draft", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--out", required=True, help="gets OUT/target and OUT/draft")
    p.add_argument("--seconds", type=float, default=75)
    p.add_argument("--rows", type=int, default=8192, help="greedy texts per round")
    p.add_argument("--code-share", type=float, default=0.7)
    p.add_argument("--steps", type=int, default=120, help="per round")
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--anchors", type=int, default=32)
    p.add_argument("--ratio", type=float, default=0.15)
    p.add_argument("--margin", type=float, default=0.5)
    p.add_argument("--align", type=float, default=0.5, help="weight of the near-tie loss")
    p.add_argument("--unlike", type=float, default=0.4, help="weight of the loss on repeated tokens")
    p.add_argument("--bad-share", type=float, default=0.3, help="texts with more repeated tokens than this get that loss")
    p.add_argument("--matrix-lr", type=float, default=0.003)
    p.add_argument("--vector-lr", type=float, default=0.0004)
    p.add_argument("--draft-lr", type=float, default=0.008)
    p.add_argument("--maths-share", type=float, default=0.04)
    p.add_argument("--compile", type=int, default=1)
    p.add_argument("--seed", type=int, default=5)
    return p.parse_args()


def main():
    a = arguments()
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    rng = np.random.default_rng(a.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    length, new_tokens = 320, 160
    data = load_tokens(a.data)
    plain, held = Rows(data, device, 512, a.maths_share, rng), held_out(data, device, 512)
    net = model.load_target(a.target, device, torch.float32).requires_grad_(True)
    twin = model.load_target(a.target, device, torch.bfloat16)
    draft = model.load_draft(a.draft, device).requires_grad_(True)
    dec = generate.Decoder(twin, a.rows, length)
    _, mk, newline = generate.marks(a.target)
    questions = maths_prompts(data, mk["assistant"], mk["im_end"])
    opt_t = optim.Mixed(net, a.matrix_lr, a.vector_lr, a.vector_lr)
    opt_d = optim.Mixed(draft, a.draft_lr, a.draft_lr / 5)
    blocks, taps = Blocks(net, draft, device), draft.taps

    def lm_loss(batch):
        with torch.autocast(device.type, torch.bfloat16):
            logits = F.linear(net(batch[:, :-1], dtype=torch.bfloat16)[0], net.head_weight())
        return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())

    def losses(batch, ids, plen, total, bad):
        anchors = sample_anchors(plen, total, length, a.anchors)
        labels, ok = labels_of(ids, anchors, total, draft.block)
        with torch.autocast(device.type, torch.bfloat16):
            h, t = net(ids, taps=taps, dtype=torch.bfloat16)
            logits = F.linear(h, net.head_weight())
            u = blocks.hidden(t.detach(), anchors, ids.gather(1, anchors.clamp(min=0)))
            drafted = F.linear(u, net.head_weight().detach())
        d_loss = block_loss(drafted, labels, ok, 7.0, "dpace", 0.5)
        tie, accept, share = near_tie_loss(logits, drafted.argmax(-1), labels, ok, anchors, a.ratio, a.margin)
        lp = -F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
        unlike = (-torch.log1p(-lp.exp().clamp(max=0.999)) * bad[:, 1:].flatten()).sum() / bad.sum().clamp(min=300)
        lm = lm_loss(batch)
        return lm + a.align * tie + a.unlike * unlike + d_loss, torch.stack([lm, d_loss, tie, accept, share]).detach()

    net.positions(0, 1, device)
    step_loss = torch.compile(losses, dynamic=False) if a.compile else losses
    held_text = lambda: {k: round(lm_loss(v).item(), 4) for k, v in held.items()}
    with torch.no_grad():
        print("before:", held_text(), flush=True)
    start, round_no, progress = time.time(), 0, 0.0
    while progress < 1:
        with torch.no_grad():
            for x, y in zip(twin.parameters(), net.parameters()):
                x.copy_(y)
        ids, plen, total, code = greedy_round(dec, data, questions, newline, rng, a.code_share, length, new_tokens)
        bad = repeats(ids, total, plen)
        share = bad.sum(1) / np.maximum(total - plen, 1)
        many = share > a.bad_share
        bad[~many] = False
        order = rng.permutation(np.flatnonzero(total - plen >= 3))
        tensors = [torch.from_numpy(x).to(device) for x in (ids, plen.astype(np.int64), total.astype(np.int64), bad.astype(np.float32))]
        seen = []
        for s in range(min(a.steps, len(order) // a.batch)):
            pick = torch.from_numpy(order[s * a.batch:(s + 1) * a.batch]).to(device)
            loss, parts = step_loss(plain.batch(64), *(x[pick] for x in tensors))
            loss.backward()
            if round_no == 0 and s == 0:
                start = time.time()      # compiling does not count
            progress = (time.time() - start) / a.seconds
            scale = optim.schedule(min(progress, 0.99), warm=0.03, decay=0.7)
            opt_t.step(scale)
            opt_d.step(scale)
            opt_t.zero_grad()
            opt_d.zero_grad()
            seen.append(parts)
        m = torch.stack(seen).mean(0).tolist()
        print(f"{time.time() - start:5.1f} s round {round_no}: repeating texts code {many[code].mean():.3f} maths "
              f"{many[~code].mean():.3f}; lm {m[0]:.3f} draft {m[1]:.3f} tie {m[2]:.3f} accept at random anchors {m[3]:.3f}; "
              f"near ties {m[4]:.2f} of first mistakes", flush=True)
        round_no += 1
    with torch.no_grad():
        print("after:", held_text())
    model.save(f"{a.out}/target", net, model.read_config(a.target), {"generation_config.json": GENERATION_CONFIG})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{a.target}/{name}", f"{a.out}/target")
    model.save(f"{a.out}/draft", draft, model.read_config(a.draft))


if __name__ == "__main__":
    main()
