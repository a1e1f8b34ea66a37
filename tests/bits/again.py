#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes the 40 vectors of docs/bits.md a second time: written from that page alone, without a look at any code.

Run: tests/bits/again.py     exit status 0 if all vectors agree, 77 if there is no NumPy
"""
import json
import pathlib
import sys

try:
    import numpy as np
except ImportError:
    sys.exit(print("skipped: there is no NumPy") or 77)

PATH = pathlib.Path(__file__).parents[1] / "data" / "bits" / "vectors.json"

F32 = np.float32
LAMBDA = float.fromhex("0x1.71547652b82fep+0")
LN2 = float.fromhex("0x1.62e42fefa39efp-1")
SQRT2 = float.fromhex("0x1.6a09e667f3bcdp+0")
EXP2 = [F32(float.fromhex(a)) for a in
        "0x1.416b5ep-13 0x1.5f0830p-10 0x1.3b2de0p-7 0x1.c6af7cp-5 0x1.ebfbdcp-3 0x1.62e430p-1 1".split()]
TANH = [F32(float.fromhex(a)) for a in "0x1.664f48p-6 -0x1.ba1ba2p-5 0x1.111112p-3 -0x1.555556p-2 1".split()]
TENSORS = ("q", "k", "v", "sink", "mask", "k_scale", "v_scale")
FORMATS = {"F32": (np.uint32, 8, 23), "F16": (np.uint16, 5, 10), "BF16": (np.uint16, 8, 7), "F8_E4M3": (np.uint8, 4, 3)}


def horner(x, coefficients):
    """Evaluate a polynomial, highest power first, each operation rounded by itself."""
    p = np.full_like(x, coefficients[0])
    for a in coefficients[1:]:
        p = p * x + a
    return p


def P(f):
    """2^f for -1 <= f <= 0."""
    low = f < F32(-0.5)
    p = horner(np.where(low, f + F32(1), f), EXP2)
    return np.where(low, p / F32(2), p)


def T(x):
    """2^x for an integer x from -126 to 0; else +0."""
    inside = x >= F32(-126)
    return np.where(inside, np.ldexp(F32(1), np.where(inside, x, F32(0)).astype(np.int32)), F32(0))


def ceil(x):
    """Round up; zero is +0."""
    return np.ceil(x) + F32(0)


def to_f32(bits, name):
    """Decode stored elements without rounding."""
    if name == "F32":
        return bits.view(F32)
    if name == "F16":
        return bits.view(np.float16).astype(F32)
    if name == "BF16":
        return (bits.astype(np.uint32) << 16).view(F32)
    E, M = (bits >> 3 & 15).astype(np.int32), (bits & 7).astype(np.int32)
    value = np.where(E == 0, np.ldexp(M.astype(F32), -9), np.ldexp((8 + M).astype(F32), E - 10))
    value[(E == 15) & (M == 7)] = np.nan
    return np.where(bits >> 7, -value, value)


def mix(x):
    """hash, on integers of 32 bits."""
    x = (x ^ x >> 16) * 0x7feb352d & 0xffffffff
    x = (x ^ x >> 15) * 0x846ca68b & 0xffffffff
    return x ^ x >> 16


def generate(vector, number, shape, name):
    """Stored bits of one tensor."""
    tensor = TENSORS[number]
    seed = mix(8 * vector["case"] + number)
    x = mix(np.arange(np.prod(shape, dtype=int), dtype=np.uint64) + seed & 0xffffffff).astype(np.int64)
    if name == "BOOL":
        bits = (x >> 31).astype(np.uint8)
    else:
        kind, e, m = FORMATS[name]
        sign = 0 if tensor.endswith("_scale") else x >> 31
        exponent = (1 << e - 1) - 1 + vector.get("power", {}).get(tensor, 0) - (x >> 29 & 3)
        bits = (sign << e + m | exponent << m | x & (1 << m) - 1).astype(kind)
    for begin, end, value in vector.get("set", {}).get(tensor, []):
        bits[begin:end] = int(value, 16)
    return bits.reshape(shape)


def inputs(vector):
    """Bits and type of every tensor that this vector has."""
    b, n_h, n_kv, l, n, d, d_v = vector["shape"]
    name = vector["type"]
    plan = {"q": ((b, n_h, l, d), "BF16" if name == "F8_E4M3" else name), "k": ((b, n_kv, n, d), name), "v": ((b, n_kv, n, d_v), name),
            "sink": ((n_h,), "F32"), "mask": ((b, n_h, l, n), vector.get("mask")), "k_scale": ((b, n_kv), "F32"),
            "v_scale": ((b, n_kv), "F32")}
    return {t: (generate(vector, i, *plan[t]), plan[t][1]) for i, t in enumerate(TENSORS) if i < 3 or vector.get(t)}


def digest(arrays):
    """FNV-1a of the bytes."""
    h = 0xcbf29ce484222325
    for array in arrays:
        for byte in array.tobytes():
            h = (h ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return f"{h:016x}"


def scores(q, k, f, pairs):
    """Logarithms in base two of all keys of k, a lane at a time."""
    A = max(int(np.frexp(abs(f))[1]) - 1, -126) if 0 < abs(f) < 1 else 0
    c, q = F32(np.ldexp(f, -A)), F32(2.0 ** A) * q
    lanes = np.zeros((16, len(k)), F32)
    for i in range(len(q)):
        lanes[(i // 2 if pairs else i) % 16] += k[:, i] * q[i]
    lanes = lanes[:8] + lanes[8:]
    lanes = lanes[:4] + lanes[4:]
    return c * ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]))


def cap(s, C):
    """Soft cap."""
    x = np.abs(s) * F32(1 / (LAMBDA * C))
    y = np.minimum(x * F32(float.fromhex("0x1.715476p+1")), F32(64))
    u = P(-y - ceil(-y)) * T(ceil(-y))
    t = np.where(x < F32(0.17), horner(x * x, TANH) * x, (F32(1) - u) / (F32(1) + u))
    return np.copysign(F32(LAMBDA * C) * t, s)


def merge(one, two):
    """Merge two states (e, D and n)."""
    (high, x), (low, y) = (one, two) if one[0] >= two[0] else (two, one)
    return high, x + (F32(1) if high == low else T(low - high)) * y


def leaf(s, v, positions):
    """State of the keys that are seen of one leaf."""
    shift = np.where(np.isnan(s), F32(-np.inf), ceil(s))
    e = shift.max()
    w = (P(s - ceil(s)) * T(shift - e))[:, None]
    x = np.full((64, 1 + v.shape[1]), F32(-0.0))
    x[:, 0] = 0
    x[positions % 64] = np.hstack((w, w * v))
    while len(x) > 1:
        x = x[0::2] + x[1::2]
    return e, x[0]


def root(leaves, dealt):
    """Merge the leaves {t: state} to the root of the tree."""
    if dealt:
        leaves = {(int(f"{t % 4096:012b}"[::-1], 2) << 28) + t // 4096: state for t, state in leaves.items()}
    for _ in range(40):
        above = {}
        for slot in sorted(leaves):
            r = slot // 2
            above[r] = merge(above[r], leaves[slot]) if r in above else leaves[slot]
        leaves = above
    return leaves[0]


def finish(state, g, scale):
    """`out` and `lse` of a row."""
    if g is not None:
        tau = F32(LAMBDA * float(g))
        if tau != -np.inf:
            x = np.zeros_like(state[1])
            x[0] = P(tau - ceil(tau))
            state = merge(state, (F32(-np.inf) if np.isnan(tau) else ceil(tau), x))
    e, D, n = state[0], state[1][0], state[1][1:]
    if D == 0 and e == -np.inf:
        return np.zeros_like(n), F32(-np.inf)
    z = n / D
    z = np.where(np.isfinite(n) & np.isinf(z), np.copysign(np.finfo(F32).max, z), z)
    z = z if scale is None else z * scale
    if np.isnan(D):
        return z, F32(np.nan)
    m, i = np.frexp(float(D))
    m, i = (2 * m, i - 1) if 2 * m <= SQRT2 else (m, i)
    r = (m - 1) / (m + 1)
    S = 0.0
    for k in range(17, 0, -2):
        S = S * (r * r) + 1 / k
    return z, F32(LN2 * ((float(e) + int(i)) + ((2 * LAMBDA) * r) * S))


def decode(vector, tensors):
    """`out` [b, n_h, l, d_v] and `lse` [b, n_h, l]."""
    b, n_h, n_kv, l, n, d, d_v = vector["shape"]
    x = {t: bits if name == "BOOL" else to_f32(bits, name) for t, (bits, name) in tensors.items()}
    sigma = vector.get("scale", 1 / np.sqrt(float(d)))
    out, lse, a = np.zeros((b, n_h, l, d_v), F32), np.zeros((b, n_h, l), F32), np.arange(n)
    for i, h, j in np.ndindex(b, n_h, l):
        head = h * n_kv // n_h
        end = vector["lengths"][i] if "lengths" in vector else n
        end = max(0, end - (l - 1 - j)) if vector.get("causal") else end
        begin = max(0, end - vector["window"]) if "window" in vector else 0
        seen = a[(a < end) & ((a >= begin) | (a < vector.get("sinks", 0)))]
        f = LAMBDA * (sigma * (float(x["k_scale"][i, head]) if "k_scale" in x else 1.0))
        s = scores(x["q"][i, h, j], x["k"][i, head, seen], f, vector["type"] in ("BF16", "F8_E4M3"))
        s = cap(s, vector["softcap"]) if "softcap" in vector else s
        if "mask" in x:
            m = x["mask"][i, h, j, seen]
            s = np.where(m == 0, F32(-np.inf), s) if vector["mask"] == "BOOL" else s + F32(LAMBDA) * m
        s, seen = s[s != -np.inf], seen[s != -np.inf]
        leaves = {0: (F32(-np.inf), np.array([0.0] + [-0.0] * d_v, F32))}
        for t in np.unique(seen // 64):
            here = seen // 64 == t
            leaves[int(t)] = leaf(s[here], x["v"][i, head, seen[here]], seen[here])
        out[i, h, j], lse[i, h, j] = finish(root(leaves, vector["order"] == "dealt"), x["sink"][h] if "sink" in x else None,
                                            x["v_scale"][i, head] if "v_scale" in x else None)
    return [np.where(np.isnan(y), np.uint32(0x7fc00000), y.view(np.uint32)) for y in (out, lse)]


def main():
    """Compare every vector."""
    np.seterr(all="ignore")
    vectors, agree = json.loads(PATH.read_text(encoding="utf-8")), 0
    for vector in vectors:
        tensors = inputs(vector)
        bits = decode(vector, tensors)
        ours = {"inputs": digest(stored for stored, _ in tensors.values()), "digest": digest(bits)}
        ours.update((key, [f"{y:08x}" for y in array.ravel()[:4]]) for key, array in zip(("out", "lse"), bits))
        wrong = [f"{key} {mine}, not {vector[key]}" for key, mine in ours.items() if mine != vector[key]]
        agree += not wrong
        if wrong:
            print(f"case {vector['case']}, {vector['what']}: {'; '.join(wrong)}")
    print(f"{agree} of {len(vectors)} vectors agree")
    return 0 if agree == len(vectors) == 40 else 1


if __name__ == "__main__":
    sys.exit(main())
