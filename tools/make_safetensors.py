"""Makes test/golden/reference.safetensors with the reference implementation (pip install safetensors), so that the tests
compare the engine's writer with it byte for byte. Bytes of tensor number k: (i * 7 + k) % 256 for byte i.
Run from the top of the repository; needed only when the list below changes."""
import ctypes

import safetensors

# (name, dtype, bits, shape) in an order that is not the file's
TENSORS = [
    ("z.weight", "BF16", 16, [3, 5]),
    ("a.weight", "BF16", 16, [2, 2]),
    ("scalar", "F32", 32, []),
    ("empty", "F32", 32, [0, 7]),
    ("ids", "I64", 64, [4]),
    ("unsigned", "U64", 64, [1]),
    ("codes", "U8", 8, [3]),
    ("scales", "F8_E8M0", 8, [5]),
    ("fp8", "F8_E4M3", 8, [2, 3]),
    ("mask", "BOOL", 8, [3]),
    ("half", "F16", 16, [1, 1, 1, 1, 2]),
    ("double", "F64", 64, [2]),
    ("signed", "I32", 32, [2]),
    ("layers.10.w", "F32", 32, [2]),
    ("layers.2.w", "F32", 32, [1]),
    ('quote"back\\slash\ttab\x01', "F32", 32, [1]),
    ("größe.重み", "F32", 32, [1]),
]
NAMES = {"BF16": "bfloat16", "F32": "float32", "I64": "int64", "U64": "uint64", "U8": "uint8", "F8_E8M0": "float8_e8m0fnu",
         "F8_E4M3": "float8_e4m3fn", "BOOL": "bool", "F16": "float16", "F64": "float64", "I32": "int32"}

out, keep = {}, []
for k, (name, dtype, bits, shape) in enumerate(TENSORS):
    n = bits // 8
    for s in shape:
        n *= s
    buffer = (ctypes.c_uint8 * max(n, 1))(*((i * 7 + k) % 256 for i in range(n)))
    keep.append(buffer)
    out[name] = safetensors.TensorSpec(dtype=NAMES[dtype], shape=shape, data_ptr=ctypes.addressof(buffer), data_len=n)
data = safetensors.serialize(out, {"format": "pt"})
open("test/golden/reference.safetensors", "wb").write(data)
print(len(data), "bytes")
