#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of docs/bits.md in NumPy: decodes every vector of tests/data/bits and compares its bits.

Run: tests/bits/check.py    exit status 1 and one line for each vector that differs; 77 without NumPy
"""
import sys

import vectors

try:
    import numpy as np
except ImportError:
    sys.exit(print("skipped: there is no NumPy") or 77)

F, INF = np.float32, np.float32(np.inf)
LOG2E, LN2, ROOT2 = (float.fromhex(x) for x in ("0x1.71547652b82fep+0", "0x1.62e42fefa39efp-1", "0x1.6a09e667f3bcdp+0"))
POWER = F([float.fromhex(x) for x in "0x1.416b5ep-13 0x1.5f0830p-10 0x1.3b2de0p-7 0x1.c6af7cp-5 0x1.ebfbdcp-3 0x1.62e430p-1 1".split()])
TANH = F([float.fromhex(x) for x in "0x1.664f48p-6 -0x1.ba1ba2p-5 0x1.111112p-3 -0x1.555556p-2 1".split()])


def stored(tensor):
    """A tensor in F32, or bytes of a mask."""
    dtype, shape, data = tensor
    x = np.frombuffer(data, {"F32": F, "F16": np.float16, "BF16": np.uint16}.get(dtype, np.uint8)).reshape(shape)
    if dtype == "F8_E4M3":
        power, rest, sign = (x >> 3 & 15).astype(int), (x & 7).astype(F), 1 - 2 * (x >> 7).astype(F)
        return np.where(x & 127 == 127, F(np.nan), sign * np.ldexp(rest + 8 * (power > 0), np.maximum(power, 1) - 10)).astype(F)
    return x if dtype == "BOOL" else (x.astype(np.uint32) << 16).view(F) if dtype == "BF16" else x.astype(F)


def fraction(f):
    p = POWER[0]
    for a in POWER[1:]:
        p = p * np.where(f < F(-0.5), f + F(1), f) + a
    return np.where(f < F(-0.5), p * F(0.5), p)


def pow2(x):
    return np.where(x >= -126, np.ldexp(F(1), np.where(x >= -126, x, 0).astype(int)), F(0)).astype(F)


def shift_of(s):
    return np.where(np.isnan(s), -INF, np.ceil(s) + F(0))


def capped(s, c):
    limit, inverse = F(LOG2E * c), F(1 / (LOG2E * c))
    x, t = np.abs(s) * inverse, TANH[0]
    y = np.minimum(x * F(float.fromhex("0x1.715476p+1")), F(64))
    u = fraction(-y - np.ceil(-y)) * pow2(np.ceil(-y))
    for a in TANH[1:]:
        t = t * (x * x) + a
    return np.copysign(limit * np.where(x < F(0.17), t * x, (F(1) - u) / (F(1) + u)), s)


def merge(a, b):
    high, low = np.maximum(a[0], b[0]), np.minimum(a[0], b[0])
    factor = np.where(high == low, F(1), pow2(low - high))[:, None]
    return high, np.where((b[0] > a[0])[:, None], b[1] + factor * a[1], a[1] + factor * b[1])


def decode(case, q, k, v, seen, mask, sink, scale):
    """out [l, d_v] and lse [l] of one head: q [l, d], k [n, d], v [n, d_v], seen [l, n], mask [l, n] or None."""
    factor, pairs = LOG2E * scale, case["type"] in ("BF16", "F8_E4M3")
    a = max(int(np.frexp(abs(factor))[1]) - 1, -126) if 0 < abs(factor) < 1 else 0
    q, c, nodes, none = q * F(2.0 ** a), F(factor * 2.0 ** -a), {}, F([0] + v.shape[1] * [-0.0])
    for leaf in range((len(k) + 63) // 64):
        at = slice(64 * leaf, 64 * leaf + 64)
        lane = np.full((16, len(q), len(k[at])), -0.0, F)
        for i in range(q.shape[1]):
            lane[(i // 2 if pairs else i) % 16] += k[at, i] * q[:, i:i + 1]
        lane = (lane[:4] + lane[8:12]) + (lane[4:8] + lane[12:])
        s = c * ((lane[0] + lane[1]) + (lane[2] + lane[3]))
        s = capped(s, case["softcap"]) if "softcap" in case else s
        if mask is not None:
            s = np.where(mask[:, at] != 0, s, -INF) if case["mask"] == "BOOL" else s + F(LOG2E) * mask[:, at]
        s = np.where(seen[:, at], s, -INF)
        e = shift_of(s).max(1)
        w = (fraction(s - shift_of(s)) * pow2(shift_of(s) - e[:, None]))[:, :, None]
        x = np.tile(none, (len(q), 64, 1))
        x[:, :s.shape[1]] = np.where((s != -INF)[:, :, None], np.concatenate([w, w * v[None, at]], 2), x[:, :s.shape[1]])
        while x.shape[1] > 1:
            x = x[:, 0::2] + x[:, 1::2]
        nodes[leaf if case["order"] == "contiguous" else (int(f"{leaf % 4096:012b}"[::-1], 2) << 28) + leaf // 4096] = e, x[:, 0]
    while len(nodes) > 1:
        above = {}
        for slot in sorted(nodes):
            above[slot >> 1] = merge(above[slot >> 1], nodes[slot]) if slot >> 1 in above else nodes[slot]
        nodes = above
    e, x = next(iter(nodes.values()), (np.full(len(q), -INF), np.tile(none, (len(q), 1))))
    if (t := F(LOG2E * float(sink))) != -INF:
        e, x = merge((e, x), (np.full(len(q), shift_of(t)), np.tile(F([fraction(t - np.ceil(t))] + v.shape[1] * [0]), (len(q), 1))))
    D, n, z = x[:, 0], x[:, 1:], x[:, 1:] / x[:, :1]
    z = np.where(np.isfinite(n) & np.isinf(z), np.copysign(np.finfo(F).max, z), np.where(((D == 0) & (e == -INF))[:, None], F(0), z))
    m, i = np.frexp(D.astype(float))
    m, i = np.where(2 * m > ROOT2, m, 2 * m), np.where(2 * m > ROOT2, i, i - 1)
    r, total = (m - 1) / (m + 1), 0.0
    for j in range(17, 0, -2):
        total = total * (r * r) + 1.0 / j
    lse = (LN2 * (e + i + 2 * LOG2E * r * total)).astype(F)
    return np.where(np.isnan(z), F(np.nan), z), np.where(np.isnan(lse), F(np.nan), lse)


def results(case, tensors):
    b, h, g, l, n, d, d_v = case["shape"]
    t, at, out, lse = {name: stored(tensor) for name, tensor in tensors.items()}, np.arange(n), np.empty((b, h, l, d_v), F), np.empty((b, h, l), F)
    scale = case.get("scale", 1 / np.sqrt(float(d)))
    for i, j in np.ndindex(b, h):
        end, kv = np.maximum(case.get("lengths", b * [n])[i] - case.get("causal", False) * np.arange(l)[::-1, None], 0), (i, j // (h // g))
        seen = (at < end) & ((at >= end - case.get("window", n)) | (at < case.get("sinks", 0)))
        out[i, j], lse[i, j] = decode(case, t["q"][i, j], t["k"][kv], t["v"][kv], seen, t["mask"][i, j] if "mask" in t else None,
                                      t["sink"][j] if "sink" in t else -INF, scale * float(t["k_scale"][kv] if "k_scale" in t else 1))
        out[i, j] *= t["v_scale"][kv] if "v_scale" in t else F(1)
    return out.tobytes(), lse.tobytes()


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        sys.exit(vectors.compare(vectors.read(), results))
