"""A reference dump of a checkpoint directory by transformers, for `cadre onboard DIR --out WORK --verify REF.safetensors`.

    models.py DIR REF.safetensors [--tokens 48] [--batch 2] [--seed 1]

Weights are loaded in F32 and attention is eager. Names of the dump (doc/onboarding.md): input_ids [B, S], logits, hidden_states.{layer} (what a
decoder layer gives, before the last norm), router.{layer}.indices and .weights (what the experts of a layer are called with).
Needs torch, transformers (5.24: kimi_linear, deepseek_v2, deepseek_v3, deepseek_v32, glm_moe_dsa) and safetensors.
"""
import argparse
import sys
from pathlib import Path

sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]      # names here would hide packages

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402


def earliest_of_equals(indexer):
    """Keys that no head of an indexer likes all score 0: torch.topk takes any of them, the engine the earliest, and here so does transformers."""
    forward, topk = indexer.forward, torch.Tensor.topk

    def stable(x, k, dim=-1):
        out = x.sort(dim=dim, descending=True, stable=True)
        return torch.return_types.topk((out.values[..., :k], out.indices[..., :k]))

    def run(*args, **kw):
        torch.Tensor.topk = stable
        try:
            return forward(*args, **kw)
        finally:
            torch.Tensor.topk = topk
    indexer.forward = run


def shaped(x, batch, length):
    return x.reshape(batch, length, x.shape[-1]).contiguous()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("dir")
    p.add_argument("out")
    p.add_argument("--tokens", type=int, default=48)
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    torch.manual_seed(a.seed)
    torch.set_grad_enabled(False)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(a.dir, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    if info["missing_keys"] or info["mismatched_keys"]:
        sys.exit(f"{a.dir}: transformers finds no {sorted(info['missing_keys'])[:4]}, other shapes {sorted(info['mismatched_keys'])[:4]}")
    model = model.float().eval()
    for m in model.modules():
        if type(m).__name__.endswith("Indexer"):
            earliest_of_equals(m)
    ids = torch.randint(0, min(256, model.config.vocab_size), (a.batch, a.tokens))
    dump = {"input_ids": ids.to(torch.int32)}

    def hidden(layer):
        def hook(module, args, out):
            x = out[0] if isinstance(out, tuple) else out
            dump[f"hidden_states.{layer}"] = x.detach().float().reshape(a.batch, a.tokens, -1).contiguous().clone()
        return hook

    def routes(layer):
        def hook(module, args, kwargs):
            index, weight = (args[1], args[2]) if len(args) >= 3 else (kwargs["top_k_index"], kwargs["top_k_weights"])
            dump[f"router.{layer}.indices"] = shaped(index.to(torch.int32), a.batch, a.tokens).clone()
            dump[f"router.{layer}.weights"] = shaped(weight.float(), a.batch, a.tokens).clone()
        return hook

    for i, layer in enumerate(model.model.layers):
        layer.register_forward_hook(hidden(i))
        experts = getattr(layer.mlp, "experts", None)
        if experts is not None:
            experts.register_forward_pre_hook(routes(i), with_kwargs=True)
    dump["logits"] = model(input_ids=ids, use_cache=False).logits.float().contiguous().clone()
    save_file(dump, a.out, metadata={"format": "pt", "made_by": f"transformers {transformers.__version__}"})
    print(f"{a.out}: {len(dump)} tensors, {a.batch} x {a.tokens} ids, {type(model).__name__}")


if __name__ == "__main__":
    main()
