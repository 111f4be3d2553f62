"""Third phase of target training, together with a first draft: the target learns from its own text that drafts well.

Owns: the selection of own texts and the joint training step. In rounds, the target writes several texts for each training
prompt (one greedy, the others at low temperature); of those that do not loop, the one that the draft would accept most of is
kept. Target and draft then train on the kept texts together: the target as a language model, the draft as in train_draft.py, with
gradients through the taps, so that the target's features come to say more about the tokens ahead. Ordinary rows keep the language
model in place; loops are pushed down as in unloop.py.
Run by hand after a first train_draft.py: sharpen.py --target DIR --draft DIR --data tokens.npz.xz --out DIR (target/ and draft/ in it)
"""
import argparse
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


@torch.no_grad()
def accept_scores(blocks, ids, plen, total, device, count=32, batch=128):
    """Mean accept length (bonus counted) of each text over `count` evenly spaced anchors."""
    out = []
    spread = (torch.arange(count, device=device) + 0.5) / count
    for i in range(0, len(ids), batch):
        x = torch.from_numpy(ids[i:i + batch]).to(device)
        p, n = (torch.from_numpy(a[i:i + batch]).to(device) for a in (plen, total))
        at = p[:, None] + ((n - 1 - p)[:, None] * spread).long()
        with torch.autocast(device.type, torch.bfloat16):
            _, taps = blocks.target(x, taps=blocks.draft.taps, dtype=torch.bfloat16)
            h = blocks.hidden(taps, at, x.gather(1, at))
            guess = F.linear(h, blocks.head.to(h.dtype)).argmax(-1)
        lab, ok = labels_of(x, at, n, blocks.draft.block)
        out.append(((guess == lab) & ok).cumprod(-1).sum(-1).float().mean(1) + 1)
    return torch.cat(out).cpu().numpy()


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--target", required=True)
    p.add_argument("--draft", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=45, help="of training a round")
    p.add_argument("--code", type=int, default=24576, help="code prompts a round")
    p.add_argument("--maths", type=int, default=4096)
    p.add_argument("--temperatures", default="0,0.3,0.5,0.8")
    p.add_argument("--most-repeats", type=float, default=0.35, help="share of repeated pieces up to which a text may be kept")
    p.add_argument("--rows", type=int, default=8192, help="batch of the decoder")
    p.add_argument("--batch", type=int, default=64, help="own texts a step; half as many loops, --plain ordinary rows")
    p.add_argument("--plain", type=int, default=48)
    p.add_argument("--anchors", type=int, default=32)
    p.add_argument("--own-weight", type=float, default=1.0)
    p.add_argument("--draft-weight", type=float, default=0.4)
    p.add_argument("--loop-weight", type=float, default=0.15, help="while more code texts loop than --loop-goal, then in proportion")
    p.add_argument("--loop-goal", type=float, default=0.08)
    p.add_argument("--matrix-lr", type=float, default=0.003)
    p.add_argument("--vector-lr", type=float, default=0.0005)
    p.add_argument("--draft-matrix-lr", type=float, default=0.01)
    p.add_argument("--draft-vector-lr", type=float, default=0.002)
    p.add_argument("--maths-share", type=float, default=0.06)
    p.add_argument("--new-tokens", type=int, default=192)
    p.add_argument("--compile", type=int, default=1)
    p.add_argument("--seed", type=int, default=5)
    return p.parse_args()


class Writer:
    """The target's texts for fresh training prompts, scored and sorted out."""

    def __init__(self, a, data, net, draft, device, rng):
        self.a, self.data, self.net, self.device, self.rng = a, data, net, device, rng
        self.twin = model.load_target(a.target, device, torch.bfloat16)
        self.blocks = Blocks(self.twin, draft, device)
        self.length = 160 + a.new_tokens
        self.dec = generate.Decoder(self.twin, a.rows, self.length)
        _, mk, self.newline = generate.marks(a.target)
        self.questions = maths_prompts(data, mk["assistant"], mk["im_end"])
        self.temps = [float(x) for x in a.temperatures.split(",")]

    def round(self, name):
        """-> kept texts (ids, plen, total), looping greedy ones (ids, bad), and the share of greedy code texts that loop."""
        a, k, t0 = self.a, len(self.temps), time.time()
        with torch.no_grad():
            for x, y in zip(self.twin.parameters(), self.net.parameters()):
                x.copy_(y)
        prompts = generate.code_prefixes(self.data, a.code, self.rng, self.newline)
        n_code = len(prompts)
        prompts += [self.questions[i] for i in self.rng.integers(0, len(self.questions), a.maths)]
        made = generate.decode_all(self.dec, [p for p in prompts for _ in range(k)],
                                   np.tile(np.array(self.temps, np.float32), len(prompts)), a.new_tokens, [6140, 6142])
        ids, plen, total = generate.padded(made, self.length)
        loops, share = generate.loop_flags(ids, plen, total, self.device)
        score = accept_scores(self.blocks, ids, plen, total, self.device)
        bad = loops | (share > a.most_repeats) | (total - plen < 24)
        best = np.where(bad, -1.0, score).reshape(-1, k).argmax(1) + np.arange(len(prompts)) * k
        kept = best[~bad[best]]
        for kind, low, high in (("code", 0, n_code * k), ("maths", n_code * k, len(ids))):
            g = np.arange(low, high, k)
            mine = kept[(kept >= low) & (kept < high)]
            used = np.bincount(mine % k, minlength=k) / max(1, len(mine))
            print(f"{name} {kind}: greedy texts loop {loops[g].mean():.3f}, accept at random anchors of the others "
                  f"{score[g][~loops[g]].mean():.3f} (repeats {share[g][~loops[g]].mean():.3f}); kept {len(mine)} of {len(g)}, "
                  f"accept {score[mine].mean():.3f} (repeats {share[mine].mean():.3f}), by temperature " +
                  " ".join(f"{x:.2f}" for x in used), flush=True)
        print(f"  {time.time() - t0:.1f} s", flush=True)
        pick = np.flatnonzero(loops & (np.arange(len(ids)) % k == 0))
        marks = repeats(ids[pick], total[pick], plen[pick]).astype(np.float32)
        on = lambda x: torch.from_numpy(x).to(self.device)
        return (on(ids[kept]), on(plen[kept]), on(total[kept])), (on(ids[pick]), on(marks)), float(loops[:n_code * k:k].mean())


def main():
    a = arguments()
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    rng = np.random.default_rng(a.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = load_tokens(a.data)
    plain, held = Rows(data, device, 512, a.maths_share, rng), held_out(data, device, 512)
    net = model.load_target(a.target, device, torch.float32).requires_grad_(True)
    draft = model.load_draft(a.draft, device, torch.float32).requires_grad_(True)
    writer = Writer(a, data, net, draft, device, rng)
    blocks, taps = Blocks(net, draft, device), draft.taps
    opts = [optim.Mixed(net, a.matrix_lr, a.vector_lr, a.vector_lr), optim.Mixed(draft, a.draft_matrix_lr, a.draft_vector_lr)]

    def lm_loss(batch):
        with torch.autocast(device.type, torch.bfloat16):
            logits = F.linear(net(batch[:, :-1], dtype=torch.bfloat16)[0], net.head_weight())
        return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())

    def all_losses(batch, ids, plen, total, loop_ids, loop_bad, loop_weight):
        n = len(ids)
        rows = torch.cat([ids, loop_ids])
        anchors = sample_anchors(plen, total, ids.shape[1], a.anchors)
        labels, ok = labels_of(ids, anchors, total, draft.block)
        with torch.autocast(device.type, torch.bfloat16):
            h, t = net(rows, taps=taps, dtype=torch.bfloat16)
            logits = F.linear(h[:, :-1], net.head_weight())
            u = blocks.hidden(t[:n], anchors, ids.gather(1, anchors.clamp(min=0)))
            guess = F.linear(u, blocks.head)
        ce = F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten(), reduction="none").view(len(rows), -1)
        pos = torch.arange(1, ids.shape[1], device=ids.device)
        own = ((pos >= plen[:, None]) & (pos < total[:, None])).float()
        own_loss = (ce[:n] * own).sum() / own.sum()
        bad = loop_bad[:, 1:]
        loop_loss = (-torch.log1p(-(-ce[n:]).exp().clamp(max=0.999)) * bad).sum() / bad.sum().clamp(min=1)
        draft_loss = block_loss(guess, labels, ok, 7.0, "dpace", 0.5)
        lm = lm_loss(batch)
        return (lm + a.own_weight * own_loss + a.draft_weight * draft_loss + loop_weight * loop_loss,
                torch.stack([lm, own_loss, draft_loss, loop_loss]).detach())

    net.positions(0, 1, device)
    step_loss = torch.compile(all_losses, dynamic=False) if a.compile else all_losses
    with torch.no_grad():
        print("before:", {k: round(lm_loss(v).item(), 4) for k, v in held.items()}, flush=True)
    done = 0.0
    for r in range(a.rounds):
        own, loops, looping = writer.round(f"round {r}")
        weight = torch.tensor(a.loop_weight * min(1.0, looping / a.loop_goal), device=device)
        if len(loops[0]) == 0:
            loops = (own[0][:1], torch.zeros_like(own[0][:1], dtype=torch.float32))

        def step():
            sel = torch.randint(len(own[0]), (a.batch,), device=device)
            lsel = torch.randint(len(loops[0]), (a.batch // 2,), device=device)
            return step_loss(plain.batch(a.plain), *(x[sel] for x in own), *(x[lsel] for x in loops), weight)

        if r == 0:
            step()[0].backward()   # compiles before the clock starts
            for o in opts:
                o.step(0.0)
                o.zero_grad()
        start, n = time.time(), 0
        while time.time() - start < a.seconds:
            loss, parts = step()
            loss.backward()
            done = (r + (time.time() - start) / a.seconds) / a.rounds
            for o in opts:
                o.step(optim.schedule(done, warm=0.02, decay=0.7, floor=0.05))
                o.zero_grad()
            n += 1
            if n % 10 == 0 and device.type == "cuda":
                torch.cuda.synchronize()
        with torch.no_grad():
            print(f"  {n} steps; language model, own text, draft, loops: " + " ".join(f"{x:.3f}" for x in parts.tolist()) +
                  "  held-out", {k: round(lm_loss(v).item(), 4) for k, v in held.items()}, flush=True)
    writer.round("after")
    cfg = model.read_config(a.target)
    model.save(f"{a.out}/target", net, cfg, {"generation_config.json": GENERATION_CONFIG})
    model.save(f"{a.out}/draft", draft, model.read_config(a.draft))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{a.target}/{name}", f"{a.out}/target")


if __name__ == "__main__":
    main()
