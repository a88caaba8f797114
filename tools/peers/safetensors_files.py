#!/usr/bin/env python3
"""Checkpoint directories as huggingface_hub and safetensors write and read them.

    safetensors_files.py golden DIR          writes test/golden/hub: shards and index, by huggingface_hub
    safetensors_files.py same OURS           OURS (a directory that we wrote) read with safetensors and written again: same bytes

Needs torch, safetensors, huggingface_hub. Bytes of tensor k of the golden directory: (7 i + k) mod 256.
"""
import filecmp, json, os, sys, tempfile

import numpy as np
import torch
from huggingface_hub import save_torch_state_dict
from safetensors import safe_open
from safetensors.torch import load_file, save_file

# name, dtype, shape: in this order; the limit of 100 bytes cuts them into five shards, one of them alone and before the open one
GOLDEN = [("model.layers.0.a.weight", torch.bfloat16, [4, 8]), ("model.layers.0.b", torch.float32, [5]), ("model.layers.10.a.weight", torch.bfloat16, [4, 8]),
          ("model.large", torch.uint8, [101]), ("model.layers.2.a.weight", torch.bfloat16, [3]), ("model.g\u00e4\u4e2d\U0001f600\"\\x", torch.float32, []),
          ("model.exact", torch.uint8, [100]), ("model.empty", torch.float32, [0, 3]), ("lm_head.weight", torch.bfloat16, [2, 2])]


def golden(out):
    state = {}
    for k, (name, dtype, shape) in enumerate(GOLDEN):
        n = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
        raw = torch.from_numpy(((7 * np.arange(n) + k) % 256).astype(np.uint8))
        state[name] = raw.view(dtype).reshape(shape) if n else torch.empty(shape, dtype=dtype)
    os.makedirs(out, exist_ok=True)
    save_torch_state_dict(state, out, max_shard_size=100)


def same(ours):
    files = sorted(f for f in os.listdir(ours) if f.endswith(".safetensors"))
    with tempfile.TemporaryDirectory() as tmp:
        for f in files:
            with safe_open(os.path.join(ours, f), "pt") as s:
                meta = s.metadata()
            save_file(load_file(os.path.join(ours, f)), os.path.join(tmp, f), metadata=meta)
            if not filecmp.cmp(os.path.join(ours, f), os.path.join(tmp, f), shallow=False):
                sys.exit(f"{f}: safetensors writes other bytes")
    index = os.path.join(ours, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index) as f:
            m = json.load(f)
        for name, shard in m["weight_map"].items():
            with safe_open(os.path.join(ours, shard), "pt") as s:
                if name not in s.keys():
                    sys.exit(f"{shard}: lacks {name}")
    print(f"{ours}: {len(files)} files, read by safetensors and written again: the same bytes")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("golden", "same"):
        sys.exit(__doc__)
    {"golden": golden, "same": same}[sys.argv[1]](sys.argv[2])
