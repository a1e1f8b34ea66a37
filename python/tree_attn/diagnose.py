# SPDX-License-Identifier: Apache-2.0
"""Is a decode over ranks right, and if not, which fault explains it? Run: python -m tree_attn.diagnose FILE.safetensors [--json]

    report = tree_attn.diagnose(q, shards, partials, out, lse, layout)      or, of tensors by name, tree_attn.diagnose(dump, layout=...)

A dump is a dict name -> array: `q` [batch, heads, rows, d]; per rank r: `k.{r}`, `v.{r}` [batch, kv_heads, n_r, d or d_v] the keys and values of that
rank in the rank's order; `positions.{r}` [n_r] int64: global position of each key of the rank (optional; absent = contiguous ranges in rank order);
`o.{r}` [batch, heads, rows, d_v], `lse.{r}` [batch, heads, rows] the partial of the rank, natural log unless faulty (optional); `out` [batch, heads,
rows, d_v], `lse` [batch, heads, rows] the combined result (optional; at least partials or out is there). Settings (JSON string in safetensors
`__metadata__` under "settings", in Python a dict `layout`): `scale` (default 1/sqrt(d)), `causal` (default false; aligned at the end of the keys:
row i of l sees positions <= n_total - l + i), `window` (0 none; a key is seen where position > limit - window), `sinks` (attention sinks = number of
first positions always seen with a window), `sink_weight` [heads] learned sink logits (optional tensor `sink`), `soft_cap` (0 none), `page_size`,
`interleave` (0 = contiguous, else keys dealt round robin in chunks of so many), `k_scale`, `v_scale` (FP8 scales, 1.0). Types f32, f16, bf16 (as
uint16 or ml_dtypes in NumPy; safetensors dtype BF16), F8_E4M3. In the dump q, k, v and settings are what the user's engine was GIVEN (right); the
fault is in what was computed: `o.r`, `lse.r`, `out`, `lse`.

The oracle gives every rank's (o, lse) in double, error_bound() the errors that their type allows. A tensor beyond them is wrong. Then every fault
predicts all tensors at some rows; those that agree are named, the closest first, of equals the simplest.
"""
import collections
import functools
import itertools
import json
import math
import pathlib
import sys
import types

import numpy

import tree_attn

# In the order of simplicity; docs/diagnose.md says what each is.
FAULTS = ("lse_base2 empty_lse nan_zero local_window window_off_by_one window_replicated sink_every_rank sink_missing last_keys_missing interleave "
          "heads_permuted kv_grouping scale_missing scale_twice fp8_scale_missing partials_16bit softcap_after_mask rank_twice rank_missing causal_edge "
          "rope_position").split()
NONE, U, LOG2E = "none of these", 2.0 ** -24, 1 / math.log(2)
# A rounding to a type of unit roundoff u has an error of at most u |x| + LEAST[u], half the smallest subnormal; of other types than F16 that is below 1e-37.
LEAST = collections.defaultdict(float, {2.0 ** -11: 2.0 ** -25})
SETTINGS = {"scale": None, "causal": False, "window": 0, "sinks": 0, "sink_weight": None, "soft_cap": 0, "page_size": 0, "interleave": 0,
            "k_scale": 1.0, "v_scale": 1.0}
_F8 = numpy.array([(-1) ** (x >> 7) * ((x & 7) / 8 + (x >> 3 & 15 > 0)) * 2.0 ** (max(x >> 3 & 15, 1) - 7) if x & 127 != 127 else math.nan
                   for x in range(256)], "float32")
# Partials [p, rows.., d_v + 1] or their merge, without the first axis: outputs, then the lse, and how far from them a right engine may be.
State = collections.namedtuple("State", "x bound")


def _wide(x, name):
    """An array in F32 or F64, and the unit roundoff of its type."""
    x = numpy.asarray(x)
    if x.dtype.name in ("uint16", "bfloat16"):
        return (x.view("uint16").astype("uint32") << 16).view("float32"), 2.0 ** -8
    if x.dtype.name in ("uint8", "float8_e4m3fn"):
        return _F8[x.view("uint8")], 2.0 ** -4
    if x.dtype.name not in ("float16", "float32", "float64"):
        raise ValueError(f"{name} is of type {x.dtype.name}; F32, F16, BF16 or F8_E4M3 is needed")
    return (x.astype("float32"), 2.0 ** -11) if x.dtype.name == "float16" else (x, U)


def _round16(x, kind):
    """F16, or BF16 from F32 by the nearest even."""
    if kind == "F16":
        return x.astype("float16").astype("float64")
    bits = numpy.ascontiguousarray(x, "float32").view("uint32")
    return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype("uint32").view("float32").astype("float64")


def _parts(seen, want, bound, unread=None):
    """The distance of every element as a multiple of its bound: 0 for equal values, and for NaN where NaN is wanted.

    A row without keys may have any lse below -1e4, and any output but NaN; NaN too where `unread` says that the merge gives it no weight. None: the
    merge itself, whose outputs are always read.
    """
    part = abs(seen - want) / (bound + 1e-37)
    if not (part < numpy.inf).all():
        part = numpy.where((seen == want) | numpy.isnan(seen) & numpy.isnan(want), 0, numpy.where(numpy.isnan(part), numpy.inf, part))
        empty = numpy.isneginf(want[..., -1:])
        part[..., -1:][empty & (seen[..., -1:] < -1e4)] = 0
        if unread is not None:
            part[..., :-1][empty & (unread | ~numpy.isnan(seen[..., :-1]))] = 0
    return part


def _rounded(error, x, u):
    """The error of a number within `error` of x after it is rounded once: |fl(y) - x| <= error + u |y| + LEAST[u], and |y| <= |x| + error."""
    return error * (1 + u) + u * abs(x) + LEAST[u]


def _merge(t, sink=None, counts=None, roundoff=(U, U)):
    """The merge of ranks in double, each so often as counts says, and of a learned sink; roundoff: of the types of out and of lse."""
    o, lse = t.x[..., :-1], t.x[..., -1] if counts is None else t.x[..., -1] + numpy.log(numpy.reshape(counts, (-1,) + (1,) * (t.x.ndim - 2)))
    shift = lse.max(0) if sink is None else numpy.maximum(lse.max(0), sink)
    shift = numpy.where(numpy.isfinite(shift), shift, 0)
    w = numpy.exp(lse - shift)
    total = w.sum(0) if sink is None else w.sum(0) + numpy.exp(sink - shift)
    w = (w / numpy.where(total == 0, 1, total))[..., None]
    out, of_all = (w * o).sum(0), shift + numpy.log(total)
    bound = (w * (t.bound[..., :-1] + numpy.expm1(2 * t.bound[..., -1:]) * abs(o - out) + (2 * len(o) + 10) * U * abs(o))).sum(0)
    bound, of_lse = _rounded(bound, out, roundoff[0]), _rounded((w * t.bound[..., -1:]).sum(0)[..., 0] + 8 * U + 9 * U * abs(of_all), of_all, roundoff[1])
    return State(numpy.append(out, of_all[..., None], -1), numpy.append(bound, of_lse[..., None], -1))


def _changed(t, ranks, x, bound=None, columns=slice(None)):
    """Partials where some ranks have other outputs, lse or both."""
    new = State(*(numpy.array(f) for f in t))
    new.x[ranks, ..., columns], new.bound[ranks, ..., columns] = x, new.bound[ranks, ..., columns] if bound is None else bound
    return new


class _Dump:
    """The tensors of a dump, checked, and the truth: what every rank and the merge should have."""

    def __init__(self, tensors, layout):
        unknown = sorted(set(layout or {}) - set(SETTINGS))
        if unknown:
            raise ValueError(f"settings has {unknown[0]!r}; there are: {', '.join(SETTINGS)}")
        self.s = s = types.SimpleNamespace(**{**SETTINGS, **(layout or {})})
        self.p = p = next(r for r in itertools.count() if f"k.{r}" not in tensors)

        def has(name, *shape):
            if name not in tensors:
                raise ValueError(f"there is no {name}")
            x, u = _wide(tensors[name], name)
            if x.ndim != len(shape) or any(m not in (None, n) for m, n in zip(shape, x.shape)):
                raise ValueError(f"{name} is {list(x.shape)}; expected {[n if n is not None else 'any' for n in shape]}")
            return x, u

        self.q, self.u_in = has("q", None, None, None, None)
        b, h, l, d = self.q.shape
        self.kv, self.d_v = has("k.0", b, None, None, d)[0].shape[1], has("v.0", b, None, None, None)[0].shape[3]
        if not self.kv or h % self.kv:
            raise ValueError(f"q has {h} heads, k.0 has {self.kv}")
        self.k = [has(f"k.{r}", b, self.kv, None, d)[0] for r in range(p)]
        self.n = numpy.array([k.shape[2] for k in self.k])
        self.v = [has(f"v.{r}", b, self.kv, n, self.d_v)[0] for r, n in enumerate(self.n.tolist())]
        self.total, self.at, self.group = int(self.n.sum()), numpy.cumsum([0, *self.n]), h // self.kv
        # What was computed, [p + 1, batch, heads, rows, d_v + 1] with the merge last, and which of it is there.
        self.seen, self.known, self.u = numpy.zeros((p + 1, b, h, l, self.d_v + 1)), numpy.zeros((p + 1, 1, self.d_v + 1), bool), numpy.full((2, 2), U)
        self.names = {}
        for r, (o, lse) in enumerate([(f"o.{r}", f"lse.{r}") for r in range(p)] + [("out", "lse")]):
            for i, name, at, shape in ((0, o, slice(self.d_v), (b, h, l, self.d_v)), (1, lse, self.d_v, (b, h, l))):
                if name in tensors:
                    self.names[r, i], (self.seen[r][..., at], u) = name, has(name, *shape)
                    self.known[r, :, at], self.u[int(r == p), i] = True, max(u, self.u[int(r == p), i])
        if not self.known[:p, 0, 0].any():  # outputs that are not there had the type of their merge
            self.u[0, 0] = self.u[1, 0]
        if not self.names:
            raise ValueError("there is nothing to check: no o.0, lse.0, out or lse")
        dealt = self.dealt(s.interleave)
        dealt = dealt if [len(x) for x in dealt] == self.n.tolist() else self.dealt(0)
        self.positions = [numpy.asarray(tensors.get(f"positions.{r}", dealt[r])).astype("int64") for r in range(p)]
        if any(x.shape != (n,) for x, n in zip(self.positions, self.n)):
            raise ValueError("a rank has another number of positions than of keys")
        self.k_scale, self.v_scale = (numpy.broadcast_to(numpy.asarray(x, "float32").reshape(-1), self.kv) for x in (s.k_scale, s.v_scale))
        self.k, self.v = ([x if (f == 1).all() else x * f[:, None, None] for x in of] for of, f in ((self.k, self.k_scale), (self.v, self.v_scale)))
        self.scale, sink = d ** -0.5 if s.scale is None else float(s.scale), tensors.get("sink", s.sink_weight)
        self.sink = None if sink is None else numpy.broadcast_to(numpy.asarray(sink, "float64").reshape(h, 1), (b, h, l))
        self.limit = self.total - l + numpy.arange(l) if s.causal else numpy.full(l, self.total - 1)

    def dealt(self, chunk):
        """Positions of each rank: contiguous ranges of its keys, or chunks dealt in turn."""
        x = numpy.arange(self.total)
        return [x[x // chunk % self.p == r] if chunk else x[self.at[r]:self.at[r + 1]] for r in range(self.p)]

    def additions(self, n):
        """Most additions that a weight passes through: leaves of 64 keys in a chain, then a tree, as in kernels of most engines."""
        return 66 + numpy.ceil(numpy.log2(numpy.maximum(n, 1)))

    def roundoff(self):
        """The relative error of a product of a weight, rounded to the type of q where self.rounds is not 0, and a value, in an output that is rounded too."""
        return (1 + self.rounds) * (1 + self.u[0, 0]) - 1

    def lse_bound(self, lse, score):
        """The error of the lse of every rank [p, rows..]."""
        lse, additions = numpy.where(numpy.isinf(lse), 0, lse), self.additions(self.n).reshape(-1, *(1,) * (lse.ndim - 1))
        return _rounded(score + (additions + 8 * numpy.maximum(1, abs(lse))) * U + self.u_in * (self.u_in > U), lse, self.u[0, 1])

    def score_bound(self):
        """(d + 1) u scale |q| |k| [p, batch, heads, rows]: the error of a score on each rank."""
        size = lambda x: numpy.sqrt(numpy.einsum("bhld,bhld->bhl", x, x))
        q, k = size(self.q), [size(k).max(2, initial=0).repeat(self.group, 1)[:, :, None] for k in self.k]
        return (self.q.shape[3] + 1) * U * abs(self.scale) * numpy.array([q.astype("float64") * x for x in k])

    def truth(self):
        """Partials of all ranks by the oracle. Rows that see the same keys of a rank are one call."""
        b, h, l, _ = self.q.shape
        x, bound, score = numpy.zeros((self.p, b, h, l, self.d_v + 1)), numpy.zeros((self.p, b, h, l, self.d_v + 1)), self.score_bound()
        x[..., -1] = -numpy.inf
        for r, position in enumerate(self.positions):
            k, v = self.k[r], self.v[r]
            if (position[1:] <= position[:-1]).any():
                order = position.argsort(kind="stable")
                k, v, position = numpy.ascontiguousarray(k[:, :, order]), numpy.ascontiguousarray(v[:, :, order]), position[order]
            ends = numpy.searchsorted(position, self.limit + 1)
            begins = numpy.searchsorted(position, self.limit + 1 - self.s.window) if self.s.window else 0 * ends
            sinks = numpy.minimum(numpy.searchsorted(position, self.s.sinks if self.s.window else 0), ends)
            for begin, end, first in sorted({*zip(begins.tolist(), ends.tolist(), sinks.tolist())}):
                rows = numpy.flatnonzero((begins == begin) & (ends == end) & (sinks == first))
                begin, end = (begin, end) if begin < end else (0, first)
                if end:
                    q, (o, lse) = numpy.ascontiguousarray(self.q[:, :, rows]), (numpy.empty((b, h, len(rows), *of)) for of in ((self.d_v,), ()))
                    of, (seen, _) = (q, k[:, :, :end], v[:, :, :end]), tree_attn._seen(False, *((None, None) if begin <= first else (end - begin, first)), None, self.s.soft_cap)
                    tree_attn._call("oracle", *of, None, self.scale, seen, o, lse, None, None, 1)
                    x[r][:, :, rows, :-1], x[r][:, :, rows, -1] = o, lse
                    tree_attn._call("error_bound", *of, self.scale, seen, float(self.additions(end)), 1, self.roundoff(), o, 1)
                    least = LEAST[self.rounds] and LEAST[self.rounds] * abs(v[:, :, numpy.r_[:first, max(begin, first):end]]).sum(2, dtype="float64").repeat(self.group, 1)[:, :, None]
                    bound[r][:, :, rows, :-1] = o + least + LEAST[self.u[0, 0]]
        bound[..., -1] = self.lse_bound(x[..., -1], score)
        return State(x, bound)

    def merged(self, t, sink=0, counts=None, rows=()):
        """_merge() with the types of the dump's results and its learned sink, plus a number; None: without it."""
        return _merge(t, None if self.sink is None or sink is None else self.sink[rows] + sink, counts, self.u[1])

    def each(self, t, rows=()):
        """Partials to which every rank has added the learned sink."""
        return t if self.sink is None else State(*(numpy.stack(f) for f in zip(*(_merge(State(*(f[r:r + 1] for f in t)), self.sink[rows]) for r in range(self.p)))))

    def view(self, rows=(), cols=slice(None)):
        """What was computed [p + 1, rows.., columns], and whether it is known."""
        seen = self.seen[(slice(None), *rows)][..., cols]
        return seen, self.known.reshape(self.p + 1, *(1,) * (seen.ndim - 2), -1)[..., cols]

    def parts(self, partials, merges, view=None, most=numpy.inf):
        """Parts of the bound [p + 1, rows.., columns]: of each rank, and of the merge, those of the prediction that is closest. None if one is above most."""
        (seen, known), found = view or self.view(), []
        for of, tries, unread in ((slice(self.p, None), [[f[None] for f in t] for t in merges], None), (slice(self.p), partials, self.known[self.p, 0, 0])):
            x = [numpy.where(known[of], _parts(seen[of], *t, unread), 0) for t in tries if known[of].any()] or [numpy.zeros(seen[of].shape)]
            worst = numpy.array([y.max(tuple(range(1, y.ndim)), initial=0) for y in x])
            if worst.min(0).max(initial=0) > most:
                return None
            found.append(x[0] if len(x) == 1 else numpy.stack(x)[worst.argmin(0), numpy.arange(len(x[0]))])
        return numpy.concatenate(found[::-1])


class _Rows:
    """Some rows of a dump over all its keys, where faults are tried: scores [rows, keys] in the order of ranks; some columns, of which the last is lse."""

    def __init__(self, dump, rows, cols):
        self.d, self.rows, self.cols, (self.b, self.h, self.i) = dump, rows, cols, rows
        self.position, self.rank = numpy.concatenate(dump.positions), numpy.repeat(numpy.arange(dump.p), dump.n)
        self.local = numpy.concatenate([x.argsort(kind="stable").argsort(kind="stable") for x in dump.positions])
        self.limit, self.kv, self._values = dump.limit[self.i][:, None], self.h // dump.group, {}
        self.exact = dump.total * dump.q.shape[3] * len({*zip(self.b, self.kv)}) < 1 << 24
        self.score_bound = dump.score_bound()[(slice(None), *rows)]
        self.view, self.truth = dump.view(rows, cols), self.taken(dump.raw)
        self.raw = numpy.zeros((len(self.b), dump.total))
        self.raw = self.scores(self.kv)
        self.plain = self.capped(self.raw)

    def taken(self, t):
        """Partials at these rows and columns."""
        return State(*(f[(slice(None), *self.rows)][..., self.cols] for f in t))

    def blocks(self, kv):
        """The rows that read the same head of keys or values, for each of those."""
        for b, g in sorted({*zip(self.b.tolist(), kv.tolist())}):
            yield b, g, numpy.flatnonzero((self.b == b) & (kv == g))

    def scores(self, kv, ranks=None, q=None, keys=None):
        """scale q.k for the key/value heads of each row, of all ranks or of some; keys: those of an entry, a head and a rank."""
        s, q = self.raw.copy(), (self.d.q[self.rows] if q is None else q).astype("float64" if self.exact else "float32")
        for (b, g, of), r in itertools.product(self.blocks(kv), range(self.d.p) if ranks is None else ranks):
            s[of, self.d.at[r]:self.d.at[r + 1]] = q[of] @ (keys or (lambda b, g, r: self.d.k[r][b, g]))(b, g, r).astype(q.dtype, copy=False).T * self.d.scale
        return s

    def values(self, kv):
        """The values of all keys beside their sizes, which of them are not finite (or None), and the rows that read them."""
        for b, g, of in self.blocks(kv):
            if (b, g) not in self._values:
                v = numpy.concatenate([v[b, g][:, self.cols[:-1]] for v in self.d.v]).astype("float64")
                bad = ~numpy.isfinite(v)
                v = numpy.where(bad, 0, v)
                self._values[b, g] = numpy.append(v, abs(v), 1), bad if bad.any() else None
            yield *self._values[b, g], of

    def capped(self, s):
        return self.d.s.soft_cap * numpy.tanh(s / self.d.s.soft_cap) if self.d.s.soft_cap else s

    def sees(self, position=None, limit=None, window=None, sinks=None):
        """Which keys each row sees [rows, keys], by the rule of the settings where nothing else is given."""
        position, limit = self.position if position is None else position, self.limit if limit is None else limit
        window, sinks = self.d.s.window if window is None else window, self.d.s.sinks if sinks is None else sinks
        return (position <= limit) & ((position > limit - window) | (position < sinks)) if window else position <= limit

    def before(self, position):
        """Keys of each rank below a position of each row [rows, 1]: local(G)."""
        return numpy.stack([numpy.searchsorted(numpy.sort(x), position[:, 0]) for x in self.d.positions], 1)

    def state(self, seen, scores=None, kv=None, stretch=1, fill=-numpy.inf, factor=1, read=None):
        """Partials over the keys seen. stretch: of the scores' errors; fill: score of keys that are not seen; factor: of values; read: whose are read."""
        d, live, n = self.d, numpy.flatnonzero(self.d.n), len(self.cols) - 1
        x, bound = numpy.zeros((2, d.p, len(self.b), n + 1))
        s, score, each = numpy.where(seen, self.plain if scores is None else scores, fill), self.score_bound * max(1, abs(stretch)), lambda f: f.repeat(d.n[live], 1)
        top = numpy.maximum.reduceat(s, d.at[live], 1)
        top = numpy.where(numpy.isneginf(top), 0, top)
        w = numpy.exp(s - each(top))
        total = numpy.add.reduceat(w, d.at[live], 1)
        w /= each(numpy.where(total == 0, 1, total))
        w = w if read is None else w * read
        x[..., -1] = -numpy.inf
        x[live, :, -1] = (top + numpy.log(total)).T
        error = numpy.expm1(2 * (score + 60 * U)) + ((2 * d.additions(d.n) + 20) * U + d.roundoff())[:, None]
        for (v, bad, of), r in itertools.product(self.values(self.kv if kv is None else kv), live):
            at = slice(d.at[r], d.at[r + 1])
            own = w[of, at]
            both = own @ v[at]
            x[r, of, :-1], bound[r, of, :-1] = both[:, :n], both[:, n:] * error[r, of, None] + LEAST[d.u[0, 0]]
            if LEAST[d.rounds]:
                bound[r, of, :-1] += LEAST[d.rounds] * ((own > 0) @ v[at, n:])
            if bad is not None:
                x[r, of, :-1] += numpy.where(own @ bad[at] > 0, numpy.nan, 0)
        x[..., :-1], bound[..., :-1] = x[..., :-1] * factor, bound[..., :-1] * abs(factor)
        bound[..., -1] = d.lse_bound(x[..., -1], score)
        return State(x, bound)


def _turned(x, delta, base, halves):
    """Rotary positions delta, a number or one of each row, added to the last axis."""
    d = x.shape[-1] // 2
    angle = numpy.asarray(delta)[..., None] * base ** (-numpy.arange(d) / d)
    if angle.size > 1 << 18:
        angle = (angle - 2 * math.pi * numpy.rint(angle / (2 * math.pi))).astype("float32")
    y, cos, sin = numpy.array(numpy.broadcast_to(x, (*angle.shape[:-1], x.shape[-1]) if angle.ndim > x.ndim else x.shape)), numpy.cos(angle), numpy.sin(angle)
    a, b = (slice(d), slice(d, 2 * d)) if halves else (slice(0, 2 * d, 2), slice(1, 2 * d, 2))
    y[..., a], y[..., b] = x[..., a] * cos - x[..., b] * sin, x[..., a] * sin + x[..., b] * cos
    return y


def _of_masks(d):
    """(fault, detail, which keys each row of a _Rows sees) where edges, windows and positions are wrong."""
    s, n, end = d.s, d.n, d.total - 1
    first = lambda r: (r.position < s.sinks) & (r.position <= r.limit)
    own = lambda r, most, width: (r.local < most[:, r.rank]) & (r.local >= (most - width)[:, r.rank])
    if s.window:
        yield "local_window", "the window is local(G) - k on every rank", lambda r: first(r) | own(r, r.before(r.limit + 1), s.window)
        for w in (s.window - 1, s.window + 1):
            yield "window_off_by_one", f"the window has {w} keys", lambda r, w=w: r.sees(window=w) if w else first(r)
    if s.window and s.sinks:
        yield "sink_every_rank", f"the first {s.sinks} keys of every rank are sinks", lambda r: r.sees() | (r.local < s.sinks) & (r.position <= r.limit)
        yield "sink_missing", "the first keys are outside the window", lambda r: r.sees(sinks=0)
    if s.causal:
        ends = lambda r: n - (end - r.limit)
        yield "local_window", "the causal edge is local(N) - k on every rank", lambda r: own(r, ends(r), s.window or d.total)
        if s.window:
            yield "local_window", "the causal edge alone is local(N) - k", lambda r: r.sees(position=numpy.minimum(r.position, r.limit)) & own(r, ends(r), d.total)
        for detail, seen in (("row i sees the positions up to i", lambda r: r.sees(limit=r.i[:, None])),
                             ("row i sees the first i + 1 keys of every rank", lambda r: r.local <= r.i[:, None]),
                             ("rows are in reverse", lambda r: r.sees(limit=end - r.i[:, None])), ("there is no edge", lambda r: r.sees(limit=0 * r.limit + end)),
                             ("the edge is a key late", lambda r: r.sees(limit=r.limit + 1)), ("the edge is a key early", lambda r: r.sees(limit=r.limit - 1))):
            yield "causal_edge", detail, seen
    for chunk in sorted({*(1 << x for x in range(9)), 0, s.page_size, 2 * s.page_size, s.page_size // 2, 2 * s.interleave, s.interleave // 2} - {s.interleave}):
        at = lambda r, c=chunk: r.local // c * c * d.p + r.rank * c + r.local % c if c else r.local + d.at[r.rank]
        counts, detail = numpy.array([len(x) for x in d.dealt(chunk)]), f"chunks of {chunk}" if chunk else "contiguous"
        detail += ", unevenly" * bool((counts[n > 0] == 0).any())  # a rank that is left without keys is another fault first
        if s.window or s.causal:
            yield "interleave", detail, lambda r, at=at: r.sees(position=at(r))
        if (counts < n).any():
            yield "interleave", detail + ": keys beyond the counts that these give are missing", lambda r, counts=counts: r.sees() & (r.local < counts[r.rank])
            yield "interleave", detail + ", positions and counts", lambda r, counts=counts, at=at: r.sees(position=at(r)) & (r.local < counts[r.rank])


def _of_scores(d):
    """(fault, detail, State of a _Rows) where heads, scales or the cap are wrong."""
    s, g, group, default = d.s, d.kv, d.group, d.q.shape[3] ** -0.5
    for detail, kv in (("h mod n_kv", lambda h: h % g), ("the next head", lambda h: (h // group + 1) % g), ("the head before", lambda h: (h // group - 1) % g),
                       ("reversed", lambda h: g - 1 - h // group), ("head 0", lambda h: 0 * h), ("min(h, n_kv - 1)", lambda h: numpy.minimum(h, g - 1)),
                       ("groups of half the size", lambda h: h // max(1, group // 2) % g), ("groups of twice the size", lambda h: h // (2 * group)),
                       ("pairs exchanged", lambda h: numpy.minimum(h // group ^ 1, g - 1))) if g > 1 else ():
        for what, keys, values in (("keys and values", True, True), ("keys", True, False), ("values", False, True)):
            yield "kv_grouping", f"{what}: {detail}", lambda r, kv=kv, keys=keys, values=values: r.state(
                r.sees(), r.capped(r.scores(kv(r.h))) if keys else None, kv(r.h) if values else None)
    for fault, detail, f in (("scale_missing", "the factor is 1", 1 / d.scale), ("scale_missing", "the factor is 1/sqrt(d)", default / d.scale),
                             ("scale_twice", "the factor is its square", d.scale), ("scale_twice", "times 1/sqrt(d)", default)):
        if f != 1:
            yield fault, detail, lambda r, f=f: r.state(r.sees(), r.capped(r.raw * f), stretch=f)
    for a, b in ((-1, 0), (0, -1), (-1, -1), (1, 0), (0, 1), (1, 1)) if (d.k_scale != 1).any() or (d.v_scale != 1).any() else ():
        f = lambda r, x, n: x[r.kv][:, None].astype("float64") ** n
        yield "fp8_scale_missing", f"k_scale to the power {1 + a}, v_scale to {1 + b}", lambda r, a=a, b=b, f=f: r.state(
            r.sees(), r.capped(r.raw * f(r, d.k_scale, a)), stretch=f(r, d.k_scale, a).max(), factor=f(r, d.v_scale, b))
    if s.soft_cap:
        yield "softcap_after_mask", "a masked score is -soft_cap", lambda r: r.state(r.sees(), fill=-s.soft_cap)
        yield "softcap_after_mask", "a masked score is -soft_cap; values that no row sees are 0", lambda r: r.state(
            r.sees(), fill=-s.soft_cap, read=numpy.any([r.sees(limit=x) for x in {*d.limit.tolist()}], 0))


def _of_last_keys(d, r, row):
    """Faults where each rank lacks its last keys: how many is found from the sums over all numbers of keys of one row."""
    n, s, at = d.n, r.plain[row], (r.b[row], r.h[row], r.i[row])
    seen, v = r.sees()[row], next(v for v, _, of in r.values(r.kv) if row in of)
    top, order = max(s[seen].max(initial=-numpy.inf), -1e300), r.position.argsort(kind="stable")
    every = numpy.exp(s - top)[:, None] * numpy.append(v[:, :len(r.cols) - 1], numpy.ones((len(v), 1)), 1)
    a, sink, tries, moved, several = every * seen[:, None], 0 if d.sink is None else math.exp(d.sink[at] - top), [], set(), 0 * n
    ends = [numpy.cumsum(a[begin:end][::-1], 0)[:-1] for begin, end in zip(d.at, d.at[1:])]  # the last 1, 2, .. keys of each rank
    lost = lambda order: numpy.bincount(r.rank[order], minlength=d.p)
    one = lambda p, m: numpy.where(numpy.arange(d.p) == p, m, 0)
    has_lse, bound = [p for p in range(d.p) if d.known[p, 0, -1]], d.merge.bound[at][r.cols]

    def closest(kept, number, rank=d.p):
        """Tries the numbers of keys without which the merge, or the lse of a rank, is closest, from sums kept [numbers, columns]."""
        if rank == d.p:
            x = numpy.append(kept[:, :-1] / (kept[:, -1:] + sink), numpy.log(kept[:, -1:] + sink) + top, 1)
            far = (numpy.where(d.known[rank][:, r.cols], (x - d.seen[rank][at][r.cols]) / bound, 0) ** 2).sum(1)
        else:
            far = abs(numpy.log(kept[:, -1]) + top - d.seen[rank][at][-1])
        far = numpy.where(numpy.isnan(far), numpy.inf, far)
        if len(far) and numpy.isfinite(far.min()):
            near = numpy.flatnonzero(far <= 4 * far.min() + 1e-12)
            tries.extend(number(m + 1) for m in dict.fromkeys([int(far.argmin()), int(near[-1]), *near[:2].tolist()]))
        return far

    for p in has_lse:
        before = len(tries)
        far = closest(a[d.at[p]:d.at[p + 1]].sum(0) - numpy.append(0 * a[:1], ends[p], 0), lambda m: one(p, m - 1), p)
        several = several + one(p, far.argmin() if len(far) and far.min() * 4 < far[0] else 0)
        tries = tries[:before] if not several[p] else tries
    tries.append(several)
    if d.known[d.p].any():
        closest(a.sum(0) - numpy.cumsum(a[order[::-1]], 0)[:-1], lambda m: lost(order[d.total - m:]))
        closest(a.sum(0) - sum(x[:max(0, n.min() - 1)] for x in ends), lambda m: numpy.full(d.p, m))
        for p in range(d.p):
            closest(a.sum(0) - ends[p], lambda m: one(p, m))
    for p in [d.p] * bool(d.known[d.p].any()) + has_lse[-3:] if d.s.causal or d.s.window else ():  # edges move with the end
        end = r.limit[row, 0] + 1 - numpy.arange(1, r.limit[row, 0] + 1)
        first = numpy.minimum(d.s.sinks if d.s.window else 0, end)
        sums = numpy.append(0 * a[:1], numpy.cumsum(every[order] * ((r.rank[order] == p) | (p == d.p))[:, None], 0), 0)
        before = len(tries)
        closest(sums[end] - sums[numpy.maximum(end - (d.s.window or d.total), first)] + sums[first], lambda m: m, p)
        moved, tries = moved | {*tries[before:]}, tries[:before]
    tries += [x for page in sorted({4, 8, 16, 32, 64, 128, 256, d.s.page_size or 64}) for x in (n % page, lost(order[d.total - d.total % page:]))]
    tries += [lost(order[d.total - m:]) for m in (1, 2, 4, 8, 16)]
    few = lambda m: 2 * m <= min(d.total, d.s.window or d.total)  # the first few keys alone are another fault
    for x in {tuple(x.tolist()): x for x in tries if x.any() and ((x < n) | (n == 0)).all() and few(x.sum())}.values():
        even = (x == lost(order[d.total - x.sum():])).all() or (x > 0).sum() == 1 or (x == x[0]).all()
        yield "last_keys_missing", f"{x.tolist()} of the ranks{'' if even else ', unevenly'}", lambda r, x=x: r.sees() & (r.local < (n - x)[r.rank])
    for m in sorted(m for m in moved | {1, 2, 4} if few(m)) if d.s.causal or d.s.window else ():
        yield "last_keys_missing", f"the last {m}, and edges move with the end", lambda r, m=m: r.sees(limit=r.limit - m)


def _of_turns(d, r, row, wrong):
    """Keys of a shard that have other rotary positions: a whole number of them away, found at one row, or those in the shard. wrong: ranks whose partials show it, None: there are none."""
    q, seen, start, at = d.q[r.rows].astype("float64"), r.sees(), [int(x[0]) if len(x) else 0 for x in d.positions], tuple(x[row] for x in r.rows)
    v, styles = next(v for v, _, of in r.values(r.kv) if row in of)[:, :len(r.cols) - 1], [*itertools.product((1e4, 5e5, 1e6), (True, False))]

    def far(p, s):
        """The largest part of a rank's partial and of the merge [2, ..], for each of several scores [.., keys] of the rank."""
        s = numpy.where(seen[row, d.at[p]:d.at[p + 1]], r.capped(s), -numpy.inf)
        w = numpy.exp(s - numpy.maximum(s.max(1), -1e30)[:, None])
        t = State(*(numpy.repeat(f[:, row, None], len(s), 1) for f in r.truth))
        t = _changed(t, p, numpy.append(w @ v[d.at[p]:d.at[p + 1]].astype(w.dtype) / w.sum(1)[:, None], (s.max(1) + numpy.log(w.sum(1)))[:, None], 1))
        y = _merge(t, None if d.sink is None else d.sink[at])
        x = numpy.array([numpy.where(d.known[rank][:, r.cols], abs(x - d.seen[rank][at][r.cols]) / (bound + 1e-30), 0).max(1) for rank, x, bound in ((p, t.x[p], t.bound[p]), (d.p, *y))])
        return numpy.where(numpy.isnan(x), numpy.inf, x)

    @functools.lru_cache(64)
    def keys(base, halves, b, g, p):
        own = d.positions[p]
        return _turned(d.k[p][b, g].astype("float64" if r.exact else "float32"), own.argsort().argsort() - own, base, halves)

    for (base, halves), p in itertools.product(styles, numpy.flatnonzero(d.n).tolist() if wrong is None else wrong if len(wrong) == 1 else ()):
        most, k = int(min(max(d.total, 64), 5e7 / d.p / (d.n[p] * q.shape[-1]))), d.k[p][r.b[row], r.kv[row]].astype("float32", copy=False)
        deltas = {*range(-most, most + 1), -start[p], start[p], int(d.n[p]), -int(d.n[p]), d.total, -d.total, *(x - start[p] for x in start)}
        deltas = numpy.array(sorted(deltas - {0}), float)
        for delta in deltas[numpy.argsort(far(p, _turned(q[row], -deltas, base, halves).astype("float32") @ k.T * numpy.float32(d.scale)).sum(0))[:2]]:
            yield "rope_position", f"rank {p}, {delta:+.0f} positions, base {base:g}", lambda r, delta=delta, p=p, base=base, halves=halves: r.state(
                r.sees(), r.capped(r.scores(r.kv, [p], _turned(d.q[r.rows].astype("float64"), -delta, base, halves))))
    for base, halves in styles if wrong is None or len(wrong) else ():
        if wrong is not None and far(wrong[0], (q[row] @ keys(base, halves, r.b[row], r.kv[row], wrong[0]).T * d.scale)[None])[0] > 1.5:
            continue
        yield "rope_position", f"every rank counts from 0, base {base:g}", lambda r, base=base, halves=halves: r.state(
            r.sees(), r.capped(r.scores(r.kv, None, None, functools.partial(keys, base, halves))))


def _of_merges(d, r, place):
    """(fault, detail, how far-fetched, function to partials and merges to choose from) where right partials are merged wrongly."""
    rows, p, t, ranks = r.rows, d.p, r.truth, numpy.arange(d.p)
    merged, (seen, known) = lambda t, sink=0, counts=None: d.merged(t, sink, counts, rows), r.view
    if d.sink is not None:
        each = d.each(t, rows)
        for n in range(2, p + 2):
            yield "sink_every_rank", f"its weight counts {n} times", 0, lambda: ([t, each], [merged(t, math.log(n))])
        yield "sink_missing", "no sink", 0, lambda: ([t], [merged(t, None)])
        if place is not None:
            t, merged = _changed(t, place, each.x[place], each.bound[place]), lambda t, sink=None, counts=None: d.merged(t, None, counts, rows)
    y, lse_of = merged(t), lambda y, lse: State(numpy.append(y.x[..., :-1], lse[..., None], -1), y.bound)
    for (f, of), which in itertools.product(((LOG2E, "in base two"), (1 / LOG2E, "natural, taken as base two")), (slice(None), *range(p * (p > 1)))):
        x = _changed(t, which, t.x[which][..., -1] * f, t.bound[which][..., -1] * f, -1)
        wrong = lambda: [merged(x)] + ([] if d.sink is None or place is not None else [merged(x, d.sink[rows] * (f - 1))])
        detail = f"lse of {f'rank {which}' if isinstance(which, int) else 'every rank'} is {of}"
        yield "lse_base2", detail, 0, lambda: ([t, x], [lse_of(m, m.x[..., -1] * g) for m in wrong() for g in (1, f, 1 / f)])
        yield "lse_base2", detail + "; the merge knows it", 0, lambda: ([t, x], [y, lse_of(y, y.x[..., -1] * f)])
    empty = numpy.isneginf(t.x[..., -1])
    none = empty.any(0)
    nans = [lse_of(State(numpy.where(none[..., None], numpy.nan, y.x), y.bound), numpy.where(none, x, y.x[..., -1])) for x in (numpy.nan, numpy.inf)]
    lses, said = seen[:p][..., -1], known[:p][..., -1]
    bad = lses[empty & ~(lses < -1e4) & said]
    if bad.size:
        shown = numpy.where(empty[..., None] & known[:p] & ~((seen[:p] < -1e4) & (r.cols == d.d_v)), seen[:p], t.x)
        silent, wrong = numpy.append(t.x[..., :-1], shown[..., -1:], -1), numpy.isnan(bad).any()
        yield "nan_zero" if wrong else "empty_lse", f"lse is {bad.flat[0]:g}", 2 * (bad.max() not in (0, math.inf) and not wrong), lambda: (
            [State(shown, t.bound)], [merged(State(silent, t.bound)), merged(State(shown, t.bound)), y, *nans])
    elif none.any():
        for value in (0.0, math.inf, math.nan):
            yield "empty_lse", f"lse is {value}", int(value != 0), lambda: ([t], [merged(lse_of(t, numpy.where(empty, value, t.x[..., -1]))), *nans * (value != 0)])
    if (numpy.isnan(seen) & known).any() and (none.any() or not all(numpy.isfinite(x).all() for x in (*d.v, *d.k))):
        hole = numpy.where(numpy.isnan(seen) & known, numpy.nan, 0)
        hole[..., -1] = 0
        both = numpy.append(hole[..., :-1], hole.sum(-1, keepdims=True), -1)
        for far_fetched, x in ((0, hole), (2, both)):
            yield "nan_zero", "a shard without keys, or keys that no query sees, have NaN", far_fetched, lambda: (
                [t, *(State(t.x + f[:p], t.bound) for f in (hole, both))], [State(y.x + x[p], y.bound)])
    for kind, which, given in itertools.product(("BF16", "F16"), ((0,), (0, 1), (1,)), (False, True)):
        columns = numpy.array([0 in which] * (len(r.cols) - 1) + [1 in which])
        from_dump = known[:p] & numpy.isfinite(seen[:p]) & given & columns
        full = numpy.where(from_dump, seen[:p], t.x)
        near = numpy.where(from_dump | ~numpy.isfinite(full), 0, t.bound)
        low, high = _round16(full - near, kind), _round16(full + near, kind)
        x = State(numpy.where(columns, _round16(full, kind), t.x), numpy.where(columns, numpy.where(low == high, 1e-9, high - low), t.bound))
        if not given or from_dump.any():
            yield "partials_16bit", f"{kind}: {' and '.join(('o', 'lse')[i] for i in which)}", 0, lambda: ([t] if given else [t, x], [merged(x)])
    for one in ranks.tolist() if p > 1 else ():
        yield "rank_twice", f"rank {one}", 0, lambda: ([t], [merged(t, counts=numpy.where(ranks == one, 2.0, 1))])
        yield "rank_missing", f"rank {one}", 0, lambda: ([t, _changed(t, one, -math.inf, None, -1)], [merged(t, counts=numpy.where(ranks == one, 0.0, 1))])
        for other in {*range(p)} - {one}:
            yield "rank_twice", f"rank {one}, in the place of rank {other}", 1, lambda: ([t, x := _changed(t, other, t.x[one], t.bound[one])], [merged(x)])


def _of_replicas(d, r):
    """Windows, or first keys, that every rank has and counts."""
    join = lambda a, b: State(*(numpy.stack(f) for f in zip(*(_merge(State(*(numpy.stack([f[i], g[i]]) for f, g in zip(a, b)))) for i in range(d.p)))))
    on_all = lambda t: State(*(numpy.repeat(f[None], d.p, 0) for f in _merge(t)))
    window, first = lambda: r.state(r.sees(sinks=0)), lambda: r.state(r.sees() & ~r.sees(sinks=0))
    for fault, make in (("window_replicated", lambda: on_all(r.truth)), ("window_replicated", lambda: join(on_all(window()), first())), ("sink_every_rank", lambda: join(window(), on_all(first())))):
        yield fault, "every rank has all of them", 0, lambda: ([t := make(), d.each(t, r.rows)], [d.merged(t, rows=r.rows)])


def _order_of_heads(seen, want, bound, known):
    """The permutation of heads, axis 1, that makes both equal; the identity if there is none."""
    flat = [x[..., known].swapaxes(0, 1).reshape(x.shape[1], -1) for x in (seen, want, bound)]
    flat = [x[:, ::max(1, x.shape[1] // 128)] for x in flat]
    order = numpy.array([numpy.nan_to_num(abs(x - flat[1]) / flat[2], nan=1e30, posinf=1e30).max(1, initial=0).argmin() for x in flat[0]])
    return order if len({*order.tolist()}) == len(order) else numpy.arange(len(order))


def _order_before(d, rank, columns):
    """The permutation of heads of outputs, or of lse, on a rank or on all, after which the merge is that of the dump; or the identity."""
    n, at = d.q.shape[1], (slice(1), slice(None), slice(4))
    t, cost = State(*(f[(slice(None), *at)] for f in d.right)), numpy.zeros((d.q.shape[1],) * 2)
    for order in (numpy.arange(n) + shift for shift in range(n)):
        x = _changed(t, rank, *(f[:, :, order % n][rank, ..., columns] for f in t), columns)
        y = d.merged(x, 0 if d.place is None else None, rows=at)
        cost[numpy.arange(n), order % n] = numpy.nan_to_num(numpy.where(d.known[d.p], abs(d.seen[d.p][at] - y.x) / y.bound, 0), nan=1e30).max((0, 2, 3))
    order = cost.argmin(1)
    return order if len({*order.tolist()}) == n else numpy.arange(n)


def _orders(d):
    """Orders of heads that the tensors show."""
    n = d.q.shape[1]
    orders = [_order_of_heads(d.seen[rank], *((f[rank] for f in d.right) if rank < d.p else d.merge), x) for rank in range(d.p + 1)
              for x in (slice(d.d_v), slice(d.d_v, None)) if d.known[rank, 0, x].any()]
    orders += [_order_before(d, rank, x) for rank in (slice(None), *range(d.p)) for x in (slice(-1), slice(-1, None)) if d.known[d.p].any() and n <= 32]
    return {tuple(x.tolist()): x for x in orders if (x != numpy.arange(n)).any()}.values()


def _of_heads(d, r, orders):
    """Heads in another order, of all, of partials or of lse alone."""
    n, (b, h, i), plain = d.q.shape[1], r.rows, r.taken(d.right)
    for order in orders:
        turned = State(*(f[(slice(None), b, order[h], i)][..., r.cols] for f in d.right))
        of_all, right = (State(*(f[at][..., r.cols] for f in d.merge)) for at in ((b, order[h], i), r.rows))
        detail = f"the order is {order.tolist()}" if n <= 16 else "another order"
        mixed = [State(*(numpy.append(f[..., :-1], g[..., -1:], -1) for f, g in zip(x, y))) for x, y in ((of_all, right), (right, of_all))]
        yield "heads_permuted", detail, 0, lambda: ([plain, turned], [of_all, *mixed])
        for rank, (what, columns) in itertools.product((slice(None), *range(d.p)), (("o and lse", slice(None)), ("o", slice(-1)), ("lse", slice(-1, None)))):
            yield "heads_permuted", f"{detail}, {what} of {f'rank {rank}' if isinstance(rank, int) else 'every rank'}", 0, lambda: (
                [plain, x := _changed(plain, rank, turned.x[rank][..., columns], turned.bound[rank][..., columns], columns)],
                [d.merged(x, 0 if d.place is None else None, rows=r.rows)])


def _chosen(d, t, r):
    """(where, State): the fault on every rank, or on those whose partials have it; on each rank alone where there are no partials."""
    if not d.known[:d.p].any():
        yield "", t
        several = [[rank] for rank in range(d.p)]
    else:
        with_it, without = (d.parts([x, d.each(x, r.rows)], [], r.view)[:d.p].max((1, 2), initial=0) for x in (t, r.truth))
        if (with_it <= 1.5).all():
            yield "", t
        several = [numpy.flatnonzero((with_it <= 1.5) & (with_it < without)).tolist()]
    for ranks in several:
        if 0 < len(ranks) < d.p:
            yield f", on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}", _changed(r.truth, ranks, t.x[ranks], t.bound[ranks])


def _explained(d, wrong):
    """Faults that predict what the dump has, [(distance, order, fault, detail)]: tried at few rows, then at more."""
    wrong = numpy.minimum(wrong, 1e30)
    worst, column = wrong.max((0, -1)), int(wrong[..., :-1].max((0, 1, 2, 3)).argmax()) if d.d_v else 0
    order, found = numpy.argsort(-worst, axis=None, kind="stable"), []

    def some(n, columns):
        n = min(n, len(order))
        flat = numpy.unique(numpy.append(order[:n - n // 2], numpy.sort(order[n - n // 2:])[numpy.linspace(0, len(order) - n + n // 2 - 1, n // 2).astype(int)]))
        rows = numpy.unravel_index(flat, worst.shape)
        columns = max(4, min(columns, (1 << 22) // max(1, d.total * len({*zip(rows[0], rows[1] // d.group)}))))
        return _Rows(d, rows, numpy.unique([*range(0, d.d_v, max(1, -(-d.d_v // columns))), column, d.d_v]))

    few, many = some(max(2, min(8, (1 << 19) // max(1, d.total))), 8), some(max(8, min(256, (1 << 21) // max(1, d.total))), 32)

    def fits(r, fault, detail, far_fetched, partials, merges):
        parts = d.parts(partials, merges, r.view, 1.5)  # 1.5: a fault that takes numbers from the dump agrees with them
        if parts is not None and r is many:
            far = sum((x ** 2).sum() / max(1, x.size) for of in (parts[:-1], parts[-1]) for x in (of[..., :-1], of[..., -1]))  # of outputs, lse, and their merges
            found.append((math.sqrt(far) + 0.3 * (far_fetched == 2), FAULTS.index(fault) + len(FAULTS) * far_fetched, fault, detail))
        return parts is not None

    places = [d.place] if d.sink is None or d.place is not None else [None, *range(d.p)]
    orders, tried, kept = _orders(d), set(), set()
    for r in (few, many):
        for fault, detail, far_fetched, make in itertools.chain(*(_of_merges(d, r, place) for place in places), _of_heads(d, r, orders), _of_replicas(d, r) if d.s.window else ()):
            if r is few or (fault, detail) in kept or (fault, detail) not in tried:
                (kept if fits(r, fault, detail, far_fetched, *make()) else tried).add((fault, detail))
    rows = numpy.lexsort((worst[few.rows], few.sees().sum(1)))[::-1]
    ranks = numpy.flatnonzero((wrong[:d.p] > 1).any((1, 2, 3, 4)) & (d.n > 0)) if d.known[:d.p].any() else None
    for source in (_of_masks(d), _of_scores(d), *(_of_last_keys(d, few, row) for row in rows[:2]), _of_turns(d, few, rows[0], ranks)):
        for fault, detail, make in source if source.__name__ != "_of_turns" or not found else ():
            for r in (few, many):
                t = make(r)
                t = t if isinstance(t, State) else r.state(t)
                if _parts(t.x, *r.truth).max(initial=0) < 1:
                    break  # it changes nothing here
                if not sum(fits(r, fault, detail + where, int(bool(where) or "unevenly" in detail), [x, d.each(x, r.rows)], [d.merged(x, rows=r.rows)]) for where, x in _chosen(d, t, r)):
                    break
    empty = numpy.isneginf(d.raw.x[..., -1]).any(0)
    if not found and not d.known[:d.p, 0, -1].any() and empty.any() and (wrong[:d.p] <= 1).all() and (worst > 1)[empty].mean() > 0.5 and not (worst > 1)[~empty].any():
        found.append((0, 1, "empty_lse", "a shard without keys has an output and an lse that were never written"))
    return sorted(found)


def _number(x):
    """A number for JSON, which has none that are not finite: these are "nan", "inf" and "-inf"."""
    return float(x) if math.isfinite(x) else str(float(x))


class Report(dict):
    """verdict, fault, candidates and where, as a dict for JSON; str() of it is for people."""

    def __str__(self):
        x, said = self["where"], "wrong: {tensor} has {part:.3g} of its bound at {place}: {is:.9g}, not {not:.9g}" if self["fault"] else "right: at most {part:.3g} of the bound, in {tensor} at {place}"
        place = ", ".join(f"{name} {x[name]}" for name in ("entry", "head", "row", "rank", "component") if x[name] is not None)
        lines = [said.format(**{**x, **{name: float(x[name]) for name in ("part", "is", "not")}}, place=place)]
        lines += [*(f"  {name}: {float(part):.3g} of its bound" for name, part in self["parts"].items()), *([self["note"]] if self["note"] else [])]
        lines += [f"fault: {self['fault']}" + (f" ({self['detail']})" if self["detail"] else "")] if self["fault"] else []
        return "\n".join(lines + [f"as near: {', '.join(self['candidates'][1:])}"] * (len(self["candidates"]) > 1))


def diagnose(q, shards=None, partials=None, out=None, lse=None, layout=None):
    """Whether a decode over ranks is right, and which fault explains it if not.

    q [b, n_h, l, d_h] and shards, (k, v) or (k, v, positions) of each rank, with partials (o, lse) of each rank, or out and lse, or both; or
    in the place of q a dump, {name: array}. layout: the settings of the module's documentation. @returns a Report
    """
    tensors = dict(q) if isinstance(q, dict) else {"q": q}
    for names, of in ((("k", "v", "positions"), shards or ()), (("o", "lse"), partials or ())):
        tensors.update({f"{name}.{r}": x for r, several in enumerate(of) for name, x in zip(names, several) if x is not None})
    tensors.update({name: x for name, x in (("out", out), ("lse", lse)) if x is not None})
    with numpy.errstate(all="ignore"):
        return _diagnosed(_Dump(tensors, layout))


def _diagnosed(d):
    def judged(rounds):
        d.rounds, d.place = rounds, None
        d.raw = d.right = d.truth()
        d.merge, each = d.merged(d.raw), d.each(d.raw)
        plain, own = (d.parts([t], [d.merge]).max((1, 2, 3, 4), initial=0) for t in (d.raw, each))
        own = numpy.flatnonzero((own[:d.p] <= 1) & (plain[:d.p] > 1))
        if len(own) == 1:  # one rank has the learned sink among its keys
            d.place, d.right = int(own[0]), _changed(d.raw, own, each.x[own], each.bound[own])
        return d.parts([d.right], [d.merge])

    # Weights of 16 bits are right where the results have them; where they do not, if no fault explains them.
    parts, note, found = judged(d.u_in if d.u[0 if d.known[:d.p].any() else 1, 0] > U else 0), None, []
    if parts.max(initial=0) > 1:
        if d.known[d.p].any() and (parts[d.p] <= 1).all() and (parts[:d.p, ..., :-1] <= 1).all() and (numpy.isneginf(d.right.x[..., -1]) | (parts[:d.p, ..., -1] <= 1)).all():
            note = "the lse of a shard without keys is not -inf, and the merge knows it"
        else:
            found = _explained(d, parts)
            if not found and d.u_in > U and (loose := judged(d.u_in)).max() <= 1:
                parts, note = loose, "the weights were rounded to the type of q"
    at = numpy.unravel_index(parts.argmax(), parts.shape) if parts.size else (0,) * 5
    equal = sorted((x for x in found if x[0] <= 1.2 * found[0][0] + 0.004), key=lambda x: (x[1], x[0]))
    candidates = list(dict.fromkeys(x[2] for x in equal))
    wrong = parts.max(initial=0) > 1 and not note
    r, entry, head, row, component = map(int, at)
    want = numpy.append(d.right.x, d.merge.x[None], 0)
    where = {"tensor": d.names.get((r, int(component == d.d_v)), next(iter(d.names.values()))), "entry": entry, "head": head, "row": row, "rank": r if r < d.p else None,
             "component": component if component < d.d_v else None, "part": _number(parts.max(initial=0)), "is": _number(d.seen[at]) if parts.size else 0.0,
             "not": _number(want[at]) if parts.size else 0.0}
    of = {name: _number(parts[r][..., slice(d.d_v, None) if i else slice(d.d_v)].max(initial=0)) for (r, i), name in d.names.items()}
    return Report(verdict="wrong" if wrong else "right", fault=(candidates or [NONE])[0] if wrong else None, candidates=candidates, detail=equal[0][3] if equal else None,
                  where=where, largest=where["part"], parts=of, note=note, ranks=d.p, keys=d.total)


def read(path):
    """The tensors and settings of a file of safetensors. @raises ValueError in one line for a file that is none"""
    raw = pathlib.Path(path).read_bytes()
    size, tensors = int.from_bytes(raw[:8], "little"), {}
    if len(raw) < 8 or size > len(raw) - 8:
        raise ValueError(f"the header has {size} bytes, the file {len(raw)}")
    try:
        header = json.loads(raw[8:8 + size])
        settings = json.loads(header.pop("__metadata__", {}).get("settings", "{}"))
        for name, x in header.items():
            kind, (begin, end) = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1", "I64": "<i8"}[x["dtype"]], x["data_offsets"]
            if not 0 <= begin <= end <= len(raw) - 8 - size:
                raise ValueError(f"{name} ends after the file")
            tensors[name] = numpy.frombuffer(raw[8 + size + begin:8 + size + end], kind).reshape(x["shape"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the header is not one of safetensors: {type(error).__name__} {error}") from None
    return tensors, settings


def main(arguments):
    """Prints the report of a file. @returns 0 right, 1 wrong, 2 no answer"""
    files = [x for x in arguments if x != "--json"]
    if len(files) != 1 or files[0].startswith("-"):
        print("usage: python -m tree_attn.diagnose FILE.safetensors [--json]", file=sys.stderr)
        return 2
    try:
        tensors, settings = read(files[0])
        report = diagnose(tensors, layout=settings)
    except (OSError, ValueError, TypeError) as error:
        print(f"diagnose: {files[0]}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(json.dumps(report) if "--json" in arguments else report)
    return int(report["verdict"] == "wrong")


class _Module(types.ModuleType):
    """Makes tree_attn.diagnose() the function, whether or not the module has been imported by its name."""

    def __call__(self, *arguments, **named):
        return diagnose(*arguments, **named)


sys.modules[__name__].__class__ = _Module
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
