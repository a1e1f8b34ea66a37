#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The vectors of docs/bits.md: their inputs, and the bits that the program has for them on the CPU and on scalar cores.

Run: tests/bits/vectors.py build/tree_attn            decode every vector: exit status 1 and one line for each that differs
     tests/bits/vectors.py build/tree_attn --kernels  decode those that scalar cores take by emulated kernels: F32 without a mask
     tests/bits/vectors.py build/tree_attn --record   write what the program has to tests/data/bits/vectors.json
"""
import array
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

PATH = pathlib.Path(__file__).parents[1] / "data" / "bits" / "vectors.json"
# Code of array, mantissa bits and bias of the exponent.
TYPES = {"F32": ("I", 23, 127), "F16": ("H", 10, 15), "BF16": ("H", 7, 127), "F8_E4M3": ("B", 3, 7), "BOOL": ("B", 0, 0)}
OPTIONS = {"scale": "--scale", "window": "--window", "sinks": "--sinks", "softcap": "--softcap", "order": "--order"}


def hashed(x):
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        x = (x ^ x >> shift) * factor & 0xFFFFFFFF
    return x


def inputs(case):
    """{name: (type, shape, bytes)} of a vector."""
    b, h, g, l, n, d, d_v = case["shape"]
    of_q = "BF16" if case["type"] == "F8_E4M3" else case["type"]
    made = {}
    for number, (name, dtype, shape) in enumerate([
            ("q", of_q, (b, h, l, d)), ("k", case["type"], (b, g, n, d)), ("v", case["type"], (b, g, n, d_v)), ("sink", "F32", (h,)),
            ("mask", case.get("mask"), (b, h, l, n)), ("k_scale", "F32", (b, g)), ("v_scale", "F32", (b, g))]):
        if name not in ("q", "k", "v") and name not in case:
            continue
        code, mantissa, bias = TYPES[dtype]
        start, elements = hashed(8 * case["case"] + number), array.array(code)
        top, power, rest = 8 * elements.itemsize - 1, bias + case.get("power", {}).get(name, 0), (1 << mantissa) - 1
        for i in range(math.prod(shape)):
            x = hashed(start + i & 0xFFFFFFFF)
            sign = 0 if name.endswith("_scale") else x >> 31
            elements.append(sign if dtype == "BOOL" else sign << top | power - (x >> 29 & 3) << mantissa | x & rest)
        for begin, end, element in case.get("set", {}).get(name, []):
            elements[begin:end] = array.array(code, [int(element, 16)] * (end - begin))
        made[name] = dtype, shape, elements.tobytes()
    return made


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def record(tensors, out, lse):
    """Returns what a vector holds beside its case: digests of its inputs and of its output, and the first bits of out and of lse."""
    first = [[f"{word:08x}" for word in struct.unpack_from(f"<{min(4, len(x) // 4)}I", x)] for x in (out, lse)]
    return {"inputs": fnv1a(b"".join(data for _, _, data in tensors.values())), "digest": fnv1a(out + lse), "out": first[0], "lse": first[1]}


def compare(cases, decode, least=40):
    """Prints the vectors for which decode(case, tensors) has other bits, and returns the status. out and lse are bytes."""
    wrong = 0
    for case in cases:
        tensors = inputs(case)
        found = record(tensors, *decode(case, tensors))
        if different := {name: f"{found[name]} instead of {case.get(name)}" for name in found if found[name] != case.get(name)}:
            wrong += 1
            print(f"vector {case['case']}: {different}")
    print(f"{len(cases) - wrong} of {len(cases)} vectors have their bits")
    return int(wrong > 0 or len(cases) < least)


def read():
    return json.loads(PATH.read_text(encoding="utf-8"))


def run(program, case, tensors, backend="cpu"):
    """out and lse of a decode by the program."""
    tensors = dict(tensors)
    if "lengths" in case:
        tensors["lengths"] = "I64", [len(case["lengths"])], struct.pack(f"<{len(case['lengths'])}q", *case["lengths"])
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    words = ["--backend", backend, "--devices", "0"] + ["--threads", "1"] * (backend == "cpu") + ["--causal"] * case.get("causal", False)
    words += [word for name, option in OPTIONS.items() if name in case for word in (option, str(case[name]))]
    with tempfile.TemporaryDirectory() as folder:
        source, target = pathlib.Path(folder, "in"), pathlib.Path(folder, "out")
        source.write_bytes(struct.pack("<Q", len(text)) + text + data)
        done = subprocess.run([program, "decode", source, target, *words], capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            sys.exit(f"vector {case['case']}: status {done.returncode}: {done.stderr.strip()}")
        content = target.read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    return [content[end:][slice(*header[name]["data_offsets"])] for name in ("out", "lse")]


def main():
    program, cases = sys.argv[1], read()
    if "--kernels" in sys.argv:
        cases = [case for case in cases if case["type"] == "F32" and "mask" not in case]
        return compare(cases, lambda case, tensors: run(program, case, tensors, "emulated"), least=25)
    if "--record" not in sys.argv:
        return compare(cases, lambda case, tensors: run(program, case, tensors))
    for case in cases:
        tensors = inputs(case)
        case.update(record(tensors, *run(program, case, tensors)))
    PATH.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
