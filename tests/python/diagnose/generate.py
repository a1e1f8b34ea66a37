#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seeded dumps of a decode over several ranks, right ones and ones with a single fault, for the test of tree_attn.diagnose.

Run: tests/python/diagnose/generate.py FAULT SEED FILE.safetensors [--held]        FAULT is a name of FAULTS, "right" or "other"

The engine is written here in NumPy: a partial result (o, lse) of every rank in float32, and their merge. It uses nothing of the library, and
its faults are those that users of other engines reported; each stands beside its source. q, k, v and the settings of a dump are right; o, lse
and out are what the faulty engine computed from them. A drawn fault counts if it moves out or lse by more than LEAST bounds.
"""
import argparse
import json
import struct
import zlib

import numpy

INF, NAN, U = numpy.inf, numpy.nan, 2.0 ** -24
LEAST = 10
ROUNDOFF = {"F32": 0.0, "F16": 2.0 ** -11, "BF16": 2.0 ** -8}
LEAST_STEP = {"F32": 2.0 ** -149, "F16": 2.0 ** -24, "BF16": 2.0 ** -133}
SETTINGS = {"causal": False, "window": 0, "sinks": 0, "soft_cap": 0.0, "page_size": 0, "interleave": 0, "k_scale": 1.0, "v_scale": 1.0}


# ---- types ------------------------------------------------------------------------------------------------------------
def _e4m3():
    code = numpy.arange(256)
    e, m = (code >> 3) & 15, code & 7
    x = numpy.where(code & 128, -1.0, 1.0) * numpy.where(e > 0, 2.0 ** (e - 7.0) * (1 + m / 8), m * 2.0 ** -9)
    x[[127, 255]] = NAN
    return x


E4M3 = _e4m3()
_EDGES = (E4M3[:126] + E4M3[1:127]) / 2  # between neighbours; a tie goes up


def store(x, dtype):
    """The array of a type as it is in a dump: uint16 for BF16 and uint8 for F8_E4M3, which NumPy does not know."""
    if dtype in ("F32", "F16"):
        with numpy.errstate(over="ignore"):
            return x.astype({"F32": "float32", "F16": "float16"}[dtype])
    if dtype == "BF16":
        u = numpy.ascontiguousarray(x, "float32").view("uint32")
        return numpy.where(numpy.isnan(x), 0x7FC0, (u + 0x7FFF + (u >> 16 & 1)) >> 16).astype("uint16")
    return (numpy.searchsorted(_EDGES, numpy.abs(x), "right") + 128 * numpy.signbit(x)).astype("uint8")


def values(stored, dtype):
    if dtype == "BF16":
        return (stored.astype("uint32") << 16).view("float32")
    return E4M3[stored].astype("float32") if dtype == "F8_E4M3" else stored.astype("float32")


def rounded(x, dtype):
    return values(store(x, dtype), dtype)


def save(path, dump, types, settings):
    """A safetensors file."""
    head, at = {"__metadata__": {"settings": json.dumps(settings)}}, 0
    for name, x in dump.items():
        head[name] = {"dtype": types[name], "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(numpy.ascontiguousarray(x).tobytes() for x in dump.values()))


# ---- cases ------------------------------------------------------------------------------------------------------------
class Case:
    """Inputs, their layout on ranks, and what the dump contains.

    wish: settings that are not drawn. held: shapes outside the range for which a tool was tried.
    """

    def __init__(self, random, held=False, **wish):
        def one_of(*choices):
            return choices[random.integers(len(choices))]

        def wished(name, value):
            return wish[name] if wish.get(name) is not None else value

        self.random, self.held, self.plain = random, held, {}
        self.p = p = int(wished("p", random.integers(2, 14) if held else one_of(2, 2, 3, 4, 4, 8)))
        self.b = int(one_of(1, 2, 3)) if held else 1
        several = 2 if wish.get("groups") else 1
        if held:
            self.kvh, group = (int(random.integers(several, 6)) for _ in range(2))
        else:
            self.kvh, group = one_of((2, 2), (2, 4), (4, 2)) if wish.get("groups") else one_of((1, 4), (2, 2), (2, 4), (4, 1), (1, 8), (4, 2))
        self.h = self.kvh * group
        self.d = 2 * int(random.integers(8, 100)) if held else int(one_of(32, 64, 128))
        self.dv = int(random.integers(4, 140)) if held else self.d
        self.l = int(wished("l", random.integers(1, 8) if held else one_of(1, 1, 2, 4)))
        if wish.get("shape"):
            self.b, self.kvh, self.h, self.l, self.d, self.dv = wish["shape"]
        self.n = n = int(wished("n", random.integers(self.l + 2 * p, 420) | 1 if held else 16 * random.integers(max(2, p // 2), 32)))
        self.type = wished("type", one_of("F32", "F32", "F16", "BF16"))
        self.kv_type = wished("kv_type", "F8_E4M3" if random.random() < 0.06 else self.type)

        s = self.settings = dict(SETTINGS, scale=self.d ** -0.5)
        if random.random() < 0.2:
            s["scale"] = float(one_of(0.05, 0.1, 0.2, 0.25))
        s["causal"] = bool(wished("causal", random.random() < 0.5))
        s["window"] = int(random.integers(1, n)) if wished("window", random.random() < 0.3) else 0
        s["sinks"] = int(random.integers(1, 9)) if s["window"] and wished("sinks", random.random() < 0.4) else 0
        s["soft_cap"] = float(one_of(2, 3, 5, 10, 30, 50)) if wished("soft_cap", random.random() < 0.15) else 0.0
        s["interleave"] = int(random.integers(1, 20) if held else one_of(1, 1, 4, 16)) if wished("dealt", random.random() < 0.45) else 0
        s["page_size"] = (s["interleave"] if s["interleave"] > 1 and random.random() < 0.5 else int(one_of(16, 32, 64))) if random.random() < 0.4 else 0
        if self.kv_type == "F8_E4M3":
            s["k_scale"], s["v_scale"] = (float(2 ** random.uniform(-4, 2)) for _ in range(2))
        self.sink = (2 * random.standard_normal(self.h) + one_of(0, 3)).astype("float32") if wished("sink", random.random() < 0.12) else None
        self.sink_at = one_of("merge", "merge", int(random.integers(p)))  # the rank whose partial contains it, or the merge

        self.positions = self._cut(wished("empty", held and random.random() < 0.3))
        self.permuted = bool(wished("permuted", random.random() < 0.08))
        if self.permuted:
            self.positions = [random.permutation(x) for x in self.positions]
        factor = float(one_of(1, 1, 1, 3, 8))
        self.q, self.stored_q = self._tensor((self.b, self.h, self.l, self.d), self.type, factor)
        self.k, self.stored_k = self._tensor((self.b, self.kvh, n, self.d), self.kv_type, 1 / s["k_scale"])
        self.v, self.stored_v = self._tensor((self.b, self.kvh, n, self.dv), self.kv_type, 1 / s["v_scale"])
        parts = wished("parts", one_of("all", "all", "partials", "partials and out", "out and lse", "out"))
        self.has_partials, self.has_out, self.has_lse = parts in ("all", "partials", "partials and out"), parts != "partials", parts in ("all", "out and lse")
        self.out_type = "F32" if random.random() < 0.25 else self.type
        hidden = not self.has_partials and self.out_type == "F32"  # partials in 16 bits that are not in the dump would be a fault of an F32 out
        self.partial_type = "F32" if hidden or random.random() < 0.6 else self.type
        self.names_positions = self.permuted or random.random() < 0.4

    def _tensor(self, shape, dtype, factor):
        stored = store(self.random.standard_normal(shape).astype("float32") * numpy.float32(factor), dtype)
        return values(stored, dtype), stored

    def _cut(self, empty):
        """Positions of every rank."""
        n, p, c = self.n, self.p, self.settings["interleave"]
        if empty and p > 1:
            live = numpy.sort(self.random.choice(p, self.random.integers(1, p), replace=False))
        else:
            live = numpy.arange(p)
        a = numpy.arange(n)
        if c:  # some ranks have no key only where there are fewer chunks than ranks
            return [a[a // c % p == r] for r in range(p)]
        if self.random.random() < 0.3:
            inner = (numpy.arange(1, len(live)) * n) // len(live)
        else:
            inner = numpy.sort(self.random.choice(numpy.arange(1, n), len(live) - 1, replace=False)) if len(live) > 1 else []
        return [dict(zip(live, numpy.split(a, inner))).get(r, a[:0]) for r in range(p)]

    def limits(self, n=None):
        """The last position that each row sees. [l, 1]"""
        n, i = self.n if n is None else n, numpy.arange(self.l)[:, None]
        return n - self.l + i if self.settings["causal"] else n - 1 + 0 * i

    def seen(self, position, limit=None, window=None, sinks=None):
        """Returns which keys a row sees by their positions. [l, n]"""
        limit = self.limits() if limit is None else limit
        window = self.settings["window"] if window is None else window
        sinks = self.settings["sinks"] if sinks is None else sinks
        return (position <= limit) & ((window == 0) | (position > limit - window) | (position < sinks))

    def rank(self, r, position=None, **rule):
        """Keys, values and mask of a rank, where a fault may change the rule or what the rank believes of its positions."""
        own = self.positions[r]
        return self.k[:, :, own], self.v[:, :, own], self.seen(own if position is None else position, **rule)

    def dump(self, result):
        """(arrays by name, their types) of what an engine computed."""
        kv, dump, types = self.kv_type, {}, {}

        def put(name, x, dtype):
            dump[name], types[name] = x, dtype
        put("q", self.stored_q, self.type)
        for r, own in enumerate(self.positions):
            put(f"k.{r}", self.stored_k[:, :, own], kv)
            put(f"v.{r}", self.stored_v[:, :, own], kv)
            if self.names_positions:
                put(f"positions.{r}", own.astype("int64"), "I64")
        if self.sink is not None:
            put("sink", self.sink, "F32")
        for r, (o, lse) in enumerate(result["partials"]) if self.has_partials else ():
            put(f"o.{r}", store(o, self.partial_type), self.partial_type)
            put(f"lse.{r}", lse.astype("float32"), "F32")
        if self.has_out:
            put("out", store(result["out"], self.out_type), self.out_type)
        if self.has_lse:
            put("lse", result["lse"].astype("float32"), "F32")
        return dump, types

    def shown_settings(self):
        """The settings as a user writes them: some defaults are left out."""
        s = {name: x for name, x in self.settings.items() if SETTINGS.get(name) != x}
        if abs(s["scale"] - self.d ** -0.5) < 1e-12 and self.n % 3:
            del s["scale"]
        return s


# ---- the engine -------------------------------------------------------------------------------------------------------
def partial(c, q, k, v, seen, scale, cap=0.0, after_mask=False, head_of=None, real=numpy.float32, poisoned=False):
    """(o, lse) of one rank: [b, h, l, d_v] and [b, h, l]; a row that sees no key has o = 0 and lse = -inf."""
    head_of = numpy.arange(c.h) // (c.h // c.kvh) if head_of is None else head_of
    q, k, v = q.astype(real), k[:, head_of].astype(real), v[:, head_of].astype(real)
    if not poisoned:
        v = numpy.where(seen.any(0)[:, None], v, real(0))  # memory that no row sees may contain NaN
    s = real(scale) * (q @ k.swapaxes(2, 3))
    if cap:
        s = real(cap) * numpy.tanh(s / real(cap))
    s = numpy.where(seen, s, real(-cap if cap and after_mask else -INF))
    top = s.max(-1, keepdims=True, initial=-INF)
    w = numpy.exp(s - numpy.where(top == -INF, real(0), top))
    total = w.sum(-1, keepdims=True)
    o = (w @ v) / numpy.where(total == 0, real(1), total)
    return o, (numpy.log(total) + top)[..., 0]


def merge(partials, base=numpy.e, sink=None):
    """(out, lse) of all partials; sink: logits [h] of a key of value 0."""
    lses = numpy.stack([lse for _, lse in partials])
    if sink is not None:
        lses = numpy.concatenate([lses, numpy.broadcast_to(sink[:, None], lses.shape[1:])[None].astype(lses.dtype)])
    top = lses.max(0)
    w = numpy.power(lses.dtype.type(base), lses - numpy.where(top == -INF, 0, top)) if base != numpy.e else numpy.exp(lses - numpy.where(top == -INF, 0, top))
    total = w.sum(0)
    out = sum(w[r][..., None] * o for r, (o, _) in enumerate(partials)) / numpy.where(total == 0, 1, total)[..., None]
    return out.astype(lses.dtype), (numpy.log(total) / numpy.log(base)).astype(lses.dtype) + top


def with_sink(o, lse, sink):
    """A partial that also contains the sink."""
    of_both = numpy.logaddexp(lse, sink[:, None].astype(lse.dtype))
    return o * numpy.exp(lse - of_both)[..., None], of_both


def engine(c, rank=None, scale=None, k_scale=None, v_scale=None, of_partial=None, of_list=None, of_out=None, base=numpy.e, sink_on="case",
           real=numpy.float32, **of_kernel):
    """Returns what the engine of a case computes. The arguments are its faults.

    rank(r): keys, values and mask. of_partial(r, o, lse), of_list(partials), of_out(out, lse): a change of results.
    sink_on: the ranks whose partials contain the learned sink, "merge" or None
    """
    s = c.settings
    scale = (s["scale"] if scale is None else scale) * (s["k_scale"] if k_scale is None else k_scale)
    v_scale = s["v_scale"] if v_scale is None else v_scale
    if sink_on == "case":
        sink_on = c.sink_at if c.sink_at == "merge" else (c.sink_at,)
    partials, plain = [], rank is None and not of_kernel and real is numpy.float32
    with numpy.errstate(all="ignore"):
        for r in range(c.p):
            if plain and (r, scale) in c.plain:  # many faults change results alone
                o, lse = c.plain[r, scale]
            else:
                k, v, seen = (rank or c.rank)(r)
                o, lse = partial(c, c.q, k, v, seen, scale, s["soft_cap"], real=real, **of_kernel)
                if plain:
                    c.plain[r, scale] = o, lse
            o = o * real(v_scale)
            if c.sink is not None and sink_on not in ("merge", None) and r in sink_on:
                o, lse = with_sink(o, lse, c.sink)
            if of_partial is not None:
                o, lse = of_partial(r, o, lse)
            partials.append((rounded(o, c.partial_type) if real is numpy.float32 else o, lse))
        out, lse = merge(of_list(partials) if of_list else partials, base, c.sink if sink_on == "merge" else None)
        if of_out is not None:
            out, lse = of_out(out, lse)
    return {"partials": partials, "out": out, "lse": lse}


def bounds(c):
    """Exact out and lse in double, and a-priori bounds of an engine's errors: docs/II.3-errors.md, for sums in any order. [b, h, l, d_v], [b, h, l]"""
    s, head_of = c.settings, numpy.arange(c.h) // (c.h // c.kvh)
    q, k, v = c.q.astype("float64"), c.k[:, head_of].astype("float64"), c.v[:, head_of].astype("float64") * s["v_scale"]
    scale, seen, cap = s["scale"] * s["k_scale"], c.seen(numpy.arange(c.n)), s["soft_cap"]
    v = numpy.where(seen.any(0)[:, None], v, 0)
    x = scale * q @ k.swapaxes(2, 3)
    x = numpy.where(seen, cap * numpy.tanh(x / cap) if cap else x, -INF)
    sink = numpy.full(c.h, -INF) if c.sink is None else c.sink.astype("float64")
    top = numpy.maximum(x.max(-1), sink[:, None])[..., None]
    w = numpy.exp(x - numpy.where(top == -INF, 0, top))
    total = w.sum(-1, keepdims=True) + numpy.exp(sink[:, None, None] - numpy.where(top == -INF, 0, top))
    w, lse = w / numpy.where(total == 0, 1, total), (top + numpy.log(numpy.where(total == 0, 1, total)))[..., 0]
    near = x > top - numpy.log(c.n / U) - 1
    delta = numpy.where(near, (c.d + 1) * U * scale * (abs(q) @ abs(k).swapaxes(2, 3)) + 4 * U * cap, 0).max(-1)
    width = numpy.where(near, top - x, 0).max(-1)
    roundoff = 3 * max(ROUNDOFF[c.partial_type], ROUNDOFF[c.out_type], ROUNDOFF[c.type])  # a kernel may round weights to the type of its inputs
    of_weights = delta + (width + 8 * numpy.maximum(1, abs(numpy.where(lse == -INF, 0, lse)))) * U
    r = (2 * (c.n + c.p) + 12 * (c.n / 32 + c.p + 1) + 3) * U + roundoff
    size = w @ abs(v)
    bound = (numpy.expm1(2 * of_weights) + r)[..., None] * size + numpy.where(near, 0, w) @ abs(v) + LEAST_STEP[c.type]
    return w @ v, lse, bound, 16 * U * numpy.maximum(1, abs(lse)) + delta + (c.n + c.p) * U + roundoff / 32  # exponentials for 16 bits have 20


# ---- faults -----------------------------------------------------------------------------------------------------------
# Each function returns the ways in which its fault occurs, as arguments of engine(); none where the case cannot have it. The first are drawn
# most often. random is None where all that could be equal to another fault are listed.
def empty_rows(lse):
    return lse == -INF


def lse_base2(c, random):
    """sgl-project/sglang#33065: kernels return base two, the merge takes it as natural, or the other way round."""
    def to_two(ranks):
        return lambda r, o, lse: (o, lse / numpy.float32(numpy.log(2)) if r in ranks else lse)
    one = range(c.p) if random is None else [int(random.integers(c.p))]
    yield {"of_partial": to_two(range(c.p))}
    yield {"base": 2.0}
    yield {"of_out": lambda out, lse: (out, lse / numpy.float32(numpy.log(2)))}
    for r in one:
        yield {"of_partial": to_two([r])}


def empty_lse(c, random):
    """sgl-project/sglang#34355, vllm-project/vllm#50484: lse of rows without keys is +inf, 0, or was never written."""
    seed = int(random.integers(1 << 30)) if random is not None else 0

    def written(value, keeps_o):
        def of_partial(r, o, lse):
            garbage = numpy.random.default_rng([seed, r])
            empty, x = empty_rows(lse), garbage.standard_normal(lse.shape) * 4 if value is None else value
            o = o if keeps_o else numpy.where(empty[..., None], NAN if value is NAN else garbage.standard_normal(o.shape), o)
            return o.astype("float32"), numpy.where(empty, x, lse).astype("float32")
        return of_partial
    yield {"of_partial": written(INF, True)}
    yield {"of_partial": written(0.0, True)}
    if random is None:
        yield {"of_partial": written(NAN, True)}
        yield {"of_partial": written(NAN, False)}
    else:
        yield {"of_partial": written(None, True)}
        yield {"of_partial": written(None, False)}


def nan_zero(c, random):
    """vllm-project/vllm#28181, Dao-AILab/flash-attention#2842: o of a rank without keys is 0/0; or a cache page that was never written is read with a weight of 0, and holds NaN."""
    for of_lse in (False, True):  # where the maximum of no scores is subtracted, the sum is NaN too
        yield {"of_partial": lambda r, o, lse, y=of_lse: (numpy.where(empty_rows(lse)[..., None], numpy.float32(NAN), o), numpy.where(y & empty_rows(lse), numpy.float32(NAN), lse))}
    if numpy.isnan(c.v).any():
        yield {"poisoned": True}


def local_index(c, r):
    """Returns how many keys of a rank come before each of its keys."""
    return numpy.argsort(numpy.argsort(c.positions[r]))


def local_window(c, random):
    """ROCm/ATOM#2118, vllm-project/vllm#50391: a length of the rank, less k, for the rank's share of the length less k."""
    def edges(ends, begins):
        def rank(r):
            own, j = c.positions[r], local_index(c, r)
            limit, w = c.limits(), c.settings["window"]
            end = (own <= c.n - 1).sum() + limit - (c.n - 1) if ends else (own <= limit).sum(-1, keepdims=True)  # of keys of the rank
            seen = j < end
            if w:
                inside = j >= end - w if begins else own > limit - w
                seen = seen & (inside | (own < c.settings["sinks"]))
            return c.k[:, :, own], c.v[:, :, own], seen
        return rank
    rows, w = c.settings["causal"] and c.l > 1, c.settings["window"] > 0
    if rows:
        yield {"rank": edges(True, False)}
    if w:
        yield {"rank": edges(False, True)}
    if rows and w:
        yield {"rank": edges(True, True)}


def window_off_by_one(c, random):
    """huggingface/transformers#39408, zml/zml#763: the window of a kernel does not count the query itself."""
    if w := c.settings["window"]:
        for step in (1, -1):
            if w + step > 0:
                yield {"rank": lambda r, w=w + step: c.rank(r, window=w)}
            elif random is None:  # no key but the sinks
                yield {"rank": lambda r: (*c.rank(r)[:2], c.rank(r)[2] & (c.positions[r] < c.settings["sinks"]))}


def window_replicated(c, random):
    """vllm-project/vllm#47541: layers of windows keep them on all ranks, whose results are merged as if they were disjoint."""
    if w := c.settings["window"]:
        def rank(r):
            recent = numpy.arange(max(0, c.limits().min() - w + 1), c.n)
            own = numpy.concatenate([numpy.setdiff1d(c.positions[r], recent), recent])
            return c.k[:, :, own], c.v[:, :, own], c.seen(own)
        yield {"rank": rank}


def sink_every_rank(c, random):
    """InternLM/lmdeploy#3951: the sink belongs to one rank only."""
    if c.sink is not None:
        yield {"sink_on": range(c.p)}
    if n := c.settings["sinks"]:
        yield {"rank": lambda r: (*c.rank(r)[:2], c.rank(r)[2] | ((local_index(c, r) < n) & (c.positions[r] <= c.limits())))}


def sink_missing(c, random):
    """PrimeIntellect-ai/prime-rl#3397: sinks are dropped under context parallelism."""
    if c.sink is not None and c.has_out:  # partials alone may all be without it
        yield {"sink_on": None}
    if c.settings["sinks"]:
        yield {"rank": lambda r: c.rank(r, sinks=0)}


def last_keys_missing(c, random):
    """sgl-project/sglang#33309: new keys are not there yet, or the length is too small; of all ranks, or of one."""
    def without(last, moves, of=None):
        def rank(r):
            own = c.positions[r]
            here = numpy.ones(len(own), bool) if of not in (None, r) else own < c.n - last if of is None else local_index(c, r) < len(own) - last
            k, v, seen = c.rank(r, limit=c.limits(c.n - last) if moves else None)
            return k[:, :, here], v[:, :, here], seen[:, here]
        return rank
    most = max(2, min(c.n // 3, 40))
    counts = [int(random.integers(1, most)) if random.random() < 0.6 else 1] if random is not None else [*range(1, most), *range(max(most, c.n - 8), c.n)]
    for m in counts:
        yield {"rank": without(m, False)}
        yield {"rank": without(m, True)}
    for r in [int(random.integers(c.p))] if random is not None else range(c.p):
        for m in [m for m in counts if m < len(c.positions[r])] if random is not None else range(1, len(c.positions[r]) + 1):
            yield {"rank": without(m, False, r)}


def dealt(c, r, chunk):
    """Returns where a rank believes that its keys are."""
    j = numpy.arange(len(c.positions[r]))
    return (j // chunk * c.p + r) * chunk + j % chunk if chunk else sum(len(x) for x in c.positions[:r]) + j


def interleave(c, random):
    """vllm-project/vllm#41623, sgl-project/sglang#32997: masks, or lengths of ranks, for positions dealt in other chunks."""
    if c.permuted and random is not None:
        return
    others = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256, c.settings["page_size"], 2 * c.settings["interleave"], c.settings["interleave"] // 2} - {c.settings["interleave"]}
    def by(chunk, moves, counts):
        def rank(r):
            position = dealt(c, r, chunk)
            k, v, seen = c.rank(r, position=position if moves else None)
            here = position < c.n if chunk and counts else position >= 0  # a length of the rank in other chunks: keys beyond it are not read
            return k[:, :, here], v[:, :, here], seen[:, here]
        return {"rank": rank}
    for chunk in sorted(others) if random is None else random.permutation(sorted(others)):
        for moves, counts in ((True, False), (False, True), (True, True)):
            yield by(int(chunk), moves, counts)


def heads_permuted(c, random):
    """Heads come back from an exchange in another order, in out, in all partials, or in one."""
    h, a = c.h, numpy.arange(c.h)
    orders = [numpy.roll(a, m) for m in ([int(random.integers(1, max(2, h)))] if random is not None else range(1, h))]
    orders += [a.reshape(m, h // m).T.ravel() for m in range(2, h) if h % m == 0] + [a[::-1]]
    if random is not None:
        i, j = random.choice(h, 2, replace=False) if h > 1 else (0, 0)
        swapped = a.copy()
        swapped[[i, j]] = swapped[[j, i]]
        orders = [orders[random.integers(len(orders))], swapped, random.permutation(a)]
    for order in orders:
        yield {"of_out": lambda out, lse, order=order: (out[:, order], lse[:, order])}
        yield {"of_partial": lambda r, o, lse, order=order: (o[:, order], lse[:, order])}
        for r in [int(random.integers(c.p))] if random is not None else range(c.p):
            yield {"of_partial": lambda of, o, lse, order=order, r=r: (o[:, order] if of == r else o, lse)}


def kv_grouping(c, random):
    """pytorch/pytorch#151359: heads of a group share a key head: h // group, not h % kv_heads."""
    if c.kvh > 1:
        a = numpy.arange(c.h)
        for head_of in (a % c.kvh, 0 * a, (a // (c.h // c.kvh) + 1) % c.kvh):
            yield {"head_of": head_of}


def scale_missing(c, random):
    yield {"scale": 1.0}


def scale_twice(c, random):
    yield {"scale": c.settings["scale"] ** 2}


def fp8_scale_missing(c, random):
    if c.kv_type == "F8_E4M3":
        yield {"k_scale": 1.0}
        yield {"v_scale": 1.0}
        yield {"k_scale": 1.0, "v_scale": 1.0}


def partials_16bit(c, random):
    """flashinfer-ai/flashinfer#4929: partials travel in 16 bits, declared as float32."""
    for dtype in ("BF16", "F16"):
        for of_o, of_lse in ((True, False), (True, True), (False, True)):
            yield {"of_partial": lambda r, o, lse, t=dtype, x=of_o, y=of_lse: (rounded(o, t) if x else o, rounded(lse, t) if y else lse)}


def softcap_after_mask(c, random):
    """Dao-AILab/flash-attention#1025, emmtrix/emx-onnx-cgen#731: the cap of -inf is -cap, so a masked key has a weight."""
    if c.settings["soft_cap"]:
        yield {"after_mask": True}


def rank_twice(c, random):
    for r in [int(random.integers(c.p))] if random is not None else range(c.p):
        yield {"of_list": lambda partials, r=r: partials + [partials[r]]}


def rank_missing(c, random):
    for r in [int(random.integers(c.p))] if random is not None else range(c.p):
        if c.p > 1:
            yield {"of_list": lambda partials, r=r: partials[:r] + partials[r + 1:]}
        yield {"of_partial": lambda of, o, lse, r=r: (0 * o, numpy.full_like(lse, -INF)) if of == r else (o, lse)}


def causal_edge(c, random):
    """Dao-AILab/flash-attention#708, 2.1: the edge is aligned at the first key, of all or of each rank's own."""
    if c.settings["causal"]:
        first = numpy.arange(c.l)[:, None]
        yield {"rank": lambda r: c.rank(r, limit=first)}
        yield {"rank": lambda r: c.rank(r, position=local_index(c, r), limit=first)}


def rotated(k, by, theta, halves):
    """Keys whose rotary positions are changed by so many. [b, kv_h, n, d]"""
    d = k.shape[3]
    angle = by[:, None] * theta ** (-2 * numpy.arange(d // 2) / d)
    cos, sin = numpy.cos(angle), numpy.sin(angle)
    first, second = (slice(0, d // 2), slice(d // 2, d)) if halves else (slice(0, d, 2), slice(1, d, 2))
    turned = k.astype("float64")
    turned[..., first], turned[..., second] = k[..., first] * cos - k[..., second] * sin, k[..., first] * sin + k[..., second] * cos
    return turned.astype("float32")


def rope_position(c, random):
    """sgl-project/sglang#28463, #32098: rotary embedding by positions of the rank, or by an offset that is wrong."""
    starts = [int(x.min()) if len(x) else 0 for x in c.positions]
    kinds = [(theta, halves) for theta in (1e4, 5e5, 1e6) for halves in (True, False)]
    if random is not None:
        kinds = [kinds[random.choice(6, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.1])]]
    for theta, halves in kinds:
        def turn(by, ranks=range(c.p), theta=theta, halves=halves):
            def rank(r):
                k, v, seen = c.rank(r)
                return (rotated(k, by(r), theta, halves) if r in ranks else k), v, seen
            return {"rank": rank}

        def local(r):
            return local_index(c, r) - c.positions[r]
        yield turn(local)
        for r in [int(random.integers(c.p))] if random is not None else range(c.p):
            yield turn(local, [r])
            yield turn(lambda r: starts[r] + 0 * c.positions[r], [r])
            yield turn(lambda r: 1 + 0 * c.positions[r], [r])
            yield turn(lambda r: -1 + 0 * c.positions[r], [r])


def other(c, random):
    """Faults that are none of those above: the tool is to say so."""
    r, i = int(random.integers(c.p)), int(random.integers(c.h))
    noise = numpy.random.default_rng(int(random.integers(1 << 30)))
    yield {"scale": c.settings["scale"] * random.uniform(1.2, 1.8)}
    yield {"of_out": lambda out, lse: (out * numpy.float32(1.05), lse)}
    yield {"of_out": lambda out, lse: (out + 0.1 * noise.standard_normal(out.shape).astype("float32"), lse)}
    yield {"rank": lambda s: (c.rank(s)[0], c.rank(s)[1] * numpy.where(s == r, -1, 1).astype("float32"), c.rank(s)[2])}
    yield {"of_out": lambda out, lse: (numpy.where(numpy.arange(c.h)[:, None, None] == i, 0.5 * out, out), lse)}
    yield {"rank": lambda s: (c.rank(s)[0][..., ::-1], *c.rank(s)[1:])}


# The fault, and settings of cases that can have it.
FAULTS = {lse_base2: {}, empty_lse: {"empty": True, "dealt": False}, nan_zero: {"empty": True, "dealt": False}, local_window: {"causal": True},
          window_off_by_one: {"window": True}, window_replicated: {"window": True}, sink_every_rank: {}, sink_missing: {}, last_keys_missing: {},
          interleave: {"causal": True}, heads_permuted: {}, kv_grouping: {"groups": True}, scale_missing: {}, scale_twice: {},
          fp8_scale_missing: {"kv_type": "F8_E4M3"}, partials_16bit: {"type": "F32"}, softcap_after_mask: {"soft_cap": True, "causal": True},
          rank_twice: {}, rank_missing: {}, causal_edge: {"causal": True}, rope_position: {}}
NAMES = {fault.__name__: fault for fault in FAULTS}


def wishes(fault, random):
    """Settings of a case for a fault, some drawn."""
    wish = dict(FAULTS.get(fault, {}))
    if fault in (local_window, sink_every_rank, last_keys_missing, causal_edge, rope_position):  # of keys of a rank in their order
        wish["permuted"] = False
    heads = random.random() < 0.5
    if fault in (local_window, interleave):
        wish.update({"window": True} if heads else {"l": 2 + int(random.integers(4)), "dealt": True if fault is local_window else None})
    if fault in (sink_every_rank, sink_missing):
        wish.update({"sink": True} if heads else {"window": True, "sinks": True})
    if fault is window_replicated:
        wish.update({"sinks": True} if random.random() < 0.4 else {"sink": True} if heads else {})
    if fault is softcap_after_mask:
        wish.update({"window": True} if heads else {"l": 4})
    return wish


def exceeds(got, want, bound):
    """The largest distance in bounds, or inf where NaN or Inf differ."""
    got = got.astype("float64")
    special = ~numpy.isfinite(want) | ~numpy.isfinite(got)
    if not numpy.array_equal(numpy.where(special, got, 0), numpy.where(special, want, 0), equal_nan=True):
        return INF
    return (abs(numpy.where(special, 0, got) - numpy.where(special, 0, want)) / numpy.where(special, 1, bound)).max(initial=0)


def seen_results(c, result):
    """out and lse as the dump has them, or None. Without out, the partials of the dump are merged."""
    if c.has_out:
        return rounded(result["out"], c.out_type), result["lse"] if c.has_lse else None
    with numpy.errstate(all="ignore"):
        return merge(result["partials"], sink=c.sink if c.sink_at == "merge" else None)


def distance(c, result):
    """Returns how many bounds out or lse of a dump are from the exact ones."""
    out, lse, bound, of_lse = bounds(c)
    got, got_lse = seen_results(c, result)
    return max(exceeds(got, out, bound), 0 if got_lse is None else exceeds(got_lse, lse, of_lse))


def poison(c):
    """NaN in values that no row sees, as in memory that was never written."""
    unseen = ~c.seen(numpy.arange(c.n)).any(0)
    if unseen.any() and c.kv_type != "F8_E4M3":
        c.v[:, :, unseen] = NAN
        c.plain.clear()
        c.stored_v = store(c.v, c.kv_type)


class Run:
    """A drawn dump: case, result, dump, types, settings, and fault, the name or "right"."""

    def __init__(self, name, seed, held=False, **wish):
        random = numpy.random.default_rng([zlib.crc32(name.encode()), seed, held])
        fault = other if name == "other" else NAMES.get(name)
        self.fault, self.seed, self.held, self.draws = name, seed, held, 0
        while True:
            self.draws += 1
            self.case = c = Case(random, held, **{**({} if fault is None else wishes(fault, random)), **wish})
            if random.random() < (0.4 if fault is nan_zero else 0.05):
                poison(c)
            if fault is None:
                self.result = engine(c)
                break
            ways = list(fault(c, random))
            if not ways:
                continue
            share = 0.7 ** numpy.arange(len(ways))
            self.result = engine(c, **ways[random.choice(len(ways), p=share / share.sum())])
            if distance(c, self.result) > LEAST:
                break
            if self.draws > 2000:
                raise ValueError(f"{name}, seed {seed}: no draw moves the output")
        self.dump, self.types = c.dump(self.result)
        self.settings = c.shown_settings()

    def equals(self, name):
        """Tests whether another fault, or none, gives the numbers of this dump, within the bounds of errors."""
        c, (out, lse, bound, of_lse) = self.case, bounds(self.case)
        for way in [{}] if name == "right" else NAMES[name](c, None):
            result = engine(c, **way)
            pairs = [(result["out"], self.result["out"], bound)] * c.has_out + [(result["lse"], self.result["lse"], of_lse)] * c.has_lse
            for (o, s), (o2, s2) in zip(result["partials"], self.result["partials"]) if c.has_partials else ():
                pairs += [(o, o2, 2 * bound.max() + 2 * abs(o) * (2 * ROUNDOFF[c.partial_type])), (s, s2, 2 * of_lse + 32 * U * abs(s))]
            with numpy.errstate(all="ignore"):
                if all(exceeds(a, b.astype("float64"), 2 * x) <= 1 for a, b, x in pairs):
                    return True
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fault", choices=[*NAMES, "other", "right"])
    parser.add_argument("seed", type=int)
    parser.add_argument("file")
    parser.add_argument("--held", action="store_true")
    options = parser.parse_args()
    run = Run(options.fault, options.seed, options.held)
    save(options.file, run.dump, run.types, run.settings)


if __name__ == "__main__":
    main()
