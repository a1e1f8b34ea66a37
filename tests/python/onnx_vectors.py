#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The node tests of ONNX Attention (opsets 23 to 25) that the package onnx carries, given to the program as files.

Run: ./run python --peers            or: tests/python/onnx_vectors.py [--program build/tree_attn] [--list]

A vector becomes q, k, v, lengths and mask of one file: past keys come before new ones, heads before positions, a mask is broadcast and in
F32 or BOOL. `decode --verify` runs on one rank, for no vector has more than 18 keys, and is compared with the output Y of the vector.
What is no decode is listed with the reason, and runs all the same, with its edge written into the mask. Scores as an output
(qk_matmul_output) are none of a decode: Y alone is compared.
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import warnings

import numpy

# The largest difference to Y, which ONNX computes in the type of the vector.
TOLERANCE = {"F32": 2e-6, "F16": 4e-3, "BF16": 4e-2}
LEAST_VECTORS = 90  # fewer have been found by mistake


def save(path, tensors):
    """A safetensors file of {name: (dtype, array)}."""
    head, at = {}, 0
    for name, (dtype, array) in tensors.items():
        head[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(head).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(numpy.ascontiguousarray(array).tobytes())


def load(path, name):
    """A tensor of F32."""
    raw = path.read_bytes()
    begin = 8 + struct.unpack("<Q", raw[:8])[0]
    tensor = json.loads(raw[8:begin])[name]
    first, end = tensor["data_offsets"]
    return numpy.frombuffer(raw[begin + first:begin + end], "<f4").reshape(tensor["shape"])


def stored(array):
    """(dtype, bytes as an array) of a tensor of 16 or 32 bits."""
    name = array.dtype.name
    return {"float32": ("F32", array), "float16": ("F16", array), "bfloat16": ("BF16", array.view("u2"))}[name]


def heads_first(x, n_heads):
    """[b, l, n_h d] becomes [b, n_h, l, d]."""
    return x.reshape(x.shape[0], x.shape[1], n_heads, -1).transpose(0, 2, 1, 3) if x.ndim == 3 else x


def convert(test):
    """(tensors of the file, options, why it is no decode or "", Y as [b, n_h, l, d_v])"""
    import onnx
    node = test.model.graph.node[0]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    names = ("Q", "K", "V", "mask", "past_k", "past_v", "nonpad")
    given = iter(test.data_sets[0][0])
    x = {name: next(given) for name, used in zip(names, node.input) if used}
    n_h, n_kv = attributes.get("q_num_heads"), attributes.get("kv_num_heads")
    q, k, v = heads_first(x["Q"], n_h), heads_first(x["K"], n_kv), heads_first(x["V"], n_kv)
    y = heads_first(test.data_sets[0][1][0], n_h)
    past = x["past_k"].shape[2] if "past_k" in x else 0
    if past:
        k, v = numpy.concatenate([x["past_k"], k], 2), numpy.concatenate([x["past_v"], v], 2)
    b, _, l, _ = q.shape
    n = k.shape[2]

    # The key at which query 0 of an entry stands: ONNX counts from the first key where there is no cache.
    lengths = x["nonpad"].reshape(-1) if "nonpad" in x else numpy.full(b, n)
    first = lengths - l if "nonpad" in x else numpy.full(b, past)
    left, right = attributes.get("left_window_size", -1), attributes.get("right_window_size", -1)
    is_causal = bool(attributes.get("is_causal", 0))
    options, why = [], ""
    has_edge = is_causal or left >= 0 or right >= 0
    is_decode = not has_edge or (is_causal and right <= 0 and (first == lengths - l).all())
    if has_edge and is_decode:
        options += ["--causal"] + (["--window", str(left + 1)] if left >= 0 else [])
    elif has_edge:
        why = "it sees keys after its own" if not is_causal else f"query 0 of {l} stands at key {first[0]} of {n}, not at the last but {l - 1}"
    if attributes.get("softcap", 0):
        options += ["--softcap", repr(float(attributes["softcap"]))]
    if "scale" in attributes:
        options += ["--scale", repr(float(attributes["scale"]))]

    tensors = {"q": stored(q), "k": stored(k), "v": stored(v), "lengths": ("I64", lengths.astype("<i8"))}
    mask = x.get("mask")
    if mask is not None:
        wide = mask if mask.dtype == bool else mask.astype("<f4")
        unseen = False if wide.dtype == bool else numpy.float32(-numpy.inf)
        wide = wide.reshape((1,) * (4 - wide.ndim) + wide.shape)
        wide = numpy.pad(wide, ((0, 0),) * 3 + ((0, n - wide.shape[3]),), constant_values=unseen)  # a short mask hides what follows
        mask = numpy.broadcast_to(wide, (*wide.shape[:2], l, n)).copy()
    if has_edge and not is_decode:
        place = first.reshape(-1, 1, 1) + numpy.arange(l).reshape(1, -1, 1) - numpy.arange(n)
        seen = ((place >= 0) if is_causal else True) & ((place <= left) if left >= 0 else True) & ((place >= -right) if right >= 0 else True)
        seen = numpy.broadcast_to(seen[:, None], (b, 1, l, n))
        if mask is None or mask.dtype == bool:
            mask = seen if mask is None else seen & mask
        else:
            mask = numpy.where(seen, mask, numpy.float32(-numpy.inf))
    if mask is not None:
        tensors["mask"] = ("BOOL" if mask.dtype == bool else "F32", mask)
    return tensors, options, why, y.astype("f4")


def main():
    from onnx.backend.test.case.node import collect_testcases
    arguments = sys.argv[1:]
    program = os.path.abspath(arguments[arguments.index("--program") + 1] if "--program" in arguments else "build/tree_attn")
    with warnings.catch_warnings(), numpy.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = {test.name: test for test in collect_testcases("Attention") if not test.name.endswith("_expanded")}
    failed, n_decodes, largest = [], 0, dict.fromkeys(TOLERANCE, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        for name, test in sorted(found.items()):
            tensors, options, why, y = convert(test)
            n_decodes += not why
            print(f"{name.removeprefix('test_attention_'):68} {'decode' if not why else 'no decode: ' + why} {' '.join(options)}", flush=True)
            if "--list" in arguments:
                continue
            save(path / "in", tensors)
            run = subprocess.run([program, "decode", path / "in", path / "out", "--verify", *options], capture_output=True, text=True,
                                 timeout=120, env={**os.environ, "OMPI_MCA_ess_singleton_isolated": "1"})
            if run.returncode != 0:
                failed.append(f"{name}: status {run.returncode}: {run.stderr.strip()}")
                continue
            error = float(numpy.max(numpy.abs(load(path / "out", "out") - y), initial=0))
            dtype = tensors["q"][0]
            largest[dtype] = max(largest[dtype], error)
            if not error <= TOLERANCE[dtype]:
                failed.append(f"{name}: differs from Y by {error:.3g}")
    if len(found) < LEAST_VECTORS:
        failed.append(f"only {len(found)} vectors were found")
    print(f"{len(found)} vectors, {n_decodes} of them decodes; largest difference to Y: " + ", ".join(f"{k} {v:.1e}" for k, v in largest.items()))
    for line in failed:
        print(f"onnx_vectors: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
