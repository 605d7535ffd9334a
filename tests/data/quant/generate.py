#!/usr/bin/env python3
"""generate.py - writes blocks.gguf beside itself: a few blocks of every quantised type and what the `gguf` package of PyPI (llama.cpp's own, 0.19.0; needs numpy)
dequantises them to. Nothing of this repository takes part: file, blocks and values are written by that package. Used by tests/conform/test_conform_formats.c.

For each type T: tensor "T", rows of 256 values as raw blocks, and tensor "T.f32", the same shape, the values. Bytes are random; scales of a block come in
turn from a list: usual ones, negative, both zeros, the smallest and the largest subnormal half, the largest half. Q4_K and Q5_K have rows whose 6-bit
scales are all zero and all one, MXFP4 exponents of all sizes, the subnormal ones too. All values are finite.
"""
import os

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

ROWS, COLUMNS = 5, 256
HALVES = np.array([0.0123, 1.0, -0.5, 0.0, -0.0, 5.9604645e-08, 6.097555e-05, -6.1035156e-05, 65504.0, -65504.0, 3.1415], np.float16)
# where the halves lie in a block, and where the 6-bit scales do
LAYOUT = {T.Q4_0: ([0], None), T.Q4_1: ([0, 2], None), T.Q5_0: ([0], None), T.Q5_1: ([0, 2], None), T.Q8_0: ([0], None),
          T.Q4_K: ([0, 2], 4), T.Q5_K: ([0, 2], 4), T.Q6_K: ([208], None),
          T.MXFP4: ([], None)}
EXPONENTS = [120, 127, 128, 0, 1, 2, 3, 60, 200, 240, 250]      # e of MXFP4; 255 is NaN


def blocks(t, rnd):
    values, size = gguf.GGML_QUANT_SIZES[t]
    count = ROWS * COLUMNS // values
    b = rnd.integers(0, 256, (count, size), np.uint8)
    halves, scales = LAYOUT[t]
    for i in range(count):
        for at in halves:
            b[i, at:at + 2] = np.frombuffer(HALVES[(i * (3 if at else 1) + at) % len(HALVES)].tobytes(), np.uint8)
        if t == T.MXFP4:
            b[i, 0] = EXPONENTS[i % len(EXPONENTS)]
        if scales and i >= count - 2:
            b[i, scales:scales + 12] = 0 if i == count - 1 else 255
    return b.reshape(ROWS, COLUMNS // values * size)


def main():
    rnd = np.random.default_rng(20)
    w = gguf.GGUFWriter(os.path.join(os.path.dirname(os.path.abspath(__file__)), "blocks.gguf"), "none")
    for t in LAYOUT:
        b = blocks(t, rnd)
        values = gguf.quants.dequantize(b, t).astype(np.float32)
        assert values.shape == (ROWS, COLUMNS) and np.isfinite(values).all(), t
        w.add_tensor(t.name, b, raw_dtype=t)
        w.add_tensor(f"{t.name}.f32", values)
    half = np.concatenate([HALVES, rnd.standard_normal(ROWS * COLUMNS - len(HALVES)).astype(np.float16)]).reshape(ROWS, COLUMNS)
    w.add_tensor("F16", half)
    w.add_tensor("F16.f32", half.astype(np.float32))
    brain = gguf.quants.quantize(half.astype(np.float32), T.BF16)
    w.add_tensor("BF16", brain, raw_dtype=T.BF16)
    w.add_tensor("BF16.f32", gguf.quants.dequantize(brain, T.BF16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main()
