"""PEFT and transformers against our adapter files, on tiny random models of the classes of kimi_linear and deepseek_v3.

    peft_adapter.py check BUILD            (peft 0.21, transformers 5.24)

1. A LoRA run of ours with adapters on every linear and routed expert, exported as peft-stacked, is loaded by PEFT without a missing or unexpected
   key; merged there, every weight moves by scale B A as our per-expert file has it, and nothing else moves.
2. A random adapter that PEFT saves (target_modules, target_parameters, rank_pattern, rsLoRA) binds key by key in `cadre verify-adapter`; converted
   by `cadre export` to one pair for each expert it has the deltas that PEFT merges.
3. On a checkpoint of `cadre toy` and the run's final/, transformers and PEFT give the loss of `cadre eval` on one document.
The file's name is not peft.py, which would hide the package.
"""
import json
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).resolve().parent]      # names here would hide packages that transformers imports

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, DeepseekV3Config, KimiLinearConfig

TEXT = "".join(f"line {i}: the {w} of {i * i} is {w[::-1]}.\n" for i, w in enumerate("hacker kludge foo bar baz quux cruft frob".split() * 60))

KIMI = dict(vocab_size=512, hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=2,
            n_shared_experts=1, kv_lora_rank=32, qk_rope_head_dim=16, v_head_dim=16, qk_nope_head_dim=16, num_experts=8, num_experts_per_tok=2,
            first_k_dense_replace=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            linear_attn_config=dict(kda_layers=[1, 2, 3], full_attn_layers=[4], num_heads=2, head_dim=32, short_conv_kernel_size=4))


V3 = dict(vocab_size=512, hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
          n_shared_experts=1, n_routed_experts=16, num_experts_per_tok=2, n_group=4, topk_group=2, q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=16, v_head_dim=16,
          qk_nope_head_dim=16, first_k_dense_replace=1, pad_token_id=0, bos_token_id=1, eos_token_id=2)


N = [0]


def run(*args, ok=0):
    r = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=300)
    if r.returncode != ok:
        sys.exit(f"{' '.join(map(str, args))}: {r.returncode}\n{r.stdout}{r.stderr}")
    return r.stdout


def train(cadre, work, name, model, lora, more="", tokenizer="byte"):
    (work / "text.txt").write_text(TEXT)
    (work / f"{name}.yaml").write_text(
        f"version: 1\nname: {name}\nmodel: {{path: {model}}}\ndata: {{train: {work}/text.txt, tokenizer: {tokenizer}}}\noutput_dir: {work}/{name}\n"
        "train: {steps: 3, sequence_length: 128, micro_batch_tokens: 128, global_batch_tokens: 256, indexer: frozen}\n"
        f"optimizer: {{learning_rate: 1.0e-2}}\nlora: {lora}\nmachine: {{threads: 1}}\n{more}")
    run(cadre, "train", work / f"{name}.yaml")
    return work / name


def by_pattern(patterns, name, otherwise):
    for key, value in patterns.items():
        if re.match(rf"(.*\.)?({key})$", name):
            return value
    return otherwise


def deltas(folder):
    """scale B A of every 2-D pair, by module name."""
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    out = {}
    for key, a in tensors.items():
        if not key.endswith(".lora_A.weight"):
            continue
        module = key[len("base_model.model."):-len(".lora_A.weight")]
        rank = by_pattern(config["rank_pattern"], module, config["r"])
        assert a.shape[0] == rank, key
        alpha = by_pattern(config["alpha_pattern"], module, config["lora_alpha"])
        scale = alpha / rank ** (0.5 if config["use_rslora"] else 1)
        out[module] = scale * tensors[key.replace("lora_A", "lora_B")].double() @ a.double()
    return out


def in_class(module):
    """Name in transformers' class, and which expert and half of a fused parameter."""
    name = module.replace(".block_sparse_moe.", ".mlp.").replace(".self_attn.f_", ".self_attn.forget_gate.f_")
    x = re.match(r"(.*\.experts)\.(\d+)\.(w1|w2|w3|gate_proj|up_proj|down_proj)$", name)
    if not x:
        return name + ".weight", None, None
    down = x[3] in ("w2", "down_proj")
    return x[1] + (".down_proj" if down else ".gate_up_proj"), int(x[2]), None if down else 0 if x[3] in ("w1", "gate_proj") else 1


def compare(base, merged, want, what):
    worst, touched = 0.0, set()
    for module, delta in want.items():
        name, expert, half = in_class(module)
        moved = merged[name].double() - base[name].double()
        if expert is not None:
            moved = moved[expert]
        if half is not None:
            moved = moved[half * delta.shape[0]:(half + 1) * delta.shape[0]]
        touched.add(name)
        worst = max(worst, ((moved - delta).abs().max() / delta.abs().max()).item())
    for name in base:
        assert name in touched or torch.equal(base[name], merged[name]), f"{what}: {name} moved"
    assert worst < 2e-6, f"{what}: {worst}"
    N[0] += 1
    print(f"{what}: {len(want)} modules, worst relative difference of a delta {worst:.1e}")


def weights(model):
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def ours_in_peft(cadre, work, name, model, config, lora):
    source = train(cadre, work, name, model, lora)
    run(cadre, "export", source, "--format", "peft-stacked", "--out", work / f"{name}-stacked")
    run(cadre, "export", source, "--format", "peft", "--out", work / f"{name}-each", "--allow-drop")
    torch.manual_seed(0)
    m = AutoModelForCausalLM.from_config(config).float()
    base = weights(m)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pm = PeftModel.from_pretrained(m, work / f"{name}-stacked")
    for w in said:
        assert "missing" not in str(w.message).lower() and "unexpected" not in str(w.message).lower(), w.message
    compare(base, weights(pm.merge_and_unload()), deltas(work / f"{name}-each"), f"ours in PEFT, {name}")


def dense_is_lost(cadre, work):
    """What formats.c says of PEFT and DeepSeek's classes: adapters of dense and shared layers find no module, and PEFT says so."""
    source = train(cadre, work, "v3-dense", "tiny-v3", "{rank: 4, targets: [dense_mlp, shared_experts]}")
    r = subprocess.run([str(cadre), "export", str(source), "--format", "peft", "--out", str(work / "v3-dense-x")], capture_output=True, text=True)
    assert r.returncode == 1 and "PEFT moves targets of this name to the experts" in r.stderr, r.stderr
    run(cadre, "export", source, "--format", "peft", "--out", work / "v3-dense-x", "--allow-drop")
    m = AutoModelForCausalLM.from_config(DeepseekV3Config(**V3)).float()
    base = weights(m)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        merged = weights(PeftModel.from_pretrained(m, work / "v3-dense-x").merge_and_unload())
    assert all(torch.equal(base[n], merged[n]) for n in base), "PEFT binds dense layers of DeepSeek now: mend the rows in formats.c"
    print("DeepSeek: PEFT loses adapters of dense and shared layers, as formats.c says")


def peft_in_ours(cadre, work, name, model, config, lora):
    torch.manual_seed(1)
    m = AutoModelForCausalLM.from_config(config).float()
    base = weights(m)
    pm = get_peft_model(m, LoraConfig(task_type="CAUSAL_LM", base_model_name_or_path=model, **lora))
    for n, p in pm.named_parameters():
        if "lora_B" in n:
            torch.nn.init.normal_(p, std=0.05)
    pm.save_pretrained(work / f"{name}-saved")
    if name.endswith("one"):
        assert not any("base_layer" in k for k in load_file(work / f"{name}-saved" / "adapter_model.safetensors"))
    run(cadre, "verify-adapter", work / f"{name}-saved", model, "--for", "peft")
    run(cadre, "export", work / f"{name}-saved", "--base", model, "--format", "peft", "--out", work / f"{name}-each", "--allow-drop")
    compare(base, weights(pm.merge_and_unload()), deltas(work / f"{name}-each"), f"PEFT's in ours, {name}")


def same_loss(cadre, work, family, lora):
    toy, text = work / f"toy-{family}", TEXT[:120].encode()
    run(cadre, "toy", family, "--out", toy)
    source = train(cadre, work, f"on-{family}", toy, lora, more="precision: {compute: f32}\n", tokenizer="model")
    (work / "short.txt").write_bytes(text)
    ours = json.loads(run(cadre, "eval", source, "--data", work / "short.txt", "--json"))["result"]["loss"]
    ids = torch.tensor([list(text) + [257]])                  # bytes, and the end of the document
    m = AutoModelForCausalLM.from_pretrained(toy, dtype=torch.float32)
    losses = []
    for model in (m, lambda: PeftModel.from_pretrained(m, source / "final")):
        with torch.no_grad():
            losses.append((model if model is m else model())(input_ids=ids, labels=ids).loss.item())
    assert abs(losses[1] - ours) < 1e-5 * ours and abs(losses[0] - ours) > 1e-2, (losses, ours)
    N[0] += 1
    print(f"{family}: base + adapter in transformers and PEFT {losses[1]:.7f}, here {ours:.7f}; the base alone {losses[0]:.4f}")


def peers(cadre, work):
    kimi = KimiLinearConfig(**KIMI)
    every = "{rank: 4, experts: per_expert, targets: [attention, kda_gates, dense_mlp, shared_experts]}"
    ours_in_peft(cadre, work, "kimi", "tiny-linear", kimi, every)
    ours_in_peft(cadre, work, "kimi-uneven", "tiny-linear", kimi, "{rank: 4, experts: per_expert, targets: [attention, dense_mlp], layers: 0-2, rank_pattern: {o_proj: 8}, "
                 "alpha_pattern: {q_proj: 3, w1: 5}}")
    ours_in_peft(cadre, work, "kimi-rs", "tiny-linear", kimi, "{rank: 8, experts: none, scaling: rslora, targets: [attention]}")
    ours_in_peft(cadre, work, "v3", "tiny-v3", DeepseekV3Config(**V3), "{rank: 4, experts: per_expert, targets: [attention]}")
    dense_is_lost(cadre, work)
    same_loss(cadre, work, "kimi_linear", every)
    same_loss(cadre, work, "deepseek_v3", "{rank: 4, experts: per_expert, targets: [attention]}")
    both = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    peft_in_ours(cadre, work, "saved", "tiny-linear", kimi, dict(r=4, lora_alpha=6, target_modules=["o_proj", "gate_proj", "f_a_proj"], target_parameters=both))
    peft_in_ours(cadre, work, "saved-pattern", "tiny-linear", kimi, dict(r=4, lora_alpha=6, use_rslora=True, target_modules=r".*self_attn\.[qkv]_proj", target_parameters=both,
                                                                         rank_pattern={r".*\.down_proj": 2}, alpha_pattern={"q_proj": 9}))
    peft_in_ours(cadre, work, "saved-one", "tiny-linear", kimi, dict(r=3, lora_alpha=6, target_modules=["o_proj"], target_parameters=both[:1]))


def main():
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as tmp:
        peers(Path(sys.argv[2]).resolve() / "cadre", Path(tmp))
    print(f"{N[0]} passed, 0 failed")


main()
