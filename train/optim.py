"""Muon for matrices and AdamW for everything else, with a time-based learning rate.

Owns: the optimiser of both training scripts. Used by: train_target.py, train_draft.py.
"""
import torch


@torch.compile(dynamic=False)
def _muon_update(grads, momentum, weights, lr, beta):
    """One step for a list of equal-shaped matrices: momentum, then the nearest orthogonal matrix, batched."""
    torch._foreach_lerp_(momentum, grads, 1 - beta)
    g = torch.stack([x.lerp(m, beta) for x, m in zip(grads, momentum)])
    x = g.bfloat16()
    rows, cols = x.shape[1:]
    if rows > cols:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for a, b, c in ((4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037),
                    (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)):
        s = x @ x.mT
        x = a * x + (b * s + c * (s @ s)) @ x
    if rows > cols:
        x = x.mT
    x = x.float() * (max(1.0, rows / cols) ** 0.5)
    for w, u in zip(weights, x):
        w.sub_(u * lr)


class Mixed:
    def __init__(self, module, matrix_lr, vector_lr, embed_lr=None, beta=0.95, weight_decay=0.0):
        self.matrix_lr, self.beta, self.decay = matrix_lr, beta, weight_decay
        groups, vectors, embeds = {}, [], []
        for name, p in module.named_parameters():
            if not p.requires_grad:
                continue
            if "embed_tokens" in name or "lm_head" in name:
                embeds.append(p)
            elif p.ndim == 2:
                groups.setdefault(tuple(p.shape), []).append(p)
            else:
                vectors.append(p)
        self.groups = [(ps, [torch.zeros_like(p) for p in ps]) for ps in groups.values()]
        sets = [{"params": vectors, "lr": vector_lr, "base": vector_lr}]
        if embeds:
            sets.append({"params": embeds, "lr": embed_lr, "base": embed_lr})
        fused = next(module.parameters()).is_cuda
        self.adam = torch.optim.AdamW(sets, betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0, fused=fused)

    @torch.no_grad()
    def step(self, scale):
        """scale in [0, 1] multiplies every learning rate."""
        for g in self.adam.param_groups:
            g["lr"] = g["base"] * scale
        self.adam.step()
        for ps, ms in self.groups:
            lr = torch.tensor(self.matrix_lr * scale, device=ps[0].device)
            if self.decay:
                torch._foreach_mul_(ps, 1 - self.decay * self.matrix_lr * scale)
            _muon_update([p.grad for p in ps], ms, ps, lr, self.beta)

    def zero_grad(self):
        for ps, _ in self.groups:
            for p in ps:
                p.grad = None
        self.adam.zero_grad(set_to_none=True)

    def state(self):
        return {"adam": self.adam.state_dict(), "muon": [ms for _, ms in self.groups]}

    def load_state(self, state):
        self.adam.load_state_dict(state["adam"])
        for (_, ms), saved in zip(self.groups, state["muon"]):
            for m, s in zip(ms, saved):
                m.copy_(s)


def schedule(progress, warm=0.01, decay=0.5, floor=0.0):
    """Linear warm-up, flat, linear decay over the last `decay` of the run; progress in [0, 1]."""
    if progress < warm:
        return max(progress / warm, 0.02)
    if progress < 1 - decay:
        return 1.0
    return max((1 - progress) / decay, floor)
