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


if __name__ == "__main__":
    write_loss()
