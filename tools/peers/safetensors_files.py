#!/usr/bin/env python3
"""Checkpoint directories as huggingface_hub and safetensors write and read them.

    safetensors_files.py golden DIR          writes test/golden/hub: shards and index, by huggingface_hub
    safetensors_files.py same OURS           OURS (a directory that we wrote) read with safetensors and written again: same bytes
    safetensors_files.py check BUILD         both, with toys of every family that BUILD/cadre makes; and the hub cuts and indexes them as we do

Needs torch, safetensors, huggingface_hub. Bytes of tensor k of the golden directory: (7 i + k) mod 256.
"""
import filecmp, json, os, subprocess, sys, tempfile

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


def shards_of(path):
    return sorted(f for f in os.listdir(path) if f.endswith(".safetensors"))


def same(ours):
    """None, or what differs."""
    files = shards_of(ours)
    with tempfile.TemporaryDirectory() as tmp:
        for f in files:
            with safe_open(os.path.join(ours, f), "pt") as s:
                meta = s.metadata()
            save_file(load_file(os.path.join(ours, f)), os.path.join(tmp, f), metadata=meta)
            if not filecmp.cmp(os.path.join(ours, f), os.path.join(tmp, f), shallow=False):
                return f"{f}: safetensors writes other bytes"
    index = os.path.join(ours, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index) as f:
            m = json.load(f)
        for name, shard in m["weight_map"].items():
            with safe_open(os.path.join(ours, shard), "pt") as s:
                if name not in s.keys():
                    return f"{shard}: lacks {name}"
    return None


def same_as_the_hub(ours, size):
    """Our directory, cut at `size` bytes, against the hub's of the same tensors in the order of our index."""
    with open(os.path.join(ours, "model.safetensors.index.json")) as f:
        order = list(json.load(f)["weight_map"])
    tensors = {}
    for f in shards_of(ours):
        tensors.update(load_file(os.path.join(ours, f)))
    with tempfile.TemporaryDirectory() as tmp:
        save_torch_state_dict({name: tensors[name].clone() for name in order}, tmp, max_shard_size=size)
        for f in sorted(os.listdir(tmp)):
            if not os.path.exists(os.path.join(ours, f)) or not filecmp.cmp(os.path.join(ours, f), os.path.join(tmp, f), shallow=False):
                return f"{f}: the hub writes other bytes"
        return None if shards_of(tmp) == shards_of(ours) else "the hub cuts other shards"


def check(build):
    results = []

    def say(what, fault):
        results.append(fault is None)
        print(f"{'ok   ' if fault is None else 'FAIL '} {what}{'' if fault is None else ': ' + fault}")

    with tempfile.TemporaryDirectory() as tmp:
        golden(os.path.join(tmp, "hub"))
        files = sorted(os.listdir(os.path.join(tmp, "hub")))
        _, differ, missing = filecmp.cmpfiles(os.path.join(tmp, "hub"), "test/golden/hub", files, shallow=False)
        say("test/golden/hub is what this hub writes", f"{differ + missing}" if differ or missing else None)
        for family in ("kimi_k3", "kimi_k31", "kimi_linear", "deepseek_v3", "deepseek_v32"):
            for size in (None, 100000):
                out = os.path.join(tmp, f"{family}-{size}")
                command = [os.path.join(build, "cadre"), "toy", family, "--out", out, "-q"] + (["--shard-size", str(size)] if size else [])
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                fault = done.stderr.strip() if done.returncode else same(out)
                say(f"toy {family}, shards of {size or 'its release'}: safetensors reads it and writes the same bytes", fault)
                if size and fault is None:
                    say(f"toy {family}, shards of {size}: huggingface_hub cuts and indexes the same", same_as_the_hub(out, size))
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("golden", "same", "check"):
        sys.exit(__doc__)
    if sys.argv[1] == "golden":
        golden(sys.argv[2])
    elif sys.argv[1] == "check":
        sys.exit(check(sys.argv[2]))
    else:
        sys.exit(same(sys.argv[2]))
