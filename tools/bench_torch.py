#!/usr/bin/env python3
"""Plain PyTorch beside the engine: the built-in model tiny-k31 in eager mode, float32, as a user would write it from the equations (batched
products, KDA in chunks, experts by a loop over indices, sparse attention as a mask), forward, backward and AdamW, on the CPU.

    python3 tools/bench_torch.py --threads 2            # tokens a second of a step, median of --steps
    python3 tools/bench_torch.py --check                # the loss of the golden model k31, document by document, in float64

Configurations, names of tensors and weights for --check come from tools/golden_models.py."""
import argparse
import math
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import golden_models as G  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

TINY_K31 = G.k3("tiny-k31", hidden=128, vocab=512, n_layers=8, mla_layers=(3, 7), attn_block=4, kda_heads=2, kda_dim=64, mla_heads=4, q_lora=64,
                kv_lora=32, nope=32, ext=16, v=32, index=dict(heads=2, dim=32, top_k=64, eps=1e-5, rope=False, bias=False), glu=256, experts=32, top_k=4,
                latent=64, width=64)


def rmsnorm(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def situ(gate, up):
    return 4.0 * torch.tanh(gate / 4.0) * torch.sigmoid(gate) * 25.0 * torch.tanh(up / 25.0)


def conv(x, w):
    """Causal depthwise convolution and silu, x [B, S, P]."""
    return F.silu(F.conv1d(F.pad(x.transpose(1, 2), (w.shape[-1] - 1, 0)), w, groups=w.shape[0])).transpose(1, 2)


def delta_rule(q, k, v, g, beta, C):
    """Chunks of C rows; q k v g [B, H, S, d], beta [B, H, S]. With C = 16 the decay of the bounded gate fits in a factor for each side
    (e^-80 at most), else it is taken pair by pair."""
    B, H, S, d = q.shape
    q, k, v, g = (x.reshape(B, H, S // C, C, d) for x in (q * d ** -0.5, k, v, g))
    beta = beta.reshape(B, H, S // C, C, 1)
    Gc = g.cumsum(-2)
    if C <= 16:
        near = (-(Gc - Gc[..., :1, :])).exp() * k
        far = (Gc - Gc[..., :1, :]).exp()
        L, A = (far * k) @ near.transpose(-1, -2), (far * q) @ near.transpose(-1, -2)
    else:
        D = (Gc.unsqueeze(-2) - Gc.unsqueeze(-3)).clamp(max=0).exp()                 # [.., C, C, d]
        kj = D * k.unsqueeze(-3)
        L, A = (kj @ k.unsqueeze(-1)).squeeze(-1), (kj @ q.unsqueeze(-1)).squeeze(-1)
    L, A = (beta * L).tril(-1), A.tril()
    W, U = torch.linalg.solve_triangular(L + torch.eye(C), torch.cat([beta * Gc.exp() * k, beta * v], -1), upper=False, unitriangular=True).split(d, -1)
    kg, qg, last = (Gc[..., -1:, :] - Gc).exp() * k, Gc.exp() * q, Gc[..., -1, :].exp().unsqueeze(-1)
    state, out = torch.zeros(B, H, d, d), []
    for w, u, a, kn, qn, decay in zip(*(x.unbind(2) for x in (W, U, A, kg.transpose(-1, -2), qg, last))):
        new = u - w @ state
        out.append(qn @ state + a @ new)
        state = decay * state + kn @ new
    return torch.stack(out, 2).reshape(B, H, S, d)


def kda(c, w, x, chunk):
    B, S, H, d = x.shape[0], x.shape[1], c["kda_heads"], c["kda_dim"]

    def heads(y):
        return y.reshape(B, S, H, d).transpose(1, 2)
    q, k, v = (heads(conv(x @ w(n + "_proj.weight").T, w(n + "_conv1d.weight"))) for n in "qkv")
    q, k = (y * torch.rsqrt(y.pow(2).sum(-1, keepdim=True) + 1e-6) for y in (q, k))
    beta = torch.sigmoid(x @ w("b_proj.weight").T).transpose(1, 2)
    u = heads(x @ w("f_a_proj.weight").T @ w("f_b_proj.weight").T + w("dt_bias"))
    g = -5.0 * torch.sigmoid(w("A_log").exp()[:, None, None] * u)
    y = rmsnorm(delta_rule(q, k, v, g, beta, chunk), w("o_norm.weight"), c["eps"]) * torch.sigmoid(heads(x @ w("g_proj.weight").T))
    return y.transpose(1, 2).reshape(B, S, H * d) @ w("o_proj.weight").T


def mla(c, w, x, causal):
    """Output, and the sum over rows of KL(mean attention || softmax of the indexer) on the selected keys."""
    B, S, H, i = x.shape[0], x.shape[1], c["mla_heads"], c["index"]
    low = rmsnorm(x @ w("q_a_proj.weight").T, w("q_a_layernorm.weight"), c["mla_eps"])
    q = (low @ w("q_b_proj.weight").T).view(B, S, H, -1).transpose(1, 2)
    a, kr = (x @ w("kv_a_proj_with_mqa.weight").T).split([c["kv_lora"], c["ext"]], -1)
    kv = (rmsnorm(a, w("kv_a_layernorm.weight"), c["mla_eps"]) @ w("kv_b_proj.weight").T).view(B, S, H, -1).transpose(1, 2)
    k, v = kv.split([c["nope"], c["v"]], -1)
    k = torch.cat([k, kr[:, None].expand(B, H, S, c["ext"])], -1)
    x0 = x.detach()
    qi = (low.detach() @ w("indexer.wq_b.weight").T).view(B, S, i["heads"], i["dim"]).transpose(1, 2)
    ki = F.layer_norm(x0 @ w("indexer.wk.weight").T, (i["dim"],), w("indexer.k_norm.weight"), None, i["eps"])
    wi = (x0 @ w("indexer.weights_proj.weight").T).transpose(1, 2) * (i["heads"] * i["dim"]) ** -0.5
    score = (wi.unsqueeze(-1) * torch.relu(qi @ ki[:, None].transpose(-1, -2))).sum(1).masked_fill(~causal, -math.inf)
    omega = causal.expand(B, S, S)
    if S > i["top_k"]:
        best = torch.sort(score, dim=-1, descending=True, stable=True).indices[..., :i["top_k"]] if c.get("ties") else score.topk(i["top_k"], -1).indices
        omega = torch.zeros_like(omega).scatter(-1, best, True) & causal
    p = (q @ k.transpose(-1, -2) * (c["nope"] + c["ext"]) ** -0.5).masked_fill(~omega[:, None], -math.inf).softmax(-1)
    target = p.detach().mean(1)
    log_q = score.masked_fill(~omega, -math.inf).log_softmax(-1).masked_fill(~omega, 0)
    kl = (target * (target.clamp(min=1e-30).log() - log_q)).sum()
    o = (p @ v).transpose(1, 2).reshape(B, S, -1)
    return (o * torch.sigmoid(x @ w("g_proj.weight").T)) @ w("o_proj.weight").T, kl


def mlp(w, x):
    return situ(x @ w("gate_proj.weight").T, x @ w("up_proj.weight").T) @ w("down_proj.weight").T


def moe(c, w, x):
    flat = x.reshape(-1, x.shape[-1])
    s = torch.sigmoid(flat @ w("gate.weight").T)
    idx = (s.detach() + w("gate.e_score_correction_bias")).topk(c["top_k"], -1).indices
    p = s.gather(-1, idx)
    p = c["scale"] * p / (p.sum(-1, keepdim=True) + 1e-20)
    z = flat @ w("routed_expert_down_proj.weight").T
    w1, w3, w2 = (w("experts.{expert}.%s.weight" % n).unbind(0) for n in c["names"])       # indexing would make a whole gradient for each
    u = torch.zeros_like(z)
    for e in range(c["experts"]):
        t, slot = (idx == e).nonzero(as_tuple=True)
        if t.numel():
            rows = z[t]
            u = u.index_add(0, t, p[t, slot, None] * (situ(rows @ w1[e].T, rows @ w3[e].T) @ w2[e].T))
    u = rmsnorm(u, w("routed_expert_norm.weight"), c["eps"]) @ w("routed_expert_up_proj.weight").T
    return (u + mlp(lambda n: w("shared_experts." + n), flat)).view_as(x)


def attn_res(rows, proj, norm):
    V = torch.stack(rows)
    p = ((V * torch.rsqrt(V.pow(2).mean(-1, keepdim=True) + 1e-5)) @ (norm * proj[0])).softmax(0)
    return (p.unsqueeze(-1) * V).sum(0)


def forward(c, P, tokens, targets, chunk):
    """Sums of cross entropy and KL, tokens [B, S], one document a row."""
    def top(n):
        return P[c["prefix"] + n]
    S = tokens.shape[1]
    causal = torch.ones(S, S, dtype=torch.bool).tril()
    prefix, bank, kl = top("model.embed_tokens.weight")[tokens], [], 0.0
    for L in range(c["n_layers"]):
        w = lambda n: P["%smodel.layers.%d.%s" % (c["prefix"], L, n)]  # noqa: E731,B023
        h = attn_res(bank + [prefix], w("self_attention_res_proj.weight"), w("self_attention_res_norm.weight")) if bank else prefix
        if L % c["attn_block"] == 0:
            bank, prefix = bank + [prefix], None
        x, at = rmsnorm(h, w("input_layernorm.weight"), c["eps"]), lambda n: w("self_attn." + n)  # noqa: B023
        if L in c["mla_layers"]:
            y, k = mla(c, at, x, causal)
            kl = kl + k
        else:
            y = kda(c, at, x, chunk)
        prefix = y if prefix is None else prefix + y
        x = rmsnorm(attn_res(bank + [prefix], w("mlp_res_proj.weight"), w("mlp_res_norm.weight")), w("post_attention_layernorm.weight"), c["eps"])
        prefix = prefix + (mlp(lambda n: w("mlp." + n), x) if L < c["first_dense"] else moe(c, lambda n: w(c["moe"] + n), x))  # noqa: B023
    h = attn_res(bank + [prefix], top("model.output_attn_res_proj.weight"), top("model.output_attn_res_norm.weight"))
    logits = rmsnorm(h, top("model.norm.weight"), c["eps"]) @ top("lm_head.weight").T
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum"), kl


def check(chunk):
    c = next(m for m in G.models() if m["name"] == "k31")
    c = dict(c, salt=G.SALTS["k31"], ties=True)                                      # two keys without a positive product tie at zero: lower first
    P = {k: torch.tensor(x, dtype=torch.float64) for k, x in G.make_weights(c).items()}
    torch.set_default_dtype(torch.float64)
    tokens, targets, _, _ = G.make_data(c)
    loss = 0.0
    for m in range(2):
        at = 0
        for n in G.DOCS[m]:
            rows = -(-n // chunk) * chunk if n > chunk else n        # padded to whole chunks: what is behind a document is never seen by it
            t, y = np.zeros((1, rows), dtype=np.int64), np.full((1, rows), -1, dtype=np.int64)
            t[0, :n], y[0, :n] = tokens[m, at:at + n], targets[m, at:at + n]
            loss += float(forward(c, P, torch.tensor(t), torch.tensor(y), min(chunk, rows))[0])
            at += n
    model = G.Model(c)
    out = model.value[False](G.make_weights(c))[1]
    print("loss %.12f, golden %.12f" % (loss, float(out["loss"])))
    assert abs(loss - float(out["loss"])) < 1e-8 * abs(loss)


def bench(args):
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    c = dict(TINY_K31, salt=1)
    P = {k: torch.tensor(x, dtype=torch.float32, requires_grad="e_score" not in k) for k, x in G.make_weights(c).items()}
    trained = [x for x in P.values() if x.requires_grad]
    opt = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    times, n = [], args.batch * args.sequence
    for _ in range(args.steps + 1):
        tokens = torch.randint(0, c["vocab"], (args.batch, args.sequence + 1))
        start = time.perf_counter()
        for rows in tokens.split(args.micro):
            loss, kl = forward(c, P, rows[:, :-1], rows[:, 1:], args.chunk)
            ((loss + kl) / n).backward()
        middle = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        times.append((middle - start, time.perf_counter() - start))
    for k, what in enumerate(("forward + backward", "whole step")):
        t = statistics.median(x[k] for x in times[1:])                              # the first step warms up
        print("torch %s, %d threads, %d x %d tokens, %d rows at a time, chunk %d: %s %.3f s, %.0f tokens/s"
              % (torch.__version__, args.threads, args.batch, args.sequence, args.micro, args.chunk, what, t, n / t))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--micro", type=int, default=2, help="rows of a micro-batch")
    args = parser.parse_args()
    if args.check:
        check(args.chunk)
    else:
        bench(args)
