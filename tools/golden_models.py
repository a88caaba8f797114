#!/usr/bin/env python3
"""Whole-model goldens for test/test_golden_models.c: four tiny configurations, forward in float64, gradients by automatic differentiation,
written from the equations of spec/model.md (3.0-3.8, 5, 10), spec/operators.md (1, 4) and the decisions of spec/numerics.md (3) alone: the
engine's own sources were not looked at for the mathematics. Developers run it; the build never does.

    python3 tools/golden_models.py              # writes test/golden/models/*.safetensors
    python3 tools/golden_models.py --search 400 # looks for salts whose margins are wide enough (see Margins)

Each document is computed alone, without any notion of packing: the packed rows of the engine must come out the same.

Weights. Element i (row-major) of the tensor NAME of a model with salt s, everything in binary32 where it says so:
    z = splitmix64(fnv1a64(NAME) + s * 0x9E3779B97F4A7C15 + i),   u = float32((z >> 40) - 2^23) * 2^-23  in [-1, 1), exact
    w = float32(centre + float32(scale * u)),  centre and scale by kind(NAME, shape), scale rounded to float32
Stacked experts are one tensor [E, rows, columns] of the name with {expert} in it.
    splitmix64(x): x += 0x9E3779B97F4A7C15; x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9; x = (x ^ x >> 27) * 0x94D049BB133111EB; x ^ x >> 31
Tokens: row t of micro-batch m: splitmix64(1000 m + t + 77) mod vocab. Documents: DOCS; the rows after the last one are idle (start = pos + 1).
Targets: the next token of the document, -1 in its last row and in rows with (t + m) mod 11 = 3.

Objective of a step: sum of cross entropies / trained rows + COEF * sum of KL / rows that are not idle, over both micro-batches.
Optimizer: ten steps, global clipping at MAX_NORM (clip = min(1, max / (|g| + 1e-6))), constant learning rate, AdamW with eps after the bias
correction (numerics.md A9). Muon: every matrix but embedding, head, res.proj and convolutions; Q, K, V projections in blocks of one head,
experts one by one; the rest AdamW. Decay: parameters with two or more axes longer than one, res.proj excluded. The selection bias is fixed.

Margins. In the first step the k-th and the (k+1)-th candidate of every routing decision (experts, expert groups, keys of the indexer) are at
least MARGIN apart and every indexer product is that far from the kink of its relu; later steps: MARGIN_LATER. Salts are chosen so, and so
that this script run in float32 keeps within CONDITION of itself: gradients, and weights after ten steps.

File: F64 forward values and gradients, F32 weights after ten steps.
    tokens targets start pos [2, T] I32 · hidden.L [T, D]: residual stream (AttnRes: prefix) after layer L, micro-batch 0; rows that are idle
    hold zeros · hidden.final, logits: micro-batch 0 · loss, kl: sums over both · grad/NAME · adamw/NAME, muon/NAME · adamw.loss, muon.loss
    [10]: mean loss before each step · adamw.norm, muon.norm · with an indexer: dense.* the same of the warm-up stage (no optimizer steps)
"""
import argparse
import functools
import json
import math
import os
import struct
import sys

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")     # a third of the time to compile
import jax  # noqa: E402
import numpy as np  # noqa: E402

jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test", "golden", "models")
T = 80
DOCS = ((67, 1, 6), (5, 26, 3, 40))
MARGIN, MARGIN_LATER, CONDITION = 1e-4, 1e-5, 4e-5
COEF = 0.75
STEPS = 10
OPT = dict(beta1=0.9, beta2=0.95, eps=1e-3, decay=0.1, max_norm=0.5, mu=0.95, muon_scale=0.2)


def f32(x):
    return float(np.float32(x))


# ---- the four models -------------------------------------------------------------------------------------------------
def k3(name, **more):
    c = dict(name=name, prefix="language_model.", hidden=24, vocab=48, n_layers=4, mla_layers=(1, 3), first_dense=1, attn_block=3, eps=1e-5, kda_heads=2,
             kda_dim=16, conv=4, gate="bounded", gate_rank="full", mla_heads=2, q_lora=12, kv_lora=12, nope=8, ext=8, v=8, output_gate=True,
             mla_eps=1e-6, rope=None, index=None, glu=20, situ=True, experts=8, top_k=2, groups=1, top_groups=1, latent=12, width=8, shared=1,
             scale=1.0, moe="block_sparse_moe.", names=("w1", "w3", "w2"), salt=1, lr=0.004)
    c.update(more)
    return c


def models():
    linear = dict(prefix="", attn_block=0, gate="softplus", gate_rank="low", q_lora=0, output_gate=False, situ=False, latent=0, scale=2.446, top_k=3)
    v32 = dict(prefix="", n_layers=3, mla_layers=(0, 1, 2), attn_block=0, output_gate=False, situ=False, latent=0, scale=2.5, experts=16, top_k=3, groups=4,
               top_groups=2, moe="mlp.", names=("gate_proj", "up_proj", "down_proj"), eps=1e-6,
               rope=dict(theta=100.0, factor=4.0, original=64, beta_fast=4.0, beta_slow=1.0),
               index=dict(heads=2, dim=8, top_k=6, eps=1e-6, rope=True, bias=True))
    return [k3("k3"), k3("k31", n_layers=5, mla_layers=(2, 4), attn_block=2, lr=0.001, index=dict(heads=2, dim=8, top_k=7, eps=1e-5, rope=False, bias=False)),
            k3("linear", mla_layers=(2, 3), **linear), k3("v32", **v32)]


def layer_shapes(c, L):
    D, p = c["hidden"], "%smodel.layers.%d." % (c["prefix"], L)
    out = [(p + "input_layernorm.weight", (D,)), (p + "post_attention_layernorm.weight", (D,))]
    if c["attn_block"]:
        for side in ("self_attention", "mlp"):
            out += [(p + side + "_res_proj.weight", (1, D)), (p + side + "_res_norm.weight", (D,))]
    a = p + "self_attn."
    if L not in c["mla_layers"]:
        H, d = c["kda_heads"], c["kda_dim"]
        P = H * d
        out += [(a + n + "_proj.weight", (P, D)) for n in "qkv"] + [(a + n + "_conv1d.weight", (P, 1, c["conv"])) for n in "qkv"]
        out += [(a + "f_a_proj.weight", (d, D)), (a + "f_b_proj.weight", (P, d)), (a + "b_proj.weight", (H, D))]
        if c["gate_rank"] == "full":
            out += [(a + "g_proj.weight", (P, D))]
        else:
            out += [(a + "g_a_proj.weight", (d, D)), (a + "g_b_proj.weight", (P, d))]
        out += [(a + "A_log", (H,)), (a + "dt_bias", (P,)), (a + "o_norm.weight", (d,)), (a + "o_proj.weight", (D, P))]
    else:
        H, qk = c["mla_heads"], c["nope"] + c["ext"]
        if c["q_lora"]:
            out += [(a + "q_a_proj.weight", (c["q_lora"], D)), (a + "q_a_layernorm.weight", (c["q_lora"],)), (a + "q_b_proj.weight", (H * qk, c["q_lora"]))]
        else:
            out += [(a + "q_proj.weight", (H * qk, D))]
        out += [(a + "kv_a_proj_with_mqa.weight", (c["kv_lora"] + c["ext"], D)), (a + "kv_a_layernorm.weight", (c["kv_lora"],)),
                (a + "kv_b_proj.weight", (H * (c["nope"] + c["v"]), c["kv_lora"]))]
        if c["output_gate"]:
            out += [(a + "g_proj.weight", (H * c["v"], D))]
        out += [(a + "o_proj.weight", (D, H * c["v"]))]
        if c["index"]:
            i, x = a + "indexer.", c["index"]
            out += [(i + "wq_b.weight", (x["heads"] * x["dim"], c["q_lora"])), (i + "wk.weight", (x["dim"], D)), (i + "weights_proj.weight", (x["heads"], D)),
                    (i + "k_norm.weight", (x["dim"],))] + ([(i + "k_norm.bias", (x["dim"],))] if x["bias"] else [])
    if L < c["first_dense"]:
        return out + [(p + "mlp.%s_proj.weight" % n, s) for n, s in (("gate", (c["glu"], D)), ("up", (c["glu"], D)), ("down", (D, c["glu"])))]
    m, E, I, F = p + c["moe"], c["experts"], c["width"], c["latent"] or D
    out += [(m + "gate.weight", (E, D)), (m + "gate.e_score_correction_bias", (E,))]
    if c["latent"]:
        out += [(m + "routed_expert_down_proj.weight", (F, D)), (m + "routed_expert_norm.weight", (F,)), (m + "routed_expert_up_proj.weight", (D, F))]
    S = c["shared"] * I
    out += [(m + "shared_experts.%s_proj.weight" % n, s) for n, s in (("gate", (S, D)), ("up", (S, D)), ("down", (D, S)))]
    return out + [(m + "experts.{expert}.%s.weight" % n, s) for n, s in zip(c["names"], ((E, I, F), (E, I, F), (E, F, I)))]


def shapes(c):
    D, W = c["hidden"], c["vocab"]
    out = [(c["prefix"] + "model.embed_tokens.weight", (W, D)), (c["prefix"] + "lm_head.weight", (W, D)), (c["prefix"] + "model.norm.weight", (D,))]
    if c["attn_block"]:
        out += [(c["prefix"] + "model.output_attn_res_proj.weight", (1, D)), (c["prefix"] + "model.output_attn_res_norm.weight", (D,))]
    for L in range(c["n_layers"]):
        out += layer_shapes(c, L)
    return dict(out)


# ---- weights and data ------------------------------------------------------------------------------------------------
M64 = (1 << 64) - 1


def splitmix64(x):
    x = (np.asarray(x, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fnv1a64(text):
    h = 0xCBF29CE484222325
    for b in text.encode():
        h = ((h ^ b) * 0x100000001B3) & M64
    return h


def kind(name, shape, softplus):
    """(centre, scale)"""
    def has(*words):
        return any(w in name for w in words)
    if has("A_log"):
        return (1.4, 1.0) if softplus else (0.1, 0.5)
    if has("dt_bias"):
        return (-3.5, 2.5)
    if has("e_score_correction_bias"):
        return (0.0, 0.15)
    if has("k_norm.bias"):
        return (0.0, 0.3)
    if has("conv1d"):
        return (0.0, 0.5)
    if has("embed_tokens"):
        return (0.0, 1.0)
    if len(shape) == 1:
        return (1.0, 0.25)
    fan_in = math.sqrt(3.0 / shape[-1])
    if has("gate.weight", "indexer.wq_b", "indexer.wk"):
        return (0.0, 2.0 * fan_in)
    return (0.0, fan_in)


def make_weights(c):
    out = {}
    for name, shape in shapes(c).items():
        base = (fnv1a64(name) + c["salt"] * 0x9E3779B97F4A7C15) & M64
        with np.errstate(over="ignore"):
            z = splitmix64(np.uint64(base) + np.arange(math.prod(shape), dtype=np.uint64))
        u = ((z >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(np.float32) * np.float32(2.0 ** -23)
        centre, scale = kind(name, shape, c["gate"] == "softplus")
        out[name] = (np.float32(centre) + np.float32(scale) * u).astype(np.float32).reshape(shape).astype(np.float64)
    return out


def make_data(c):
    tokens, targets, start = (np.zeros((2, T), dtype=np.int32) for _ in range(3))
    pos = np.tile(np.arange(T, dtype=np.int32), (2, 1))
    for m in range(2):
        with np.errstate(over="ignore"):
            tokens[m] = splitmix64(np.arange(T, dtype=np.uint64) + np.uint64(1000 * m + 77)) % np.uint64(c["vocab"])
        row = 0
        targets[m], start[m] = -1, pos[m] + 1
        for n in DOCS[m]:
            start[m, row:row + n] = row
            targets[m, row:row + n - 1] = tokens[m, row + 1:row + n]
            row += n
        targets[m, (np.arange(T) + m) % 11 == 3] = -1
    return tokens, targets, start, pos


def documents(x):
    """[2, T] to [documents, longest], the rows past the end filled with the first one."""
    rows = []
    for m in range(2):
        at = 0
        for n in DOCS[m]:
            i = np.arange(max(max(d) for d in DOCS))
            rows.append(x[m][at + np.where(i < n, i, 0)])
            at += n
    return np.stack(rows)


def lengths():
    return np.array([n for d in DOCS for n in d])


# ---- operators, on one document [n, ..] ------------------------------------------------------------------------------
def rmsnorm(x, w, eps):
    return w * (x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps))


def layernorm(x, w, b, eps):
    d = x - jnp.mean(x, axis=-1, keepdims=True)
    return w * d / jnp.sqrt(jnp.mean(d * d, axis=-1, keepdims=True) + eps) + b


def glu(c, gate, up):
    if c["situ"]:
        return 4.0 * jnp.tanh(gate / 4.0) * jax.nn.sigmoid(gate) * 25.0 * jnp.tanh(up / 25.0)
    return gate * jax.nn.sigmoid(gate) * up


def yarn(r, ext):
    """Frequencies as in DeepSeek-V3: unchanged where a dimension turns more than beta_fast times within the original length, divided by factor
    where it turns less than beta_slow times, a linear ramp between."""
    def turns_at(n):
        return ext * math.log(r["original"] / (n * 2 * math.pi)) / (2 * math.log(r["theta"]))
    i = np.arange(ext // 2)
    freq = r["theta"] ** (-2.0 * i / ext)
    low, high = max(math.floor(turns_at(r["beta_fast"])), 0), min(math.ceil(turns_at(r["beta_slow"])), ext - 1)
    slow = np.clip((i - low) / max(high - low, 1e-3), 0, 1)
    return freq * (1 - slow) + freq / r["factor"] * slow


def rope(c, x, heads, first, interleaved):
    """Rotates ext of each head of x [n, heads * dim]: the first of them, or the last."""
    n, ext = x.shape[0], c["ext"]
    x = x.reshape(n, heads, -1)
    e, keep = (x[..., :ext], x[..., ext:]) if first else (x[..., -ext:], x[..., :-ext])
    freq = yarn(c["rope"], ext)
    turn = jnp.exp(1j * jnp.arange(n)[:, None, None] * freq)
    if interleaved:
        z = (e[..., 0::2] + 1j * e[..., 1::2]) * turn
        e = jnp.stack([z.real, z.imag], axis=-1).reshape(n, heads, ext)
    else:
        z = (e[..., :ext // 2] + 1j * e[..., ext // 2:]) * turn
        e = jnp.concatenate([z.real, z.imag], axis=-1)
    return jnp.concatenate([e, keep] if first else [keep, e], axis=-1).reshape(n, -1)


def short_conv(x, w):
    W = w.shape[-1]
    past = jnp.concatenate([jnp.zeros((W - 1, x.shape[1]), x.dtype), x])
    pre = sum(w[:, 0, j] * past[j:j + x.shape[0]] for j in range(W))
    return pre * jax.nn.sigmoid(pre)


def kda(c, w, x):
    H, d = c["kda_heads"], c["kda_dim"]

    def heads(y):
        return y.reshape(-1, H, d)
    q, k, v = (heads(short_conv(x @ w(n + "_proj.weight").T, w(n + "_conv1d.weight"))) for n in "qkv")
    q, k = (y / jnp.sqrt(jnp.sum(y * y, axis=-1, keepdims=True) + 1e-6) for y in (q, k))
    beta = jax.nn.sigmoid(x @ w("b_proj.weight").T)
    u = heads((x @ w("f_a_proj.weight").T) @ w("f_b_proj.weight").T + w("dt_bias"))
    a = jnp.exp(w("A_log"))[:, None]
    if c["gate"] == "bounded":
        g = -5.0 * jax.nn.sigmoid(a * u)
    else:
        g = -a * (jnp.maximum(u, 0) + jnp.log1p(jnp.exp(-jnp.abs(u))))

    def step(S, row):
        qt, kt, vt, bt, gt = row
        S = jnp.exp(gt)[:, :, None] * S                                              # [H, dk, dv], decayed before the delta
        S = S + bt[:, None, None] * kt[:, :, None] * (vt - jnp.einsum("hkv,hk->hv", S, kt))[:, None, :]
        return S, jnp.einsum("hkv,hk->hv", S, qt) * d ** -0.5
    _, o = lax.scan(step, jnp.zeros((H, d, d), x.dtype), (q, k, v, beta, g))
    if c["gate_rank"] == "full":
        gate = x @ w("g_proj.weight").T
    else:
        gate = (x @ w("g_a_proj.weight").T) @ w("g_b_proj.weight").T
    y = rmsnorm(o, w("o_norm.weight"), f32(c["eps"])) * jax.nn.sigmoid(heads(gate))
    return y.reshape(-1, H * d) @ w("o_proj.weight").T


def masked_softmax(s, mask):
    s = jnp.where(mask, s, -jnp.inf)
    e = jnp.where(mask, jnp.exp(s - lax.stop_gradient(jnp.max(s, axis=-1, keepdims=True))), 0.0)
    return e / jnp.sum(e, axis=-1, keepdims=True)


def largest_gap(x, k):
    """Distance of the k-th and (k+1)-th largest of the last axis, inf where there are no more than k candidates (-inf is none). Where both
    are exactly zero (every product of the key is negative: exact in any precision, decided by the tie rule), the smallest other value."""
    top = -jnp.sort(-x, axis=-1)
    if x.shape[-1] <= k:
        return jnp.inf
    both = (top[..., k - 1] == 0) & (top[..., k] == 0)
    gap = jnp.where(both, jnp.min(jnp.where(x == 0, jnp.inf, jnp.abs(x)), axis=-1), top[..., k - 1] - top[..., k])
    return jnp.min(jnp.where(jnp.isfinite(top[..., k]), gap, jnp.inf))


def top_mask(x, k):
    """The k largest of the last axis, the lower index first among equals."""
    order = jnp.argsort(-x, axis=-1, stable=True)
    rank = jnp.argsort(order, axis=-1, stable=True)
    return rank < k


def mla(c, w, x, valid, dense):
    """Output, sum of KL over this document's rows, margins (selection, kink)."""
    H, nope, ext, v, n = c["mla_heads"], c["nope"], c["ext"], c["v"], x.shape[0]
    if c["q_lora"]:
        low = rmsnorm(x @ w("q_a_proj.weight").T, w("q_a_layernorm.weight"), f32(c["mla_eps"]))
        q = low @ w("q_b_proj.weight").T
    else:
        q = x @ w("q_proj.weight").T
    a = x @ w("kv_a_proj_with_mqa.weight").T
    kr = a[:, c["kv_lora"]:]
    kv = (rmsnorm(a[:, :c["kv_lora"]], w("kv_a_layernorm.weight"), f32(c["mla_eps"])) @ w("kv_b_proj.weight").T).reshape(n, H, nope + v)
    if c["rope"]:
        q, kr = rope(c, q, H, False, True), rope(c, kr, 1, False, True)
    s = jnp.einsum("thd,shd->ths", q.reshape(n, H, -1)[..., :nope], kv[..., :nope]) + jnp.einsum("thd,sd->ths", q.reshape(n, H, -1)[..., nope:], kr)
    mscale = 0.1 * math.log(c["rope"]["factor"]) + 1 if c["rope"] else 1.0
    s = s * f32((nope + ext) ** -0.5 * mscale * mscale)
    causal = jnp.tril(jnp.ones((n, n), dtype=bool))
    omega, kl, margin = causal, 0.0, jnp.inf
    if c["index"]:
        score, margin = index_scores(c, w, lax.stop_gradient(x), lax.stop_gradient(low), causal & valid[:, None])
        if not dense:
            seen = jnp.where(causal, lax.stop_gradient(score), -jnp.inf)
            omega = causal & top_mask(seen, c["index"]["top_k"])
            gap = largest_gap(jnp.where(valid[:, None], seen, -jnp.inf), c["index"]["top_k"])
            margin = jnp.minimum(margin, gap)
    p = masked_softmax(s, omega[:, None, :])
    if c["index"]:
        target = lax.stop_gradient(jnp.mean(p, axis=1))
        z = jnp.where(omega, score, -jnp.inf)
        log_q = jnp.where(omega, score - jax.scipy.special.logsumexp(z, axis=-1, keepdims=True), 0.0)
        log_p = jnp.where(target > 0, jnp.log(jnp.where(target > 0, target, 1.0)), 0.0)
        kl = jnp.sum(jnp.where(valid[:, None], target * (log_p - log_q), 0.0))
    o = jnp.einsum("ths,shv->thv", p, kv[..., nope:]).reshape(n, H * v)
    if c["output_gate"]:
        o = o * jax.nn.sigmoid(x @ w("g_proj.weight").T)
    return o @ w("o_proj.weight").T, kl, margin


def index_scores(c, w, x, low, seen):
    i, n = c["index"], x.shape[0]
    q = low @ w("indexer.wq_b.weight").T
    k = layernorm(x @ w("indexer.wk.weight").T, w("indexer.k_norm.weight"), w("indexer.k_norm.bias") if i["bias"] else 0.0, f32(i["eps"]))
    if i["rope"]:
        q, k = rope(c, q, i["heads"], True, False), rope(c, k, 1, True, False)
    weight = (x @ w("indexer.weights_proj.weight").T) * (i["heads"] ** -0.5 * i["dim"] ** -0.5)
    r = jnp.einsum("tjd,sd->tjs", q.reshape(n, i["heads"], i["dim"]), k)
    kink = jnp.min(jnp.where(seen[:, None, :], jnp.abs(r), jnp.inf))
    return jnp.einsum("tj,tjs->ts", weight, jnp.maximum(r, 0.0)), kink


def moe(c, w, x, valid):
    E, k, G = c["experts"], c["top_k"], c["groups"]
    s = jax.nn.sigmoid(x @ w("gate.weight").T)
    biased = lax.stop_gradient(s + w("gate.e_score_correction_bias"))
    inside = jnp.where(valid[:, None], biased, -jnp.inf)
    margin = jnp.inf
    if G > 1:                                                                        # DeepSeek-V3: a group counts by its two largest
        group = jnp.sum(-jnp.sort(-biased.reshape(-1, G, E // G), axis=-1)[..., :2], axis=-1)
        margin = largest_gap(jnp.where(valid[:, None], group, -jnp.inf), c["top_groups"])
        open_ = jnp.repeat(top_mask(group, c["top_groups"]), E // G, axis=-1)
        biased, inside = jnp.where(open_, biased, -jnp.inf), jnp.where(open_, inside, -jnp.inf)
    margin = jnp.minimum(margin, largest_gap(inside, k))
    chosen = jnp.where(top_mask(biased, k), s, 0.0)
    p = f32(c["scale"]) * chosen / (jnp.sum(chosen, axis=-1, keepdims=True) + 1e-20)
    z = x @ w("routed_expert_down_proj.weight").T if c["latent"] else x
    w1, w3, w2 = (w("experts.{expert}.%s.weight" % n) for n in c["names"])
    h = glu(c, jnp.einsum("tf,eif->tei", z, w1), jnp.einsum("tf,eif->tei", z, w3))
    u = jnp.einsum("te,tei,efi->tf", p, h, w2)
    if c["latent"]:
        u = rmsnorm(u, w("routed_expert_norm.weight"), f32(c["eps"])) @ w("routed_expert_up_proj.weight").T
    return u + mlp(c, lambda n: w("shared_experts." + n), x), margin


def mlp(c, w, x):
    return glu(c, x @ w("gate_proj.weight").T, x @ w("up_proj.weight").T) @ w("down_proj.weight").T


def attn_res(rows, proj, norm):
    V = jnp.stack(rows)                                                              # [m + 1, n, D]
    key = V / jnp.sqrt(jnp.mean(V * V, axis=-1, keepdims=True) + f32(1e-5))
    p = jax.nn.softmax(key @ (norm * proj[0]), axis=0)
    return jnp.sum(p[..., None] * V, axis=0)


def document(c, dense, p, tokens, valid):
    """One document: hidden states after each layer, final normed hidden, logits, KL sum, smallest margin."""
    top = lambda n: p[c["prefix"] + n]  # noqa: E731
    prefix, bank, hidden, kl, margin = top("model.embed_tokens.weight")[tokens], [], [], 0.0, jnp.inf
    for L in range(c["n_layers"]):
        w = lambda n: p["%smodel.layers.%d.%s" % (c["prefix"], L, n)]  # noqa: E731,B023
        at = lambda n: w("self_attn." + n)  # noqa: E731,B023
        h = prefix
        if c["attn_block"]:
            if bank:
                h = attn_res(bank + [prefix], w("self_attention_res_proj.weight"), w("self_attention_res_norm.weight"))
            if L % c["attn_block"] == 0:                                             # pushed after the mix
                bank, prefix = bank + [prefix], None
        x = rmsnorm(h, w("input_layernorm.weight"), f32(c["eps"]))
        if L in c["mla_layers"]:
            y, k, m = mla(c, at, x, valid, dense)
            kl, margin = kl + k, jnp.minimum(margin, m)
        else:
            y = kda(c, at, x)
        prefix = y if prefix is None else prefix + y
        h = attn_res(bank + [prefix], w("mlp_res_proj.weight"), w("mlp_res_norm.weight")) if c["attn_block"] else prefix
        x = rmsnorm(h, w("post_attention_layernorm.weight"), f32(c["eps"]))
        if L < c["first_dense"]:
            y = mlp(c, lambda n: w("mlp." + n), x)  # noqa: B023
        else:
            y, m = moe(c, lambda n: w(c["moe"] + n), x, valid)  # noqa: B023
            margin = jnp.minimum(margin, m)
        prefix = prefix + y
        hidden.append(prefix)
    h = prefix
    if c["attn_block"]:
        h = attn_res(bank + [prefix], top("model.output_attn_res_proj.weight"), top("model.output_attn_res_norm.weight"))
    h = rmsnorm(h, top("model.norm.weight"), f32(c["eps"]))
    return hidden, h, h @ top("lm_head.weight").T, kl, margin


def forward(c, dense, p, tokens, targets):
    """All documents [n, longest] at once. The rows past a document's end are never seen by those before them, and do not count."""
    n = lengths()
    valid = np.arange(tokens.shape[1])[None, :] < n[:, None]
    hidden, final, logits, kl, margin = jax.vmap(lambda a, b: document(c, dense, p, a, b))(tokens, valid)
    trained = valid & (targets >= 0)
    lse = jax.scipy.special.logsumexp(logits, axis=-1)
    picked = jnp.take_along_axis(logits, np.where(trained, targets, 0)[..., None], axis=-1)[..., 0]
    loss = jnp.sum(jnp.where(trained, lse - picked, 0.0))
    kl = jnp.sum(kl)
    total = loss / int(trained.sum()) + COEF * kl / int(n.sum())
    return total, dict(hidden=hidden, final=final, logits=logits, loss=loss, kl=kl, margin=jnp.min(margin))


# ---- optimizers ------------------------------------------------------------------------------------------------------
def by_muon(name, shape):
    wide = sum(n > 1 for n in shape) >= 2
    return wide and not any(k in name for k in ("embed_tokens", "lm_head", "res_proj", "conv1d"))


def decays(name, shape):
    return sum(n > 1 for n in shape) >= 2 and "res_proj" not in name


def muon_blocks(c, name, shape):
    """Rows of one matrix: one head of a Q, K or V projection, one expert, otherwise all."""
    a = name.rsplit("self_attn.", 1)[-1]
    if "{expert}" in name:
        return shape[1]
    if a in ("q_proj.weight", "k_proj.weight", "v_proj.weight") and name.replace("q_proj", "k_proj").replace("v_proj", "k_proj") in shapes(c):
        return c["kda_dim"]
    if a in ("q_proj.weight", "q_b_proj.weight"):
        return c["nope"] + c["ext"]
    if a == "kv_b_proj.weight":
        return c["nope"] + c["v"]
    if a == "indexer.wq_b.weight":
        return c["index"]["dim"]
    return math.prod(shape[:-1])


def newton_schulz(M):
    X = M / (jnp.sqrt(jnp.sum(M * M)) + 1e-7)
    wide = X if X.shape[0] <= X.shape[1] else X.T
    for _ in range(5):
        A = wide @ wide.T
        wide = 3.4445 * wide + (-4.7750 * A + 2.0315 * A @ A) @ wide
    return wide if X.shape[0] <= X.shape[1] else wide.T


def make_update(c, rule):
    o, shape = dict(OPT, lr=c["lr"]), shapes(c)

    def update(t, w, m, v, grads):
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads.values()))
        clip = jnp.minimum(1.0, o["max_norm"] / (norm + 1e-6))
        w, m, v = dict(w), dict(m), dict(v)
        for k in w:
            if "e_score_correction_bias" in k:
                continue
            g, wd = grads[k] * clip, o["decay"] if decays(k, shape[k]) else 0.0
            if rule == "muon" and by_muon(k, shape[k]):
                rows, cols = muon_blocks(c, k, shape[k]), shape[k][-1]
                m[k] = o["mu"] * m[k] + g
                O = jax.vmap(newton_schulz)((g + o["mu"] * m[k]).reshape(-1, rows, cols)).reshape(shape[k])
                w[k] = w[k] - o["lr"] * (o["muon_scale"] * math.sqrt(max(rows, cols)) * O + wd * w[k])
            else:
                m[k] = o["beta1"] * m[k] + (1 - o["beta1"]) * g
                v[k] = o["beta2"] * v[k] + (1 - o["beta2"]) * g * g
                a, b = m[k] / (1 - o["beta1"] ** t), v[k] / (1 - o["beta2"] ** t)
                w[k] = w[k] - o["lr"] * (a / (jnp.sqrt(b) + o["eps"]) + wd * w[k])
        return w, m, v, norm
    return jax.jit(update)


# ---- files -----------------------------------------------------------------------------------------------------------
NAMES = {"float64": "F64", "float32": "F32", "int32": "I32", "int64": "I64"}


def write_safetensors(path, tensors):
    head, blobs, at = {}, [], 0
    for name in sorted(tensors, key=lambda k: (-tensors[k].dtype.itemsize, k)):
        x = np.ascontiguousarray(tensors[name])
        head[name] = dict(dtype=NAMES[str(x.dtype)], shape=list(x.shape), data_offsets=[at, at + x.nbytes])
        blobs.append(x.tobytes())
        at += x.nbytes
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def packed(x):
    """Rows of micro-batch 0 from [documents, longest, n]: idle rows are zero."""
    out, row = np.zeros((T, x.shape[-1])), 0
    for i, n in enumerate(DOCS[0]):
        out[row:row + n] = x[i, :n]
        row += n
    return out


class Model:
    def __init__(self, c):
        self.c = c
        self.tokens, self.targets, self.start, self.pos = make_data(c)
        a, b = documents(self.tokens), documents(self.targets)
        self.grad = {d: jax.jit(jax.value_and_grad(functools.partial(forward, c, d, tokens=a, targets=b), has_aux=True)) for d in (False, True)}
        self.value = {d: jax.jit(functools.partial(forward, c, d, tokens=a, targets=b)) for d in (False, True)}
        self.trained = int((self.targets >= 0).sum())
        self.update = {r: make_update(c, r) for r in ("adamw", "muon")}

    def train(self, rule, w, floor=0.0):
        """Ten steps; gives up, with None, where a margin falls below floor."""
        w = {k: jnp.asarray(x) for k, x in w.items()}
        m, v = ({k: jnp.zeros_like(x) for k, x in w.items()} for _ in range(2))
        losses, norms, margin = [], [], math.inf
        for t in range(STEPS):
            (_, out), grads = self.grad[False](w)
            losses.append(float(out["loss"]) / self.trained)
            margin = min(margin, float(out["margin"]))
            if margin < floor:
                return None
            w, m, v, norm = self.update[rule](t + 1.0, w, m, v, grads)
            norms.append(float(norm))
        return w, np.array(losses), np.array(norms), margin

    def check_gradients(self, w, grads, dense):
        """Central differences. The indexer's parameters are moved by the KL alone, all others by the cross entropy alone."""
        rng, worst = np.random.default_rng(3), ("", 0.0)
        rows = int(lengths().sum())
        for name in w:
            if "e_score_correction_bias" in name:
                assert not np.any(grads[name])
                continue
            index = "indexer" in name
            part = lambda x: float(x["kl"]) * COEF / rows if index else float(x["loss"]) / self.trained  # noqa: E731,B023
            scale = max(float(np.max(np.abs(grads[name]))), 1e-6)
            for i in rng.choice(w[name].size, size=min(2, w[name].size), replace=False):
                f = []
                for h in (-1e-5, 1e-5):
                    moved = np.array(w[name])
                    moved.flat[i] += h
                    f.append(part(self.value[dense](dict(w, **{name: moved}))[1]))
                error = abs((f[1] - f[0]) / 2e-5 - float(np.asarray(grads[name]).flat[i])) / scale
                worst = max(worst, (name, error), key=lambda x: x[1])
        print("    differences%s: worst %.1e (%s)" % (" dense" if dense else "", worst[1], worst[0]))
        assert worst[1] < 1e-5, worst
        dead = [n for n in w if not np.any(grads[n]) and "e_score" not in n and ".layers.0.self_attention_res_" not in n]
        assert not dead, dead

    def stage(self, w, dense, out, tag):
        (_, f), grads = self.grad[dense](w)
        self.check_gradients(w, grads, dense)
        for L, h in enumerate(f["hidden"]):
            out["%shidden.%d" % (tag, L)] = packed(np.asarray(h))
        out[tag + "hidden.final"], out[tag + "logits"] = packed(np.asarray(f["final"])), packed(np.asarray(f["logits"]))
        out[tag + "loss"], out[tag + "kl"] = np.array([float(f["loss"])]), np.array([float(f["kl"])])
        out.update({"%sgrad/%s" % (tag, k): np.asarray(g) for k, g in grads.items() if "e_score" not in k})
        return float(f["margin"]), float(f["loss"]) / self.trained, float(f["kl"])


SALTS = dict(k3=4, k31=162, linear=3, v32=131)


def write_model(c):
    c = dict(c, salt=SALTS[c["name"]])
    model, w = Model(c), make_weights(c)
    out = dict(tokens=model.tokens, targets=model.targets, start=model.start, pos=model.pos, salt=np.array([c["salt"]], dtype=np.int64), lr=np.array([c["lr"]]))
    margin, loss, kl = model.stage(w, False, out, "")
    print("%-7s %6d parameters, %d trained of %d rows, salt %d: loss %.6f kl %.6f, margin %.1e"
          % (c["name"], sum(x.size for x in w.values()), model.trained, lengths().sum(), c["salt"], loss, kl, margin))
    assert margin > MARGIN, margin
    if c["index"]:
        margin, _, _ = model.stage(w, True, out, "dense.")
        assert margin > MARGIN, margin
        for k in list(out):
            if k.startswith("dense.grad/") and "indexer" not in k:
                out[k] = out[k].astype(np.float32)
    single = {k: x.astype(np.float32) for k, x in w.items()}
    away = [distance(model.grad[False](single)[1], model.grad[False](w)[1])]
    for rule in ("adamw", "muon"):
        end, losses, norms, margin = model.train(rule, w)
        away.append(distance(model.train(rule, single)[0], end))
        print("    %-5s losses %s, norms %.3f .. %.3f, margin %.1e" % (rule, " ".join("%.4f" % x for x in losses), norms[0], norms[-1], margin))
        assert margin > MARGIN_LATER, margin
        out[rule + ".loss"], out[rule + ".norm"] = losses, norms
        out.update({"%s/%s" % (rule, k): np.asarray(x, dtype=np.float32) for k, x in end.items()})
    print("    float32: gradients %.1e, AdamW %.1e, Muon %.1e" % tuple(away))
    assert max(away) < CONDITION, away
    write_safetensors(os.path.join(OUT, c["name"] + ".safetensors"), out)


def distance(a, b):
    """The largest max |a - b| / max |b| of all tensors."""
    return max(float(jnp.max(jnp.abs(a[k] - b[k])) / jnp.maximum(jnp.max(jnp.abs(b[k])), 1e-30)) for k in b)


def search(c, first, n):
    model, found = Model(c), 0
    stages = (False, True) if c["index"] else (False,)
    for salt in range(first, first + n):
        w = make_weights(dict(c, salt=salt))
        margin = min(float(model.value[d](w)[1]["margin"]) for d in stages)
        if margin < MARGIN:
            continue
        single = {k: x.astype(np.float32) for k, x in w.items()}
        gradient = max(distance(model.grad[d](single)[1], model.grad[d](w)[1]) for d in stages)
        if gradient > CONDITION:
            continue
        runs = [model.train(rule, w, MARGIN_LATER) for rule in ("adamw", "muon")]
        if not all(runs):
            continue
        steps = max(distance(model.train(rule, single)[0], run[0]) for rule, run in zip(("adamw", "muon"), runs))
        print("%-7s salt %d: margins %.1e, %s; float32 %.1e, %.1e" % (c["name"], salt, margin, " ".join("%.1e" % r[3] for r in runs), gradient, steps), flush=True)
        found += steps < CONDITION
        if found == 2:
            return


if __name__ == "__main__":
    args = argparse.ArgumentParser()
    args.add_argument("--search", type=int, default=0)
    args.add_argument("--from", dest="first", type=int, default=1)
    args.add_argument("--model", default="")
    args = args.parse_args()
    os.makedirs(OUT, exist_ok=True)
    for config in models():
        if args.model in ("", config["name"]):
            search(config, args.first, args.search) if args.search else write_model(config)
    sys.exit(0)
