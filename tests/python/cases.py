#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every case of tests/data/cases.json, decodes that other projects test, through Python: attention(), an Attention that grows, and the program if it was built,
which decodes over as many ranks as the case asks for, by each algorithm in turn.

Run: ./run python            or: tests/python/cases.py [--program build/tree_attn]

Inputs and the formula that they are compared with, in double, are NumPy's.
"""
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy

import tree_attn
from onnx_vectors import load, save

ROOT = pathlib.Path(__file__).resolve().parents[2]
DTYPES = {"fp32": ("float32", "F32", 2.0 ** -24), "fp16": ("float16", "F16", 2.0 ** -11), "bf16": ("bfloat16", "BF16", 2.0 ** -8)}
ALGORITHMS = ("two-level", "leaders", "paper", "packed", "fused", "gather", "ring", "ring-state")
NAN, INF = numpy.nan, numpy.inf


class BFloat16:
    """Elements of 16 bits, which NumPy does not know, as another library exports them."""

    def __init__(self, bits):
        self.bits, self.shape = bits, bits.shape

    def __dlpack_device__(self):
        return self.bits.__dlpack_device__()

    def __dlpack__(self, **_):
        capsule = self.bits.view("float16").__dlpack__()
        ctypes.c_uint8.from_address(tree_attn._pointer(capsule, b"dltensor") + 20).value = 4  # kDLBfloat
        return capsule


def as_stored(x, dtype):
    """The bits of a type, and their values."""
    if dtype != "bf16":
        bits = x.astype(DTYPES[dtype][0])
        return bits, bits.astype("float64")
    u = numpy.ascontiguousarray(x, "float32").view("uint32")
    bits = numpy.where(numpy.isnan(x), 0x7FC0, (u + 0x7FFF + (u >> 16 & 1)) >> 16).astype("uint16")
    return bits, (bits.astype("uint32") << 16).view("float32").astype("float64")


def of_scores(c, q, k, level, spread, random):
    """q and k whose scores are near level(a)."""
    sign = numpy.where(numpy.arange(c["head_dim"]) % 3 == 0, -1.0, 1.0)
    q[...] = 4 * sign
    noise = spread / 4 * random.standard_normal(k.shape)
    k[...] = sign * (level(numpy.arange(k.shape[2]))[:, None] / (4 * c["head_dim"] ** 0.5) + noise)


def change(c, q, k, v, cuts, random):
    """Returns what `input` says of standard normal tensors."""
    n, one, last = k.shape[2], k.shape[2] // 3, cuts[-1]
    scores = {"scores all near +1e4 with spread 1": (lambda a: 1e4 + 0 * a, 1), "scores all near -1e4 with spread 1": (lambda a: -1e4 + 0 * a, 1),
              "half the scores +1e4, half -1e4": (lambda a: 1e4 * (1 - 2 * (a % 2)), 1), "all keys equal": (lambda a: 1.5 + 0 * a, 0),
              "rank r has scores near -1000*r": (lambda a: -1000.0 * (numpy.searchsorted(cuts, a, "right") - 1), 1),
              "one score +100 above the rest": (lambda a: 100.0 * (a == one), 0), "one key 0, N-1 keys at -9.9 (FA4 preserves_tail_mass)": (lambda a: -9.9 * (a != one), 0),
              "the maximum occurs on every rank": (lambda a: numpy.where(numpy.isin(a, cuts), 3.0, -1 - 0.01 * a), 0),
              "one +inf value whose weight underflows to 0": (lambda a: -200.0 * (a == last), 1)}
    name = c["input"]
    if name in scores:
        of_scores(c, q, k, *scores[name], random)
    if name == "q = 64, k = -64, v = 1 (raw score -524288)":
        q[...], k[...], v[...] = 64, -64, 1
    elif name == "q=64,k=-64 style, scores -5.2e5":
        q[...], k[...] = 256, -256
        k[..., 0] += numpy.arange(n) % 3 / 32
    elif name == "q and k near 1e19: scores overflow fp32 to inf":
        q[...] = 1e19 * (1 + 0.01 * (numpy.arange(c["head_dim"]) % 7))
        k[...] = 1e19 * (1 + 0.01 * ((numpy.arange(n)[:, None] + numpy.arange(c["head_dim"])) % 5))
    elif name.startswith("one NaN key"):
        k[0, 0, 0 if "rank 0" in name else last, 1] = NAN
    elif name.startswith("one +inf value"):
        v[0, 0, last, 1] = INF
    elif name == "q[0] = +inf":
        q[0, 0, 0, 0] = INF
    elif name == "all scores -inf on one rank only":
        q[..., 0], k[:, :, last:, 0] = 1, -INF
    elif name == "values -0.0":
        v[...] = -0.0
    elif name not in scores and name not in ("normal", "q, k, v are strided views of one packed tensor", "keys and values behind N are NaN (poison)") and not name.startswith("base pointers"):
        raise ValueError(f"{c['name']}: unknown input: {name}")


def in_memory(c, *tensors):
    """Moves the elements to where `input` says that they lie."""
    if c["input"].startswith("q, k, v are strided"):
        q, k, v = tensors
        packed = numpy.zeros((k.shape[0], k.shape[2], 2 * k.shape[1] + q.shape[1], k.shape[3]), k.dtype)
        views = [packed[:, :, a:b].swapaxes(1, 2) for a, b in ((0, k.shape[1]), (k.shape[1], 2 * k.shape[1]), (2 * k.shape[1], packed.shape[2]))]
        views[0][...], views[1][...], views[2][:, :, :1] = k, v, q
        return views[2][:, :, :1], views[0], views[1]
    offset = int(c["input"].split()[2]) if c["input"].startswith("base pointers") else 0
    if offset == 0:
        return tensors
    moved = []
    for x in tensors:
        memory = numpy.zeros(x.nbytes + 64, "uint8")
        at = -memory.ctypes.data % 16 + offset
        memory[at:at + x.nbytes] = numpy.frombuffer(x.tobytes(), "uint8")
        moved.append(memory[at:at + x.nbytes].view(x.dtype).reshape(x.shape))
    return moved


def exact(q, k, v, scale):
    """Attention in double, and a bound of the error of a score. [b, n_h, 1, d], [b, n_h, 1] and [b, n_h, 1]"""
    group = q.shape[1] // max(1, k.shape[1])
    k, v = k.repeat(group, 1), v.repeat(group, 1)
    s = scale * numpy.einsum("bhld,bhnd->bhln", q, k)
    delta = (q.shape[3] + 1) * 2.0 ** -24 * scale * numpy.einsum("bhld,bhnd->bhln", abs(q), abs(k)).max(-1, initial=0)
    top = numpy.maximum(s.max(-1, initial=-INF, keepdims=True), -1e300)
    weight = numpy.where(s == -INF, 0, numpy.exp(s - top))
    used = numpy.where((weight == 0)[..., None] & (s == -INF)[..., None], 0, v[:, :, None])  # a masked key's value is not read
    total = weight.sum(-1)
    out = (weight[..., None] * used).sum(-2) / numpy.where(total == 0, 1, total)[..., None]
    return out, numpy.where(total == 0, -INF, numpy.log(total) + top[..., 0]), delta


def close(got, want, bound):
    got, finite = numpy.asarray(got, "float64"), numpy.isfinite(want)
    want = numpy.where(numpy.isinf(want) & numpy.isnan(got), numpy.nan, want)  # an Inf by a weight that is 0 in F32
    same = numpy.array_equal(numpy.where(finite, 0, got), numpy.where(finite, 0, want), equal_nan=True)
    return same and (abs(got[finite] - want[finite]) <= numpy.broadcast_to(bound, want.shape)[finite]).all()


def check(c, seed, program, folder):
    """The doors through which a case came out wrong."""
    random, dtype, lengths, d = numpy.random.default_rng(seed), c["dtype"], c["seqlens"], c["head_dim"]
    n = max(lengths, default=0) + (19 if "poison" in c["input"] else 0)
    q, k, v = (random.standard_normal((c["batch"], heads, length, d)) for heads, length in ((c["n_q_heads"], 1), (c["n_kv_heads"], n), (c["n_kv_heads"], n)))
    p, algorithm = max(c["ranks"]), ALGORITHMS[seed % len(ALGORITHMS)]
    cuts = sorted({n * r // p for r in range(p) if n * r // p < n} | {0})
    change(c, q, k, v, cuts, random)
    for entry, length in enumerate(lengths):
        k[entry, :, length:], v[entry, :, length:] = NAN, NAN
    stored, values = zip(*(as_stored(x, dtype) for x in (q, k, v)))
    q, k, v = (BFloat16(x) if dtype == "bf16" else x for x in in_memory(c, *stored))
    part = lambda x, *at: BFloat16(x.bits[at]) if isinstance(x, BFloat16) else x[at]
    scale, roundoff = d ** -0.5, DTYPES[dtype][2]
    wrong = []
    with tree_attn.Attention(heads=c["n_q_heads"], kv_heads=c["n_kv_heads"], head_dim=d, batch=c["batch"], dtype=DTYPES[dtype][0]) as layer:
        for entry, length in enumerate(lengths):
            for at in range(0, length, 100):
                rows = (entry, slice(None), slice(at, min(length, at + 100)))
                layer.append(part(k, *rows), part(v, *rows), entry)
        grown = layer.step(q)
    outputs = {"Attention": grown}
    if c["batch"] > 0:
        alone = [tree_attn.attention(part(q, slice(i, i + 1)), *(part(x, slice(i, i + 1), slice(None), slice(0, length)) for x in (k, v))) for i, length in enumerate(lengths)]
        outputs["attention"] = [numpy.concatenate([x[j] for x in alone]) for j in (0, 1)]
    if program is not None:
        save(folder / "in", {name: (DTYPES[dtype][1], x) for name, x in zip("qkv", stored)} | {"lengths": ("I64", numpy.array(lengths, "<i8"))})
        done = subprocess.run([program, "decode", folder / "in", folder / "out", "--devices", f"0-{p - 1}", "--algorithm", algorithm], capture_output=True, text=True, timeout=120, env={**os.environ, "OMPI_MCA_ess_singleton_isolated": "1"})
        if done.returncode == 0:
            outputs["program"] = load(folder / "out", "out"), load(folder / "out", "lse")
        else:
            wrong.append(f"program: status {done.returncode}: {done.stderr.strip()}")
    for door, (out, lse) in outputs.items():
        for entry, length in enumerate(lengths):
            mine = slice(entry, entry + 1)
            if "overflow fp32" in c["input"]:
                is_right = numpy.isnan(out[mine]).all() and numpy.isnan(lse[mine]).all()
            else:
                arrays = values[0][mine], values[1][mine, :, :length], values[2][mine, :, :length]
                z, l, delta = exact(*arrays, scale)
                bound = tree_attn.error_bound(*arrays)
                bound = bound + (0 if door == "program" else roundoff * abs(z))
                is_right = close(out[mine], z, bound) and close(lse[mine], l, delta + 2e-6 * numpy.maximum(1, abs(l)))
            if not is_right:
                wrong.append(f"{door}: entry {entry}")
    return wrong


def main():
    arguments = sys.argv[1:]
    program = pathlib.Path(arguments[arguments.index("--program") + 1] if "--program" in arguments else ROOT / "build" / "tree_attn")
    if "--program" not in arguments and not program.is_file():
        program = None
    cases = json.loads((ROOT / "tests/data/cases.json").read_text())["cases"]
    failed = [] if len(cases) > 200 else [f"only {len(cases)} cases"]
    with tempfile.TemporaryDirectory() as folder, numpy.errstate(all="ignore"):
        for seed, c in enumerate(cases):
            failed += [f"{c['name']}: {line}" for line in check(c, seed, program, pathlib.Path(folder))]
    print(f"{len(cases)} cases through {'three doors' if program else 'two doors (the program was not built)'}: {len(failed)} wrong")
    for line in failed[:20]:
        print(f"cases: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
