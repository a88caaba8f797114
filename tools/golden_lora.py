#!/usr/bin/env python3
"""Golden vectors for test/test_golden_ops.c, from PyTorch in float64 and its autograd: a loss whose tokens have weights, and routed experts
with adapters, folded into dense matrices as W + s B A, of which some are one for all experts (shared-outer). Written from the equations
alone; developers run it, the build never does.

    python3 tools/golden_lora.py           # writes test/golden/{loss_weights,experts_outer_*}.txt

Format: that of golden_ops.py.
"""
import os

import numpy as np
import torch

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test", "golden")
rng = np.random.default_rng(20260907)


def normal(*shape):
    """Few digits, so that the files stay small; exact in double."""
    return np.round(rng.standard_normal(shape) * 256) / 256


def write(name, tensors):
    with open(os.path.join(OUT, name + ".txt"), "w") as f:
        for key, x in tensors.items():
            x = np.asarray(x.detach().numpy() if torch.is_tensor(x) else x, dtype=np.float64)
            f.write(" ".join([key, str(x.ndim)] + [str(n) for n in x.shape]) + "\n")
            flat = ["%.17g" % v for v in x.reshape(-1)]
            for i in range(0, len(flat), 8):
                f.write(" ".join(flat[i:i + 8]) + "\n")


def leaf(x):
    return torch.tensor(x, dtype=torch.float64, requires_grad=True)


def write_loss():
    h, w = leaf(normal(9, 5)), leaf(normal(13, 5))
    targets = torch.tensor([2, -1, 12, 0, 7, -1, 7, 3, 11])
    weights = torch.tensor([0.5, 3, 1, 0, 2.25, 1, 0.125, 1, 1.75], dtype=torch.float64)
    scale, on = 0.375, targets >= 0
    each = torch.nn.functional.cross_entropy(h[on] @ w.T, targets[on], reduction="none")
    loss = (each * weights[on]).sum()
    (scale * loss).backward()
    lse = torch.where(on, torch.logsumexp(h @ w.T, 1), torch.zeros(9, dtype=torch.float64))
    write("loss_weights", dict(h=h, w=w, targets=targets, weights=weights, scale=[scale], loss=loss.reshape(1), lse=lse, dh=h.grad, dw=w.grad))


def act(form, g, c):
    if form == "situ":
        return 4 * torch.tanh(g / 4) * torch.sigmoid(g) * 25 * torch.tanh(c / 25)
    return torch.nn.functional.silu(g) * c


def write_experts(form, T, E, L, I, top_k, ranks):
    """Adapters on w1, w3, w2; A of w1 and w3, B of w2 are one for all experts. Every matrix is folded first."""
    s1, s3, s2 = 0.5, 1.5, -0.75
    x, p = leaf(normal(T, L)), leaf(np.abs(normal(T, top_k)) + 0.25)
    w1, w3, w2 = leaf(normal(E, I, L)), leaf(normal(E, I, L)), leaf(normal(E, L, I))
    a1, b1 = leaf(normal(ranks[0], L)), leaf(normal(E, I, ranks[0]))
    a3, b3 = leaf(normal(ranks[1], L)), leaf(normal(E, I, ranks[1]))
    a2, b2 = leaf(normal(E, ranks[2], I)), leaf(normal(L, ranks[2]))
    idx = np.stack([rng.permutation(E)[:top_k] for _ in range(T)])
    idx.sort(axis=1)
    idx[1] = -1                                            # an idle token: nothing of it is multiplied
    rows = []
    for t in range(T):
        y = torch.zeros(L, dtype=torch.float64)
        for k in range(top_k):
            e = int(idx[t, k])
            if e < 0:
                continue
            f1, f3, f2 = w1[e] + s1 * b1[e] @ a1, w3[e] + s3 * b3[e] @ a3, w2[e] + s2 * b2 @ a2[e]
            y = y + p[t, k] * (f2 @ act(form, f1 @ x[t], f3 @ x[t]))
        rows.append(y)
    y, dy = torch.stack(rows), normal(T, L)
    (y * torch.tensor(dy)).sum().backward()
    out = dict(x=x, p=p, idx=idx, w1=w1, w3=w3, w2=w2, a1=a1, b1=b1, a3=a3, b3=b3, a2=a2, b2=b2, y=y, dy=dy)
    for name in ("x", "p", "w1", "w3", "w2", "a1", "b1", "a3", "b3", "a2", "b2"):
        out["d" + name] = out[name].grad
    write("experts_outer_" + form, out)


if __name__ == "__main__":
    write_loss()
    write_experts("silu", 6, 4, 5, 3, 2, (2, 1, 3))
    write_experts("situ", 5, 3, 4, 4, 2, (2, 2, 2))        # square: a gate that is an up would have its shape
