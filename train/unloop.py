"""Second, short phase of target training: fewer greedy texts that repeat themselves.

Owns: the unlikelihood phase. In rounds, the target answers training prompts greedily; in texts that loop (generate.is_looping),
every token that completes an 8-token piece seen before is pushed down (loss -log(1 - p)), while ordinary rows keep the language
model in place. Texts that merely repeat, as code does, are left alone. Ends when few enough texts loop; keeps the best round.
Run by hand after train_target.py: unloop.py --target DIR --data tokens.npz.xz --out DIR
"""
import argparse
import shutil

import numpy as np
import torch
import torch.nn.functional as F

import generate
import model
import optim
from train_target import GENERATION_CONFIG, Rows, held_out, load_tokens


def repeats(ids, total, plen, n=8):
    """(N, S) bool: generated tokens that complete a piece of n tokens which occurred earlier in the row."""
    rows, length = ids.shape
    code = np.zeros((rows, length - n + 1), dtype=np.uint64)
    for i in range(n):
        code = code * np.uint64(1000003) + ids[:, i:length - n + 1 + i].astype(np.uint64)
    order = np.argsort(code, axis=1, kind="stable")
    ordered = np.take_along_axis(code, order, 1)
    again = np.zeros_like(code, dtype=bool)
    np.put_along_axis(again, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], 1)
    out = np.zeros(ids.shape, dtype=bool)
    out[:, n - 1:] = again
    pos = np.arange(length)
    return out & (pos >= plen[:, None]) & (pos < total[:, None])


def maths_prompts(data, mark, end):
    ids, starts = data["maths"], data["maths_starts"]
    out = []
    for s, e in zip(starts, np.append(starts[1:], len(ids))):
        cut = int(np.flatnonzero(ids[s:e] == end)[0]) + len(mark)
        if cut <= 160:
            out.append(ids[s:s + cut])
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--target", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--rounds", type=int, default=12)
    p.add_argument("--steps", type=int, default=40, help="per round")
    p.add_argument("--rows", type=int, default=4096, help="greedy texts per round")
    p.add_argument("--weight", type=float, default=0.5)
    p.add_argument("--code-goal", type=float, default=0.06, help="share of greedy code texts that may loop")
    p.add_argument("--maths-goal", type=float, default=0.01)
    p.add_argument("--matrix-lr", type=float, default=0.003)
    p.add_argument("--vector-lr", type=float, default=0.0004)
    p.add_argument("--maths-share", type=float, default=0.04)
    p.add_argument("--compile", type=int, default=1)
    p.add_argument("--seed", type=int, default=3)
    a = p.parse_args()
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    rng = np.random.default_rng(a.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = load_tokens(a.data)
    plain = Rows(data, device, 512, a.maths_share, rng)
    held = held_out(data, device, 512)
    net = model.load_target(a.target, device, torch.float32).requires_grad_(True)
    twin = model.load_target(a.target, device, torch.bfloat16)
    dec = generate.Decoder(twin, a.rows, 352)
    _, mk, newline = generate.marks(a.target)
    questions = maths_prompts(data, mk["assistant"], mk["im_end"])
    opt = optim.Mixed(net, a.matrix_lr, a.vector_lr, a.vector_lr)

    def lm_loss(batch):
        with torch.autocast(device.type, torch.bfloat16):
            logits = F.linear(net(batch[:, :-1], dtype=torch.bfloat16)[0], net.head_weight())
        return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())

    def both(batch, ids, bad):
        with torch.autocast(device.type, torch.bfloat16):
            logits = F.linear(net(ids[:, :-1], dtype=torch.bfloat16)[0], net.head_weight())
        lp = -F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
        unlike = -torch.log1p(-lp.exp().clamp(max=0.999)) * bad[:, 1:].flatten()
        return lm_loss(batch) + a.weight * unlike.sum() / bad.sum()

    net.positions(0, 1, device)
    step_loss = torch.compile(both, dynamic=False) if a.compile else both
    with torch.no_grad():
        print("before:", {k: round(lm_loss(v).item(), 4) for k, v in held.items()}, flush=True)
    pool, best = [], None
    for r in range(a.rounds + 1):
        with torch.no_grad():
            for x, y in zip(twin.parameters(), net.parameters()):
                x.copy_(y)
        half = a.rows // 2
        prompts = generate.code_prefixes(data, half, rng, newline)
        cut = len(prompts)
        prompts += [questions[i] for i in rng.integers(0, len(questions), half)]
        made = generate.decode_all(dec, prompts, np.zeros(len(prompts), np.float32), 192, [6140, 6142])
        ids, plen, total = generate.padded(made, 352)
        loops, share = generate.loop_flags(ids, plen, total, device)
        code, maths = loops[:cut].mean(), loops[cut:].mean()
        print(f"round {r}: looping texts: code {code:.3f} maths {maths:.3f}; mean repeated pieces in the rest: "
              f"code {share[:cut][~loops[:cut]].mean():.3f} maths {share[cut:][~loops[cut:]].mean():.3f}", flush=True)
        if best is None or code + maths < best[0]:
            best = (code + maths, r, [x.detach().clone() for x in net.parameters()])
        if (code <= a.code_goal and maths <= a.maths_goal) or r == a.rounds:
            break
        pick = np.flatnonzero(loops)
        bad = repeats(ids[pick], total[pick], plen[pick])
        pool = pool[-2:] + [(torch.from_numpy(ids[pick]).to(device), torch.from_numpy(bad.astype(np.float32)).to(device))]
        ids_d, bad_d = (torch.cat(x) for x in zip(*pool))
        for s in range(a.steps):
            sel = torch.randint(len(ids_d), (64,), device=device)
            loss = step_loss(plain.batch(96), ids_d[sel], bad_d[sel])
            loss.backward()
            opt.step(min(1.0, (r * a.steps + s + 1) / 30) * (1 - 0.9 * s / a.steps))
            opt.zero_grad()
        print(f"  loss {loss.item():.3f}", flush=True)
    with torch.no_grad():
        for x, y in zip(net.parameters(), best[2]):
            x.copy_(y)
    print(f"kept: round {best[1]}")
    with torch.no_grad():
        print("after:", {k: round(lm_loss(v).item(), 4) for k, v in held.items()})
    cfg = {k: v for k, v in model.read_config(a.target).items()}
    model.save(a.out, net, cfg, {"generation_config.json": GENERATION_CONFIG})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{a.target}/{name}", a.out)


if __name__ == "__main__":
    main()
