"""Writes test/golden/adapter.gguf with the PyPI package `gguf` (0.19): the adapter that gguf_bytes of test/test_adapter.c makes, from the same formula.
And test/golden/adapter_seed.bin, which fuzz_adapter begins with: an adapter_config.json, a zero byte, a safetensors file of all layouts.

    adapter_golden.py golden            writes both
    adapter_golden.py check BUILD       makes them again and compares
"""
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from safetensors.numpy import save

E, HIDDEN, WIDTH, ATTN = 4, 32, 24, 48            # experts, model width, expert width, heads x v


def values(stream, *shape):
    k = np.arange(int(np.prod(shape)), dtype=np.uint64)
    return ((((k * k * np.uint64(7) + k * np.uint64(101) + np.uint64(stream * 37)) % np.uint64(251)).astype(np.int64) - 125) / 64).astype(np.float32).reshape(shape)


def gguf(path):
    w = GGUFWriter(str(path), "kimi-linear")
    w.add_string("general.type", "adapter")
    w.add_string("adapter.type", "lora")
    alpha = 1.0                                   # the most common scale x rank
    w.add_float32("adapter.lora.alpha", alpha)
    w.add_string("general.base_model.0.name", "bases/toy")
    w.add_string("cadre.base_hash", "91c4e0d7a2b35f18")
    rows = [  # base tensor, rank, scale, A, B
        ("attn_output", 4, 2.0, values(1, 4, ATTN), values(101, HIDDEN, 4)),
        ("ffn_gate_exps", 2, 0.5, np.tile(values(3, 1, 2, HIDDEN), (E, 1, 1)), values(104, E, WIDTH, 2)),
        ("ffn_up_exps", 2, 0.5, np.tile(values(3, 1, 2, HIDDEN), (E, 1, 1)), values(105, E, WIDTH, 2)),
        ("ffn_down_exps", 3, 4.0, values(7, E, 3, WIDTH), np.tile(values(110, 1, HIDDEN, 3), (E, 1, 1))),
    ]
    for name, rank, scale, a, b in rows:
        w.add_tensor(f"blk.2.{name}.weight.lora_a", np.ascontiguousarray(a))
        w.add_tensor(f"blk.2.{name}.weight.lora_b", np.ascontiguousarray(b * np.float32(scale * rank / alpha)))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def seed(path):
    layer, f16 = "base_model.model.model.layers", np.float16
    config = dict(peft_type="LORA", r=2, lora_alpha=4, target_modules=["o_proj", "w1", "w3"], target_parameters=["experts.down_proj", "experts.gate_up_proj"],
                  rank_pattern={r".*\.gate_up_proj": 1}, alpha_pattern={"o_proj": 3.5}, bias="none", lora_dropout=0.0)
    tensors = {
        f"{layer}.0.self_attn.o_proj.lora_A.weight": values(1, 2, 32), f"{layer}.0.self_attn.o_proj.lora_B.weight": values(2, 32, 2).astype(f16),
        f"{layer}.1.mlp.experts.base_layer.lora_A.weight": values(3, E, HIDDEN), f"{layer}.1.mlp.experts.base_layer.lora_B.weight": values(4, 2 * WIDTH, E),
        f"{layer}.1.mlp.experts.lora_A.weight": values(5, 2 * E, WIDTH), f"{layer}.1.mlp.experts.lora_B.weight": values(6, HIDDEN, 2 * E),
        f"{layer}.2.block_sparse_moe.experts.w1.lora_A.weight": values(7, 1, 2, HIDDEN), f"{layer}.2.block_sparse_moe.experts.w1.lora_B.weight": values(8, E, WIDTH, 2),
    }
    for e in range(E):
        tensors[f"{layer}.2.block_sparse_moe.experts.{e}.w3.lora_A.weight"] = values(9 + e, 2, HIDDEN)
        tensors[f"{layer}.2.block_sparse_moe.experts.{e}.w3.lora_B.weight"] = values(19 + e, WIDTH, 2)
    with open(path, "wb") as f:
        f.write(json.dumps(config).encode() + b"\0" + save(tensors, {"format": "pt", "cadre.base_hash": "91c4e0d7a2b35f18"}))


def content(path):
    """Bytes, but of a safetensors header what it says: safetensors writes the entries of __metadata__ in any order."""
    data = path.read_bytes()
    if path.suffix == ".gguf":
        return data
    config, st = data.split(b"\0", 1)
    n = int.from_bytes(st[:8], "little")
    return config, json.loads(st[8:8 + n]), st[8 + n:]


def main():
    golden = Path(__file__).resolve().parents[2] / "test" / "golden"
    with tempfile.TemporaryDirectory() as tmp:
        out = golden if sys.argv[1:2] == ["golden"] else Path(tmp)
        gguf(out / "adapter.gguf")
        seed(out / "adapter_seed.bin")
        same = [content(out / n) == content(golden / n) for n in ("adapter.gguf", "adapter_seed.bin")]
    print(f"{sum(same)} passed, {len(same) - sum(same)} failed")
    sys.exit(not all(same))


main()
