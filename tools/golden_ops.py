#!/usr/bin/env python3
"""Golden vectors for test/test_ops.c and the whole-program tests, written from the equations of the papers (and of the
operators' contracts) alone: jax in float64, gradients by jax.grad. Developers run it; the build never does.

    python3 tools/golden_ops.py            # writes test/golden/*.txt

Format: one tensor after another, "name n_dim n_0 n_1 ..." on a line, then its elements, row-major, "%.17g", blank-separated.
Constants that the engine holds as F32 attributes (eps, beta, scale) are rounded to float32 here as well.
"""
import math
import os

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp  # noqa: E402

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test", "golden")
rng = np.random.default_rng(20250101)


def f32(x):
    return float(np.float32(x))


def normal(*shape):
    """Few digits, so that the files stay small; exact in double."""
    return np.round(rng.standard_normal(shape) * 1024) / 1024


def write(name, tensors):
    with open(os.path.join(OUT, name + ".txt"), "w") as f:
        for key, x in tensors.items():
            x = np.asarray(x, dtype=np.float64)
            f.write(" ".join([key, str(x.ndim)] + [str(n) for n in x.shape]) + "\n")
            flat = ["%.17g" % v for v in x.reshape(-1)]
            for i in range(0, len(flat), 8):
                f.write(" ".join(flat[i:i + 8]) + "\n")


def pulled(f, dout, *args):
    """Output, and gradients of sum(dout * f(args))."""
    args = [jnp.asarray(a) for a in args]
    y = f(*args)
    grads = jax.grad(lambda *a: jnp.sum(jnp.asarray(dout) * f(*a)), argnums=tuple(range(len(args))))(*args)
    return y, grads


# ---- operators ------------------------------------------------------------------------------------------------------
def embedding(w, feat, tokens, place):
    return w[tokens].at[place].set(feat)


def rmsnorm(x, w, eps):
    return w * x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)


def rope(x, pos, start, heads, nope, ext, theta, interleaved):
    """Rotates the last ext of each head, as a product of complex numbers."""
    T = x.shape[0]
    x = x.reshape(T, heads, nope + ext)
    keep, e = x[..., :nope], x[..., nope:]
    angle = (pos - start)[:, None] * theta ** (-2.0 * jnp.arange(ext // 2) / ext)
    turn = jnp.exp(1j * angle)[:, None, :]
    if interleaved:
        z = (e[..., 0::2] + 1j * e[..., 1::2]) * turn
        e = jnp.stack([z.real, z.imag], axis=-1).reshape(T, heads, ext)
    else:
        z = (e[..., :ext // 2] + 1j * e[..., ext // 2:]) * turn
        e = jnp.concatenate([z.real, z.imag], axis=-1)
    return jnp.concatenate([keep, e], axis=-1).reshape(T, -1)


def attention(q, kv, kr, start, pos, heads, nope, ext, v, scale):
    """Query t sees keys start_t .. pos_t. A row that sees none is zero. Returns o and the log-sum-exp of each head."""
    T, S = q.shape[0], kv.shape[0]
    q = q.reshape(T, heads, nope + ext)
    kv = kv.reshape(S, heads, nope + v)
    k = kv[..., :nope]
    if ext:
        k = jnp.concatenate([k, jnp.broadcast_to(kr[:, None, :], (S, heads, ext))], axis=-1)
    s = jnp.einsum("thd,shd->hts", q, k) * scale
    key = jnp.arange(S)[None, :]
    seen = (key >= start[:, None]) & (key <= pos[:, None])
    idle = ~jnp.any(seen, axis=1)
    s = jnp.where(seen[None], s, -jnp.inf)
    s = jnp.where(idle[None, :, None], 0.0, s)
    lse = jax.scipy.special.logsumexp(s, axis=-1)
    p = jnp.exp(s - lse[..., None])
    p = jnp.where(idle[None, :, None], 0.0, p)
    return jnp.einsum("hts,shv->thv", p, kv[..., nope:]).reshape(T, heads * v), lse.T


def swiglu(gate, up):
    return jax.nn.silu(gate) * up


def loss_sum(h, w, targets):
    logits = h @ w.T
    lse = jax.scipy.special.logsumexp(logits, axis=-1)
    trained = targets >= 0
    picked = jnp.take_along_axis(logits, jnp.where(trained, targets, 0)[:, None], axis=-1)[:, 0]
    return jnp.sum(jnp.where(trained, lse - picked, 0.0)), lse


def adamw(w, m, v, g, t, lr, beta1, beta2, eps, decay):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    m_hat, v_hat = m / (1 - beta1 ** t), v / (1 - beta2 ** t)
    return w - lr * (m_hat / (jnp.sqrt(v_hat) + eps) + decay * w), m, v


# ---- one file an operator ----------------------------------------------------------------------------------------------
def write_embedding():
    w, feat, dy = normal(11, 5), normal(2, 5), normal(9, 5)
    tokens, place = np.array([3, 0, 10, 3, 7, 3, 1, 10, 5]), np.array([4, 7])
    y, (dw, dfeat) = pulled(lambda a, b: embedding(a, b, tokens, place), dy, w, feat)
    write("embedding", dict(tokens=tokens, w=w, feat=feat, place=place, y=y, dy=dy, dw=dw, dfeat=dfeat))


def write_linear():
    x, w, dy = normal(5, 7), normal(4, 7), normal(5, 4)
    y, (dx, dw) = pulled(lambda a, b: a @ b.T, dy, x, w)
    write("linear", dict(x=x, w=w, y=y, dy=dy, dx=dx, dw=dw))


def write_rmsnorm():
    x, w, dy = normal(6, 10), normal(10), normal(6, 10)
    y, (dx, dw) = pulled(lambda a, b: rmsnorm(a, b, f32(1e-5)), dy, x, w)
    r = 1 / np.sqrt(np.mean(x * x, axis=-1) + f32(1e-5))
    write("rmsnorm", dict(x=x, w=w, y=y, r=r, dy=dy, dx=dx, dw=dw))


def write_rope():
    pos, start = np.arange(8) + 100, np.array([100, 100, 100, 103, 103, 103, 60, 7])
    x, dy = normal(8, 3 * (3 + 6)), normal(8, 3 * (3 + 6))
    out = dict(x=x, pos=pos, start=start, dy=dy)
    for style in ("half", "interleaved"):
        y, (dx,) = pulled(lambda a: rope(a, pos, start, 3, 3, 6, 10000.0, style == "interleaved"), dy, x)
        out["y_" + style], out["dx_" + style] = y, dx
    write("rope", out)


def write_attention():
    H, nope, v, T = 2, 4, 3, 9
    start, pos = np.array([0, 0, 0, 0, 4, 4, 4, 7, 7]), np.arange(T)
    out = dict(start=start, pos=pos)
    for ext in (0, 2):
        scale = f32((nope + ext) ** -0.5)
        q, kv, kr, do = normal(T, H * (nope + ext)), normal(T, H * (nope + v)), normal(T, ext), normal(T, H * v)
        f = lambda a, b, c: attention(a, b, c, start, pos, H, nope, ext, v, scale)  # noqa: E731,B023
        o, grads = pulled(lambda a, b, c: f(a, b, c)[0], do, q, kv, kr)
        tensors = dict(q=q, kv=kv, kr=kr, o=o, lse=f(q, kv, kr)[1], do=do, dq=grads[0], dkv=grads[1], dkr=grads[2])
        out.update({"%s_ext%d" % (k, ext): x for k, x in tensors.items() if np.asarray(x).size})
    # generation: few queries, a longer cache, one idle row
    ext, S = 2, 9
    start, pos = np.array([0, 4, 6]), np.array([2, 7, 5])
    q, kv, kr = normal(3, H * (nope + ext)), normal(S, H * (nope + v)), normal(S, ext)
    o, _ = attention(q, kv, kr, start, pos, H, nope, ext, v, f32((nope + ext) ** -0.5))
    out.update(start_gen=start, pos_gen=pos, q_gen=q, kv_gen=kv, kr_gen=kr, o_gen=o)
    write("attention", out)


def write_swiglu():
    gate, up, dy = 3 * normal(4, 9), normal(4, 9), normal(4, 9)
    y, (dgate, dup) = pulled(swiglu, dy, gate, up)
    write("swiglu", dict(gate=gate, up=up, y=y, dy=dy, dgate=dgate, dup=dup))


def write_loss():
    h, w, targets, scale = normal(7, 5), normal(13, 5), np.array([2, -1, 12, 0, 7, -1, 7]), 0.375
    dh, dw = jax.grad(lambda a, b: scale * loss_sum(a, b, targets)[0], argnums=(0, 1))(h, w)
    loss, lse = loss_sum(h, w, targets)
    lse = np.where(targets >= 0, lse, 0)                   # rows without a target are left out
    write("loss", dict(h=h, w=w, targets=targets, scale=[scale], loss=[loss], lse=lse, dh=dh, dw=dw))


ADAMW = dict(lr=0.01, beta1=f32(0.9), beta2=f32(0.95), eps=f32(1e-8), decay=f32(0.1))


def write_adamw():
    """Ten steps with the clip factor that each step was given; attributes in the order of the engine's record."""
    w = normal(6)
    grads, clip = normal(10, 6), np.linspace(0.25, 1.0, 10)
    m, v, trace = np.zeros(6), np.zeros(6), []
    out = dict(w=w, grads=grads, clip=clip, attr=[ADAMW[k] for k in ("beta1", "beta2", "eps", "decay")], lr=[ADAMW["lr"]])
    for t in range(10):
        w, m, v = adamw(w, m, v, grads[t] * clip[t], t + 1, **ADAMW)
        trace.append(np.stack([w, m, v]))
    out["trace"] = np.stack(trace)
    write("adamw", out)


# ---- a tiny dense model ------------------------------------------------------------------------------------------------
# Parameter k (its place in the list), element i (row-major):
#   s = sin(0.61803398875 * (double)(i * i) + 0.9 * k)
#   matrix: sqrt(2 / columns) * s      gain: 1 + 0.1 * s
# Tokens: (7 t t + 3 t + 1) mod 32 for row t of 20; documents are rows 0..11 and 12..19; the target of a row is the next
# token of its document, -1 in a document's last row. Loss = sum over trained rows / trained rows.
M = dict(W=32, D=16, F=24, layers=2, heads=2, nope=4, ext=4, v=6, kv_lora=8, theta=10000.0, interleaved=True,
         eps=f32(1e-5), kv_eps=f32(1e-6), T=20, docs=(12, 8))


def model_shapes():
    D, F, H = M["D"], M["F"], M["heads"]
    shapes = [("embed", (M["W"], D))]
    for L in range(M["layers"]):
        p = "layers.%d." % L
        shapes += [(p + "input_norm", (D,)), (p + "q", (H * (M["nope"] + M["ext"]), D)), (p + "kv_a", (M["kv_lora"] + M["ext"], D)),
                   (p + "kv_norm", (M["kv_lora"],)), (p + "kv_b", (H * (M["nope"] + M["v"]), M["kv_lora"])), (p + "o", (D, H * M["v"])),
                   (p + "post_norm", (D,)), (p + "gate", (F, D)), (p + "up", (F, D)), (p + "down", (D, F))]
    return shapes + [("norm", (D,)), ("head", (M["W"], D))]


def model_params():
    params = {}
    for k, (name, shape) in enumerate(model_shapes()):
        n = math.prod(shape)
        s = np.array([math.sin(0.61803398875 * float(i * i) + 0.9 * k) for i in range(n)]).reshape(shape)
        params[name] = 1 + 0.1 * s if len(shape) == 1 else math.sqrt(2 / shape[1]) * s
    return params


def model_data():
    T = M["T"]
    tokens = np.array([(7 * t * t + 3 * t + 1) % M["W"] for t in range(T)])
    start, targets, row = np.zeros(T, dtype=np.int64), np.full(T, -1), 0
    for n in M["docs"]:
        start[row:row + n] = row
        targets[row:row + n - 1] = tokens[row + 1:row + n]
        row += n
    return tokens, start, np.arange(T), targets


def model_hidden(p, tokens, start, pos):
    H, nope, ext, v, c = M["heads"], M["nope"], M["ext"], M["v"], M["kv_lora"]
    x = p["embed"][tokens]
    for L in range(M["layers"]):
        w = lambda name: p["layers.%d.%s" % (L, name)]  # noqa: E731,B023
        h = rmsnorm(x, w("input_norm"), M["eps"])
        q = rope(h @ w("q").T, pos, start, H, nope, ext, M["theta"], M["interleaved"])
        a = h @ w("kv_a").T
        kr = rope(a[:, c:], pos, start, 1, 0, ext, M["theta"], M["interleaved"])
        kv = rmsnorm(a[:, :c], w("kv_norm"), M["kv_eps"]) @ w("kv_b").T
        o, _ = attention(q, kv, kr, start, pos, H, nope, ext, v, f32((nope + ext) ** -0.5))
        x = x + o @ w("o").T
        h = rmsnorm(x, w("post_norm"), M["eps"])
        x = x + swiglu(h @ w("gate").T, h @ w("up").T) @ w("down").T
    return rmsnorm(x, p["norm"], M["eps"])


def write_model():
    params, (tokens, start, pos, targets) = model_params(), model_data()
    n_trained = int((targets >= 0).sum())

    @jax.jit
    def mean_loss(p):
        return loss_sum(model_hidden(p, tokens, start, pos), p["head"], targets)[0] / n_trained

    step = jax.jit(jax.value_and_grad(mean_loss))
    loss, grads = step(params)
    logits = model_hidden(params, tokens, start, pos) @ params["head"].T
    out = dict(tokens=tokens, start=start, targets=targets, loss=[loss], logits=logits[:4])
    out["grad_norms"] = [np.sqrt(np.sum(np.square(grads[k]))) for k, _ in model_shapes()]
    out["d_embed"], out["d_head_row3"] = grads["embed"], grads["head"][3]
    for key, max_norm in (("losses", 0.0), ("losses_clip", 1.0)):
        w = {k: jnp.asarray(x) for k, x in params.items()}
        m = {k: jnp.zeros_like(x) for k, x in w.items()}
        v = {k: jnp.zeros_like(x) for k, x in w.items()}
        losses, norms = [], []
        for t in range(10):
            loss, grads = step(w)
            norm = float(np.sqrt(sum(np.sum(np.square(g)) for g in grads.values())))
            clip = min(1.0, max_norm / (norm + 1e-6)) if max_norm > 0 else 1.0
            losses.append(loss)
            norms.append(norm)
            for k in w:                                    # gains are not decayed
                hyper = dict(ADAMW, decay=ADAMW["decay"] if w[k].ndim > 1 else 0.0)
                w[k], m[k], v[k] = adamw(w[k], m[k], v[k], grads[k] * clip, t + 1, **hyper)
        losses.append(step(w)[0])                          # after the tenth step
        out[key], out[key.replace("losses", "norms")] = losses, norms
    write("tiny_dense", out)
    print("tiny_dense", [float(x) for x in out["losses"]], [float(x) for x in out["norms"]])


# ---- what sparse models are made of (spec/model.md, 3.1 to 3.7 and 5), written from the equations alone ------------------
def attn_res(rows, proj, norm, eps):
    """3.1: a softmax over the rows of each token, of normalised rows times the query, mixes the un-normalised rows."""
    V = jnp.stack(rows)
    k = V / jnp.sqrt(jnp.mean(V * V, axis=-1, keepdims=True) + eps)
    p = jax.nn.softmax(jnp.einsum("itd,d->it", k, norm * proj[0]), axis=0)
    return jnp.einsum("it,itd->td", p, V)


def situ(a, b, beta, linear_beta):
    return beta * jnp.tanh(a / beta) * jax.nn.sigmoid(a) * linear_beta * jnp.tanh(b / linear_beta)


def layernorm(x, w, b, eps):
    m = jnp.mean(x, axis=-1, keepdims=True)
    return w * (x - m) / jnp.sqrt(jnp.mean((x - m) ** 2, axis=-1, keepdims=True) + eps) + b


def short_conv(x, w, start, pos, hist=None):
    """3.2: row by row; inputs of the same document only; hist: the inputs before row 0. Idle rows are zero and leave no trace."""
    W, rows = w.shape[2], []
    for t in range(x.shape[0]):
        if start[t] > pos[t]:
            rows.append(jnp.zeros(x.shape[1]))
            continue
        pre = jnp.zeros(x.shape[1])
        for j in range(W):
            back = W - 1 - j
            if back > pos[t] - start[t]:
                continue
            pre = pre + w[:, 0, j] * (x[t - back] if t >= back else hist[W - 1 + t - back])
        rows.append(jax.nn.silu(pre))
    return jnp.stack(rows)


def kda(q, k, v, z, beta, gate, A_log, dt_bias, o_norm, start, pos, heads, lower_bound, eps, state=None):
    """3.2: the plain recurrence, one token after another. lower_bound None: the softplus form. Returns y and the last state [h][v][k]."""
    T, P = q.shape
    d = P // heads
    S, rows = jnp.zeros((heads, d, d)) if state is None else jnp.swapaxes(state, 1, 2), []
    unit = lambda x: x / jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)  # noqa: E731
    for t in range(T):
        if start[t] > pos[t]:
            rows.append(jnp.zeros(P))
            continue
        if pos[t] == start[t]:
            S = jnp.zeros((heads, d, d))
        split = lambda x: x[t].reshape(heads, d)  # noqa: E731,B023
        qt, kt, vt, u = unit(split(q)), unit(split(k)), split(v), split(z) + dt_bias.reshape(heads, d)
        a = jnp.exp(A_log)[:, None]
        g = -a * jax.nn.softplus(u) if lower_bound is None else lower_bound * jax.nn.sigmoid(a * u)
        S = jnp.exp(g)[:, :, None] * S
        delta = vt - jnp.einsum("hkv,hk->hv", S, kt)
        S = S + jax.nn.sigmoid(beta[t])[:, None, None] * kt[:, :, None] * delta[:, None, :]
        o = d ** -0.5 * jnp.einsum("hkv,hk->hv", S, qt)
        y = o / jnp.sqrt(jnp.mean(o * o, axis=-1, keepdims=True) + eps) * o_norm * jax.nn.sigmoid(split(gate))
        rows.append(y.reshape(P))
    return jnp.stack(rows), jnp.swapaxes(S, 1, 2)


def chosen(score, bias, k, groups, top_groups):
    """3.5: experts of one token in ascending order, and the (k+1)-th biased score of those that might have been chosen."""
    biased = np.asarray(score) + bias
    allowed = np.ones(len(biased), bool)
    if groups > 1:
        of_group = np.sort(biased.reshape(groups, -1), axis=1)[:, -2:].sum(axis=1)
        best = sorted(range(groups), key=lambda i: (-of_group[i], i))[:top_groups]
        allowed = np.repeat([i in best for i in range(groups)], len(biased) // groups)
    order = sorted(np.flatnonzero(allowed), key=lambda e: (-biased[e], e))
    return sorted(order[:k]), biased[order[min(k, len(order) - 1)]]


def moe(logits, x, w1, w3, w2, bias, idle, k, softmax, groups, top_groups, renorm, scale, act):
    """3.5: router and routed experts as one function. Returns u, and the routes for inspection."""
    u, idx, ps, alphas = [], [], [], []
    for t in range(x.shape[0]):
        if idle[t]:
            u.append(jnp.zeros(x.shape[1]))
            idx.append([-1] * k)
            ps.append(jnp.zeros(k))
            alphas.append(0.0)
            continue
        s = jax.nn.softmax(logits[t]) if softmax else jax.nn.sigmoid(logits[t])
        picks, alpha = chosen(jax.lax.stop_gradient(s), bias, k, groups, top_groups)
        total = sum(s[e] for e in picks) + 1e-20
        p = [scale * s[e] / (total if renorm else 1.0) for e in picks]
        u.append(sum(p[i] * (w2[e] @ act(w1[e] @ x[t], w3[e] @ x[t])) for i, e in enumerate(picks)))
        idx.append(picks)
        ps.append(jnp.stack(p))
        alphas.append(alpha)
    return jnp.stack(u), (np.array(idx), jnp.stack(ps), np.array(alphas))


def muon(W, M, g, lr, mu, nesterov, scale, decay, block_rows):
    """5: momentum, Newton-Schulz of each block, a step of scale sqrt(max(rows, columns)) O."""
    M = mu * M + g
    G = g + mu * M if nesterov else M
    out = W.copy()
    for r in range(0, W.shape[0], block_rows):
        X = G[r:r + block_rows]
        tall = X.shape[0] > X.shape[1]
        X = X.T if tall else X
        X = X / (np.linalg.norm(X) + 1e-7)
        for _ in range(5):
            A = X @ X.T
            X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
        O = X.T if tall else X
        out[r:r + block_rows] -= lr * (scale * np.sqrt(max(O.shape)) * O + decay * W[r:r + block_rows])
    return out, M


def write_attn_res():
    T, D, out = 5, 9, {}
    for n in (1, 4):
        rows, proj, norm, dh = [normal(T, D) * (i + 1) for i in range(n)], normal(1, D), 1 + 0.25 * normal(D), normal(T, D)
        h, grads = pulled(lambda *a: attn_res(a[:-2], a[-2], a[-1], f32(1e-5)), dh, *rows, proj, norm)
        tensors = dict(proj=proj, norm=norm, h=h, dh=dh, dproj=grads[n], dnorm=grads[n + 1])
        for i in range(n):
            tensors["v%d" % i], tensors["dv%d" % i] = rows[i], grads[i]
        out.update({"%s_n%d" % (k, n): x for k, x in tensors.items()})
    write("attn_res", out)


def write_gate():
    o, logit, dy = normal(4, 9), 3 * normal(4, 9), normal(4, 9)
    y, (do, dlogit) = pulled(lambda a, b: a * jax.nn.sigmoid(b), dy, o, logit)
    write("gate", dict(o=o, logit=logit, y=y, dy=dy, do=do, dlogit=dlogit))


def write_situ():
    gate, up, dy = 4 * normal(4, 9), 20 * normal(4, 9), normal(4, 9)
    y, (dgate, dup) = pulled(lambda a, b: situ(a, b, 4.0, 25.0), dy, gate, up)
    write("situ", dict(gate=gate, up=up, y=y, dy=dy, dgate=dgate, dup=dup))


def write_layernorm():
    x, w, b, dy = 2 + normal(6, 10), normal(10), normal(10), normal(6, 10)
    y, (dx, dw, db) = pulled(lambda *a: layernorm(*a, f32(1e-5)), dy, x, w, b)
    write("layernorm", dict(x=x, w=w, b=b, y=y, y_plain=y - b, dy=dy, dx=dx, dw=dw, db=db))


def write_short_conv():
    start, pos = np.array([0, 1, 1, 1, 1, 1, 6, 6, 6, 10]), np.arange(10)      # one token, five, three, an idle row
    x, w, dy = normal(10, 6), normal(6, 1, 4), normal(10, 6)
    y, (dx, dw) = pulled(lambda a, b: short_conv(a, b, start, pos), dy, x, w)
    out = dict(start=start, pos=pos, x=x, w=w, y=y, dy=dy, dx=dx, dw=dw)
    # generation: two rows of a document that has one earlier token, then an idle row
    start, pos, x, hist = np.array([4, 4, 1]), np.array([5, 6, 0]), normal(3, 6), normal(3, 6)
    y = short_conv(x, w, start, pos, hist)
    out.update(start_gen=start, pos_gen=pos, x_gen=x, hist_gen=hist, y_gen=y, hist_new=np.concatenate([hist[2:], x[:2]]))
    write("short_conv", out)


def write_kda():
    H, d = 2, 16
    start, pos = np.array([0, 1, 1, 1, 1, 1, 1, 7, 7, 10]), np.arange(10)      # one token, six, two, an idle row
    T = len(start)
    names = ("q", "k", "v", "z", "beta", "gate", "A_log", "dt_bias", "o_norm")
    out = dict(start=start, pos=pos)
    for form, bound in (("bounded", -5.0), ("softplus", None)):
        args = [normal(T, H * d), normal(T, H * d), normal(T, H * d), 2 * normal(T, H * d), 2 * normal(T, H), normal(T, H * d),
                0.5 * normal(H), normal(H * d), 1 + 0.25 * normal(d)]
        dy = normal(T, H * d)
        y, grads = pulled(lambda *a: kda(*a, start, pos, H, bound, f32(1e-5))[0], dy, *args)  # noqa: B023
        tensors = dict(zip(names, args), y=y, dy=dy, **{"d" + n: x for n, x in zip(names, grads)})
        out.update({"%s_%s" % (n, form): x for n, x in tensors.items()})
    # generation, bounded: three rows of a document with earlier tokens, an idle row; the state goes in and comes out
    start, pos, state = np.array([2, 2, 2, 1]), np.array([7, 8, 9, 0]), normal(H, d, d)
    rows = [normal(4, H * d) for _ in range(4)] + [normal(4, H), normal(4, H * d)]
    y, last = kda(*rows, *[out[n + "_bounded"] for n in names[6:]], start, pos, H, -5.0, f32(1e-5), state)
    out.update(start_gen=start, pos_gen=pos, state_gen=state, y_gen=y, state_new=last, **{n + "_gen": x for n, x in zip(names, rows)})
    write("kda", out)


def write_moe():
    T, E, L, F, out = 6, 8, 5, 4, {}
    idle = np.array([0, 0, 0, 0, 1, 0], bool)
    out["start"], out["pos"] = np.where(idle, T, 0), np.arange(T)
    for form in ("sigmoid", "softmax"):
        soft = form == "softmax"
        k = 2 if soft else 3
        logits, bias, x = normal(T, E), 0.25 * normal(E), normal(T, L)
        w1, w3, w2, du = normal(E, F, L), normal(E, F, L), normal(E, L, F), normal(T, L)
        act = (lambda a, b: situ(a, b, 4.0, 25.0)) if soft else swiglu
        f = lambda *a: moe(*a, bias, idle, k, soft, 4 if soft else 1, 2, not soft, f32(1.5 if soft else 2.446), act)  # noqa: E731,B023
        u, grads = pulled(lambda *a: f(*a)[0], du, logits, x, w1, w3, w2)
        idx, p, alpha = f(jnp.asarray(logits), jnp.asarray(x), w1, w3, w2)[1]
        tensors = dict(logits=logits, bias=bias, x=x, w1=w1, w3=w3, w2=w2, idx=idx, p=p, alpha=alpha, u=u, du=du,
                       dlogits=grads[0], dx=grads[1], dw1=grads[2], dw3=grads[3], dw2=grads[4])
        out.update({"%s_%s" % (n, form): x for n, x in tensors.items()})
    write("moe", out)


def adapted(w, a, b, scale):
    """Hu et al. 2021, 4.1: y = W x + s B (A x), of one expert's matrix."""
    return lambda e, x: w[e] @ x + scale * (b[e] @ (a[e] @ x))


def write_experts_lora():
    """Routed experts with adapters of ranks 1, 3, 2 on w1, w3, w2; routes are given. idx -1: the pair has no expert."""
    mine = np.random.default_rng(41)                       # its own stream: the other files do not depend on it
    draw = lambda *n: np.round(mine.standard_normal(n) * 1024) / 1024  # noqa: E731
    T, E, L, F, k, ranks, out = 6, 5, 5, 4, 2, (1, 3, 2), {}
    scales = dict(swiglu=[f32(2), f32(0.5), f32(-0.7)], situ=[f32(0.3), f32(1), f32(4)])
    for form in ("swiglu", "situ"):
        act = (lambda a, b: situ(a, b, 4.0, 25.0)) if form == "situ" else swiglu
        idx = np.sort(np.stack([mine.permutation(E)[:k] for _ in range(T)]), axis=1)
        idx[3] = -1
        p, x, du = draw(T, k), draw(T, L), draw(T, L)
        w1, w3, w2 = draw(E, F, L), draw(E, F, L), draw(E, L, F)
        low = [draw(*n) for r, (i, o) in zip(ranks, ((L, F), (L, F), (F, L))) for n in ((E, r, i), (E, o, r))]

        def f(x, p, w1, w3, w2, *low, idx=idx, act=act, s=scales[form]):
            m1, m3, m2 = (adapted(w, low[2 * i], low[2 * i + 1], s[i]) for i, w in enumerate((w1, w3, w2)))
            return jnp.stack([sum([p[t, i] * m2(e, act(m1(e, x[t]), m3(e, x[t]))) for i, e in enumerate(idx[t]) if e >= 0], jnp.zeros(L)) for t in range(T)])

        u, grads = pulled(f, du, x, p, w1, w3, w2, *low)
        names = ["x", "p", "w1", "w3", "w2", "a1", "b1", "a3", "b3", "a2", "b2"]
        tensors = dict(zip(names, [x, p, w1, w3, w2, *low]), idx=idx, du=du, u=u, scale=scales[form])
        tensors.update({"d" + n: g for n, g in zip(names, grads)})
        out.update({"%s_%s" % (n, form): v for n, v in tensors.items()})
    write("experts_lora", out)


def write_muon():
    """Ten steps with the clip factor that each step was given: heads of 4 x 10 with Nesterov, and one tall matrix without."""
    out, lr = dict(lr=[0.01], attr=[f32(0.95), f32(0.2), f32(0.1)], clip=np.linspace(0.25, 1.0, 10)), 0.01
    for form, shape, block, nesterov in (("heads", (8, 10), 4, True), ("tall", (9, 4), 9, False)):
        W, grads = normal(*shape), normal(10, *shape)
        M, trace = np.zeros(shape), []
        out["w_" + form], out["grads_" + form] = W, grads
        for t in range(10):
            W, M = muon(W, M, grads[t] * out["clip"][t], lr, f32(0.95), nesterov, f32(0.2), f32(0.1), block)
            trace.append(np.stack([W, M]))
        out["trace_" + form] = np.stack(trace)
    write("muon", out)


def balance_update(s, bias, alpha, k, bins, ema):
    """3.7: histogram of required biases, its k/E quantile by interpolation, the mean taken off. s, alpha: of counted tokens."""
    E, m = s.shape[1], s.shape[0]
    edges = np.linspace(bias.min() - 1, bias.max() + 1, bins + 1)
    hist = np.stack([np.histogram(alpha - s[:, e], edges)[0] for e in range(E)])
    new = [np.interp(m * k / E, np.concatenate([[0], np.cumsum(hist[e])]), edges) for e in range(E)]
    new = ema * bias + (1 - ema) * np.array(new)
    return hist, new - new.mean()


def aux_loss(logits, idx, idle, row, coef, softmax):
    """A8, for packed rows, weighted with their tokens."""
    total, (T, E), k = 0.0, logits.shape, idx.shape[1]
    for r in range(0, T, row):
        live = [t for t in range(r, r + row) if not idle[t]]
        if not live:
            continue
        s = jnp.stack([jax.nn.softmax(logits[t]) if softmax else jax.nn.sigmoid(logits[t]) for t in live])
        share = jnp.mean(s / jnp.sum(s, axis=1, keepdims=True), axis=0)
        count = np.bincount(idx[live].reshape(-1), minlength=E)
        total = total + len(live) * coef * jnp.sum(E / (k * len(live)) * count * share)
    return total


def write_balance():
    mine = np.random.default_rng(37)                       # its own stream: the other files do not depend on it
    T, E, k, row, out = 48, 6, 2, 12, {}
    logits, bias = np.round(mine.standard_normal((T, E)) * 1024) / 1024 + np.linspace(0.75, -0.75, E), np.round(mine.standard_normal(E) * 64) / 1024
    idle = np.arange(T) % 12 >= np.repeat([12, 9, 1, 0], 12)
    s = 1 / (1 + np.exp(-logits))
    routes = [chosen(s[t], bias, k, 1, 1) for t in range(T)]
    idx, alpha = np.array([r[0] for r in routes]), np.array([r[1] for r in routes])
    idx[idle], alpha[idle] = -1, 0
    hist, new = balance_update(s[~idle], bias, alpha[~idle], k, 20, f32(0.25))
    load = np.bincount(idx[~idle].reshape(-1), minlength=E)
    out.update(logits=logits, bias=bias, start=np.where(idle, T, 0), pos=np.arange(T), idx=idx, alpha=alpha, load=load, hist=hist, new=new)
    for form in ("sigmoid", "softmax"):
        f = lambda x: aux_loss(x, idx, idle, row, f32(0.3), form == "softmax")  # noqa: E731,B023
        out["aux_" + form], out["dlogits_" + form] = f(jnp.asarray(logits)), jax.grad(f)(jnp.asarray(logits))
    write("balance", out)


if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    for make in (write_embedding, write_linear, write_rmsnorm, write_rope, write_attention, write_swiglu, write_loss, write_adamw, write_model,
                 write_attn_res, write_gate, write_situ, write_layernorm, write_short_conv, write_kda, write_moe, write_experts_lora, write_muon,
                 write_balance):
        make()
