"""transformers against our models: toys of kimi_linear, deepseek_v3 and deepseek_v32 (linears in BF16 and FP8), deepseek_v2, glm_moe_dsa, in float32.

    parity.py check BUILD                  logits, residual streams, routes and their weights, loss, every gradient, over T ids
    parity.py golden BUILD                 writes test/golden/models/hf_FAMILY.safetensors, which test/test_parity.c compares with

The toys' weights are those of test/parity_rig.h: norms, biases and decays differ from their first values, so that each matters. Ours come from
BUILD/parity_dump. KDA and its convolution run in transformers' own PyTorch form, without the packages of kernels.
The peer's values are also written as a reference dump (models.py has the names), which `cadre onboard --verify` must
confirm. An error is a root mean square of differences over that of the reference. A FP8 directory is expanded here,
w = code scale over blocks of 128 x 128, rounded to BF16 as such releases are (and as ours is), before transformers loads it. Where keys of an indexer
score equal (no head likes them: 0), torch.topk takes any and the engine the earliest; here transformers is made to take the earliest too.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]      # names here would hide packages

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

FAMILIES = [("kimi_linear", "bf16"), ("deepseek_v3", "bf16"), ("deepseek_v3", "fp8"), ("deepseek_v32", "bf16"), ("deepseek_v32", "fp8"), ("deepseek_v2", "bf16"),
            ("glm_moe_dsa", "bf16")]
T, T_GOLDEN = 150, 24
TOL_FORWARD, TOL_GRAD = 1e-5, 3e-5
KEPT = {"kimi_linear": ["model.layers.0.self_attn.A_log", "model.layers.1.self_attn.dt_bias", "model.layers.2.self_attn.k_conv1d.weight",
                        "model.layers.1.self_attn.f_b_proj.weight",
                        "model.layers.3.self_attn.kv_a_layernorm.weight", "model.layers.3.self_attn.kv_b_proj.weight", "model.layers.2.block_sparse_moe.gate.weight",
                        "model.layers.0.self_attn.b_proj.weight", "model.layers.2.self_attn.g_a_proj.weight", "model.layers.1.self_attn.o_norm.weight"],
        "deepseek": ["model.layers.0.self_attn.q_a_layernorm.weight", "model.layers.1.self_attn.kv_a_proj_with_mqa.weight", "model.layers.2.self_attn.q_b_proj.weight",
                     "model.layers.1.mlp.gate.weight", "model.layers.2.post_attention_layernorm.weight", "model.norm.weight"]}


# ---- transformers ---------------------------------------------------------------------------------------------------------------------------
def expanded(directory, work):
    """A directory with FP8 blocks as a float32 one."""
    config = json.loads((directory / "config.json").read_text())
    if not config.pop("quantization_config", None):
        return directory
    out, tensors = Path(work) / (directory.name + "-f32"), {}
    for f in sorted(directory.glob("*.safetensors")):
        tensors.update(load_file(f))
    n = 0
    for name in [k for k in tensors if k.endswith("_scale_inv")]:
        scale, w = tensors.pop(name), tensors[name.removesuffix("_scale_inv")].float()
        wide = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:w.shape[0], :w.shape[1]]
        tensors[name.removesuffix("_scale_inv")] = (w * wide).bfloat16()
        n += 1
    assert n > 0
    out.mkdir(exist_ok=True)
    save_file({k: v.float().contiguous() for k, v in tensors.items()}, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config))
    return out


class Peer:
    """Forward and gradient of a directory in transformers, in the names of a dump."""

    def __init__(self, directory, ids):
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as work:
            how = dict(dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
            self.model, info = AutoModelForCausalLM.from_pretrained(expanded(Path(directory), work), **how)
        bad = {k: v for k, v in info.items() if v and k in ("missing_keys", "unexpected_keys", "mismatched_keys")}
        assert not bad, bad
        self.model.train(False)
        self.values = {"input_ids": ids.to(torch.int32)}
        base, hooks = self.model.model, []
        for i, layer in enumerate(base.layers):
            hooks.append(layer.register_forward_hook(self.keep(f"hidden_states.{i}")))
            if hasattr(layer.mlp, "gate"):
                hooks.append(layer.mlp.gate.register_forward_hook(self.route(i)))
        self.ties = 0
        for m in self.model.modules():
            if type(m).__name__.endswith("Indexer"):
                self.earliest_of_equals(m)
        out = self.model(input_ids=ids[None].long(), labels=ids[None].long(), use_cache=False)
        for h in hooks:
            h.remove()
        self.values["logits"] = out.logits[0].detach()
        self.loss = out.loss

    def earliest_of_equals(self, indexer):
        """The selection with ties broken as the engine does; counts the queries where this decides."""
        forward, topk = indexer.forward, torch.Tensor.topk

        def stable(x, k, dim=-1):
            out = x.sort(dim=dim, descending=True, stable=True)
            if k < x.shape[dim]:
                self.ties += int((out.values[..., k - 1].eq(out.values[..., k]) & out.values[..., k].isfinite()).sum())
            return torch.return_types.topk((out.values[..., :k], out.indices[..., :k]))

        def run(*args, **kw):
            torch.Tensor.topk = stable
            try:
                return forward(*args, **kw)
            finally:
                torch.Tensor.topk = topk
        indexer.forward = run

    def keep(self, name):
        def hook(_, __, y):
            self.values[name] = (y[0] if isinstance(y, tuple) else y).detach().reshape(self.values["input_ids"].numel(), -1)
        return hook

    def route(self, i):
        def hook(_, __, y):
            _, weights, indices = y
            self.values[f"router.{i}.indices"], self.values[f"router.{i}.weights"] = indices.to(torch.int32), weights.detach()
        return hook

    def gradients(self, ours):
        """{name of ours: gradient}, shaped as ours; what has none in either is left out. ours: {name: tensor}."""
        self.loss.backward()
        theirs = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        used, out = set(), {}
        for name in ours:
            g, key = self.one(theirs, name)
            if key:
                used.add(key)
                out[name] = g.reshape(ours[name].shape)
        left = set(theirs) - used
        assert not left, f"gradients of transformers that nothing of ours is: {sorted(left)}"
        return out

    @staticmethod
    def one(theirs, name):
        """The engine's stacked experts and single convolutions out of what transformers joins; its further modules."""
        key = name.replace(".block_sparse_moe.", ".mlp.")
        key = re.sub(r"self_attn\.(f_a_proj|f_b_proj|dt_bias|A_log)", r"self_attn.forget_gate.\1", key)
        m = re.search(r"(.*\.experts)\.\{expert\}\.(w1|w2|w3|gate_proj|up_proj|down_proj)\.weight$", key)
        if m:
            if m[2] in ("w2", "down_proj"):
                return theirs[m[1] + ".down_proj"], m[1] + ".down_proj"
            both = theirs[m[1] + ".gate_up_proj"]
            half = both.shape[1] // 2
            return both[:, :half] if m[2] in ("w1", "gate_proj") else both[:, half:], m[1] + ".gate_up_proj"
        m = re.search(r"(.*\.self_attn)\.([qkv])_conv1d\.weight$", key)
        if m:
            return theirs[m[1] + ".conv1d.weight"].chunk(3)["qkv".index(m[2])], m[1] + ".conv1d.weight"
        return (theirs[key], key) if key in theirs else (None, None)


# ---- comparing --------------------------------------------------------------------------------------------------------------------------------
class Checks:
    passed = failed = 0

    def take(self, ok, what):
        self.passed += bool(ok)
        self.failed += not ok
        print(("ok    " if ok else "FAIL  ") + what)


def rms(a, b):
    a, b = a.double(), b.double()
    top = b.pow(2).mean().sqrt()
    return float(((a - b).pow(2).mean().sqrt() / top) if top > 0 else (a - b).abs().max())


def run(*args):
    r = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=300, cwd=ROOT)
    if r.returncode:
        sys.exit(f"{' '.join(map(str, args))}: {r.returncode}\n{r.stdout}{r.stderr}")
    return r.stdout


def routes_equal(ours, peer, i):
    """Same experts for every token, the same weights for the same expert."""
    a, b = ours[f"router.{i}.indices"].long(), peer[f"router.{i}.indices"].long()
    (a, ia), (b, ib) = a.sort(dim=-1), b.sort(dim=-1)
    if not torch.equal(a, b):
        return float("inf")
    return rms(ours[f"router.{i}.weights"].gather(1, ia), peer[f"router.{i}.weights"].gather(1, ib))


def compare(c, build, work, family, experts):
    name = f"{family} {experts}"
    toy, mine = Path(work) / name.replace(" ", "-"), Path(work) / "ours.safetensors"
    run(build / "parity_dump", "toy", family, toy, experts)
    run(build / "parity_dump", "run", toy, mine, T)
    ours = load_file(mine)
    peer = Peer(toy, ours["input_ids"])
    v = peer.values
    c.take(rms(ours["logits"], v["logits"]) < TOL_FORWARD, f"{name}: logits, error {rms(ours['logits'], v['logits']):.1e}")
    layers = [k for k in v if k.startswith("hidden_states.")]
    worst = max((rms(ours[k], v[k]), k) for k in layers)
    c.take(worst[0] < TOL_FORWARD, f"{name}: {len(layers)} layers, worst error {worst[0]:.1e} ({worst[1]})")
    routers = [int(k.split(".")[1]) for k in v if k.endswith(".indices")]
    worst = max(routes_equal(ours, v, i) for i in routers)
    c.take(worst < TOL_FORWARD, f"{name}: {len(routers)} routers, all routes equal, weights' worst error {worst:.1e}")
    d = abs(float(ours["loss"]) - peer.loss.item()) / peer.loss.item()
    c.take(d < TOL_FORWARD, f"{name}: loss {peer.loss.item():.6f}, relative difference {d:.1e}")
    mine = {k.removeprefix("grad/"): g for k, g in ours.items() if k.startswith("grad/")}
    theirs = peer.gradients(mine)
    rest = sorted(k for k in mine if k not in theirs and bool(mine[k].any()))
    c.take(not rest, f"{name}: gradients that transformers does not have: {rest or 'none'}")
    errors = sorted(((rms(mine[k], g), k) for k, g in theirs.items()), reverse=True)
    c.take(errors[0][0] < TOL_GRAD, f"{name}: {len(errors)} gradients, worst error {errors[0][0]:.1e} ({errors[0][1]})")
    for e, k in errors[:5] if errors[0][0] >= TOL_GRAD else []:
        print(f"      {e:.1e} {k}")
    if peer.ties:
        print(f"      {name}: {peer.ties} queries of the indexers chose among equal scores")
    return toy, v


def onboarded(c, build, work, name, toy, values):
    """The same values as a reference dump: cadre onboard confirms them, by routes of its own and by those given."""
    ref = Path(work) / "ref.safetensors"
    save_file({k: x.contiguous().clone() for k, x in values.items()}, ref)
    card = Path(work) / (toy.name + "-card")
    run(build / "cadre", "onboard", toy, "--out", card, "--verify", ref, "-q")
    items = [i for i in json.loads((card / "card.json").read_text())["items"] if "--verify" in i["command"] and "rms" in (i["unit"] or "")]
    bad = [f"{i['id']} {i['status']} {i['detail']}" for i in items if i["status"] != "verified"]
    c.take(len(items) == 3 and not bad, f"{name}: onboard --verify, {len(items)} items, worst {max((i['figure'] for i in items), default=9):.1e} {bad or ''}")


def check(build):
    c = Checks()
    with tempfile.TemporaryDirectory() as work:
        for family, experts in FAMILIES:
            toy, values = compare(c, build, work, family, experts)
            onboarded(c, build, work, f"{family} {experts}", toy, values)
    print(f"{c.passed} passed, {c.failed} failed")
    sys.exit(c.failed > 0)


def golden(build):
    for family, experts in FAMILIES:
        if (family, experts) == ("deepseek_v32", "fp8"):
            continue
        name = family + ("_fp8" if experts == "fp8" else "")
        with tempfile.TemporaryDirectory() as work:
            toy, mine = Path(work) / "toy", Path(work) / "ours.safetensors"
            run(build / "parity_dump", "toy", family, toy, experts)
            run(build / "parity_dump", "run", toy, mine, T_GOLDEN)
            ours = load_file(mine)
            peer = Peer(toy, ours["input_ids"])
            grads = peer.gradients({k.removeprefix("grad/"): g for k, g in ours.items() if k.startswith("grad/")})
            out = dict(peer.values, loss=peer.loss.detach().double().reshape(1))
            out.update({f"grad/{k}": grads[k] for k in KEPT.get(family, KEPT["deepseek"]) if k in grads})
            path = ROOT / "test/golden/models" / f"hf_{name}.safetensors"
            save_file({k: x.contiguous().clone() for k, x in out.items()}, path)
            print(f"{path.name}: {len(out)} tensors, {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("check", "golden"):
        (check if sys.argv[1] == "check" else golden)(Path(sys.argv[2]).resolve())
    else:
        sys.exit(__doc__)
