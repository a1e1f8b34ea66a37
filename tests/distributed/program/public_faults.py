#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults that users of other attention engines reported in public, tried on this program.

Run: ./run python --peers            or: tests/distributed/program/public_faults.py [--only ID,ID] [--program build/tree_attn] [--list] [--keep DIR]

Every case makes its own small input from a seed, runs the program as a user would (one process, ranks under mpirun,
ranks as threads; backends cpu and emulated), and compares with attention in float64 by NumPy, written here; where the
README promises bits, the bytes of the outputs are compared too. The source of each case stands beside it.
Needs numpy, a built program and Open MPI. Prints "N of M right" and each failure; exit status 1 on any failure."""
import json, math, os, shutil, struct, subprocess, sys, tempfile, time
import numpy as np

U = 2.0 ** -24
MPI = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
TYPES = {"F64": ("<f8", 8), "F32": ("<f4", 4), "F16": ("<f2", 2), "BF16": ("<u2", 2), "I64": ("<i8", 8), "I32": ("<i4", 4), "U8": ("u1", 1), "F8_E4M3": ("u1", 1)}
EXACT = ["two-level", "gather", "leaders", "ring", "ring-state"]
CLOSE = ["paper", "packed", "fused"]

# ---- tensors ----------------------------------------------------------------------------------------------------------
def to_bf16(x):
    u = np.ascontiguousarray(x, "<f4").view("<u4")
    r = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype("<u2")
    return np.where(np.isnan(u.view("<f4")), np.uint16(0x7FC0), r).astype("<u2")

def from_bf16(u):
    return (u.astype("<u4") << 16).view("<f4")

def from_e4m3(u):
    e, m = (u >> 3) & 15, u & 7
    return np.where(u & 128, -1.0, 1.0) * np.where(e > 0, 2.0 ** (e.astype("f8") - 7) * (1 + m / 8), m * 2.0 ** -9)

def rounded(dtype, x):
    """x as stored, and as float64 after storing"""
    with np.errstate(over="ignore"):
        if dtype == "BF16":
            s = to_bf16(np.asarray(x, "<f4")); return s, from_bf16(s).astype("f8")
        s = np.asarray(x).astype(TYPES[dtype][0]); return s, s.astype("f8")

def header(tensors, order=None, meta=None):
    head, at = {}, 0
    if meta is not None: head["__metadata__"] = meta
    for name in order or tensors:
        dtype, a = tensors[name]; n = int(np.prod(a.shape, dtype=object)) * TYPES[dtype][1]
        head[name] = {"dtype": dtype, "shape": [int(s) for s in a.shape], "data_offsets": [at, at + n]}; at += n
    return head

def save(path, tensors, order=None, meta=None, pad=0, head=None, tail=b""):
    """tensors: {name: (dtype, stored array)}; pad: further spaces after the header; head: a header to write instead"""
    h = json.dumps(header(tensors, order, meta) if head is None else head).encode(); h += b" " * (-len(h) % 8 + pad)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(h)) + h)
        for name in order or tensors: f.write(np.ascontiguousarray(tensors[name][1]).tobytes())
        f.write(tail)

def load(path):
    with open(path, "rb") as f: raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]; out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__": continue
        a = np.frombuffer(raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]], TYPES[t["dtype"]][0]).reshape(t["shape"])
        out[name] = from_bf16(a) if t["dtype"] == "BF16" else a
    return out

# ---- the oracle -------------------------------------------------------------------------------------------------------
def attention(q, k, v, scale=None, lengths=None, causal=False, window=None, sinks=0, softcap=0, mask=None):
    """float64: out, lse, sum_a w_a |v_a|, and the size of the dot products that matter"""
    b, h, l, d = q.shape; g, N, dv = k.shape[1], k.shape[2], v.shape[3]; scale = 1 / math.sqrt(d) if scale is None else scale
    out, lse = np.zeros((b, h, l, dv)), np.full((b, h, l), -np.inf); room, size = np.zeros((b, h, l, dv)), np.zeros((b, h, l))
    with np.errstate(all="ignore"):
        for i in range(b):
            n_i = N if lengths is None else int(lengths[i])
            for j in range(h):
                K, V = k[i, j // (h // g), :n_i].astype("f8"), v[i, j // (h // g), :n_i].astype("f8")
                for r in range(l):
                    n = n_i if not causal else max(0, min(n_i, n_i - l + r + 1))
                    if n == 0: continue
                    s = scale * (K[:n] @ q[i, j, r].astype("f8"))
                    if softcap: s = softcap * np.tanh(s / softcap)
                    if mask is not None: s = s + mask[i % len(mask), j % mask.shape[1], r, :n]
                    if window: s = np.where((np.arange(n) >= n - window) | (np.arange(n) < sinks), s, -np.inf)
                    m = s.max()
                    if m == -np.inf: continue
                    w = np.exp(s - m); D = w.sum(); w = w / D
                    out[i, j, r] = w @ V[:n]; room[i, j, r] = w @ np.abs(V[:n]); lse[i, j, r] = m + np.log(D)
                    near = s >= m - 60
                    size[i, j, r] = (abs(scale) * (np.abs(K[:n][near]) @ np.abs(q[i, j, r].astype("f8")))).max() if near.any() else 0
    return out, lse, room, size

class Problem:
    def __init__(self, seed, b=1, h=1, g=None, l=1, N=1, d=64, dv=None, dtype="F32", q_scale=1.0, lengths=None, make=None, scale=None):
        r = np.random.default_rng(seed); g = h if g is None else g; dv = d if dv is None else dv
        n = lambda *s: r.standard_normal(s)
        q, k, v = n(b, h, l, d) * q_scale, n(b, g, N, d), n(b, g, N, dv)
        if make: q, k, v = make(q, k, v)
        self.dtype, self.lengths, self.scale = dtype, None if lengths is None else np.asarray(lengths, "i8"), scale
        (self.sq, self.q), (self.sk, self.k), (self.sv, self.v) = (rounded(dtype, x) for x in (q, k, v))
        self.N = N
    def tensors(self):
        t = {"q": (self.dtype, self.sq), "k": (self.dtype, self.sk), "v": (self.dtype, self.sv)}
        if self.lengths is not None: t["lengths"] = ("I64", self.lengths)
        return t
    def save(self, path, **options): save(path, self.tensors(), **options); return path
    def want(self, **options): return attention(self.q, self.k, self.v, self.scale, self.lengths, **options)

# ---- running ----------------------------------------------------------------------------------------------------------
class Case:
    """A case: runs the program, compares, and collects failures."""
    def __init__(self, program, folder):
        self.program, self.T, self.bad, self.runs, self.worst, self.n = program, folder, [], 0, 0.0, 0
    def path(self, end=""): self.n += 1; return "%s/%d%s" % (self.T, self.n, end)
    def fail(self, *what): self.bad.append(" ".join(str(x) for x in what))
    def check(self, ok, *what):
        if not ok: self.fail(*what)
    def run(self, args, ranks=None, timeout=240, mpi=(), env=None):
        cmd = ([*MPI, *mpi, "-np", str(ranks)] if ranks else []) + [self.program] + [str(a) for a in args]; self.runs += 1
        try: return subprocess.run(cmd, capture_output=True, text=True, timeout=timeout, errors="replace", env={**os.environ, **({} if ranks else {"OMPI_MCA_ess_singleton_isolated": "1"}), **(env or {})}, cwd=self.T)
        except subprocess.TimeoutExpired:
            self.fail("no answer in %d s:" % timeout, *cmd[-10:]); return None
    def decode(self, path, *options, ranks=None, threads=None, what="", **kw):
        """the output, its bytes, or None (a failure is noted); ranks: processes under mpirun; threads: ranks as threads"""
        o = self.path(".out"); a = ["decode", path, o, *options] + (["--devices", "0-%d" % (threads - 1)] if threads else [])
        x = self.run(a, ranks, **kw)
        if x is None: return None, None
        if x.returncode or not os.path.exists(o):
            self.fail(what, " ".join(map(str, a[3:])), "ranks", ranks or threads or 1, "status", x.returncode, (x.stderr or x.stdout).strip()[-200:]); return None, None
        raw = open(o, "rb").read(); t = load(o); os.remove(o); return t, raw
    def oracle(self, path, *options, what=""):
        o = self.path(".out"); x = self.run(["oracle", path, o, *options])
        if x is None: return None
        if x.returncode or not os.path.exists(o): self.fail(what, "oracle status", x.returncode, x.stderr.strip()[-200:]); return None
        t = load(o); os.remove(o); return t
    def refused(self, args, *words, what="", out=None, ranks=None):
        """status 2, one line, no output file; the line has each of the words"""
        x = self.run(args, ranks)
        if x is None: return ""
        said = x.stderr.strip() if not ranks else "\n".join(y for y in x.stderr.splitlines() if "tree_attn:" in y)  # without mpirun's own lines
        if x.returncode != 2: self.fail(what, "was not refused: status", x.returncode, said[-160:])
        elif len(said.splitlines()) != 1: self.fail(what, "refused in %d lines:" % len(said.splitlines()), said[-300:])
        elif any(w not in said for w in words): self.fail(what, "the refusal does not name", [w for w in words if w not in said], ":", said[-200:])
        if out and os.path.exists(out): self.fail(what, "an output file was left"); os.remove(out)
        return said
    def close(self, got, want, what, slack=1.0):
        """got against want() of a problem, within 32 u (1 + size of scores / 4) sum w|v|"""
        if got is None: return
        out, lse, room, size = want; o, e = got["out"].astype("f8"), got["lse"].astype("f8")
        if o.shape != out.shape or e.shape != lse.shape: self.fail(what, "shapes", o.shape, e.shape, "not", out.shape, lse.shape); return
        with np.errstate(all="ignore"):
            t = slack * 32 * U * (1 + size / 4)
            r = np.abs(o - out) / (t[..., None] * room + 1e-44); r = np.where((o == out) | (np.isnan(o) & np.isnan(out)), 0, r); r = np.where(np.isnan(r), np.inf, r)
            s = np.abs(e - lse) / (slack * 16 * U * np.maximum(np.maximum(1, np.abs(lse)), size)); s = np.where((e == lse) | (np.isnan(e) & np.isnan(lse)), 0, s); s = np.where(np.isnan(s), np.inf, s)
        a, c = float(r.max()) if r.size else 0.0, float(s.max()) if s.size else 0.0
        if a > 1: i = np.unravel_index(r.argmax(), r.shape); self.fail(what, "out%s is %.9g, not %.9g (%.3g of the bound)" % (list(map(int, i)), o[i], out[i], a))
        if c > 1: i = np.unravel_index(s.argmax(), s.shape); self.fail(what, "lse%s is %.9g, not %.9g (%.3g of the bound)" % (list(map(int, i)), e[i], lse[i], c))
        if a <= 1 and c <= 1: self.worst = max(self.worst, a, c)
    def same(self, raws, what):
        """all outputs (name, bytes) have the same bytes"""
        raws = [(n, r) for n, r in raws if r is not None]
        odd = [n for n, r in raws if r != raws[0][1]]
        if odd: self.fail(what, "bytes of", odd[:6], "differ from those of", raws[0][0])

CASES = []
def case(cid, source, held=False):
    def add(f): CASES.append((cid, source, f, held)); return f
    return add

# ---- the cases that are handed out ------------------------------------------------------------------------------------
@case("splits", "Dao-AILab/flash-attention#1647; sgl-project/sglang#10425")
def splits(c):
    p = Problem(1, h=16, g=8, N=4096, d=128, dtype="BF16"); f = p.save(c.path()); want = p.want()
    for backend in ("cpu", "emulated"):
        raws = []
        for name, kw in (("1", {}), ("mpi 2", dict(ranks=2)), ("mpi 7", dict(ranks=7)), ("threads 4", dict(threads=4)), ("threads 16", dict(threads=16))):
            if backend == "emulated" and name in ("mpi 2", "threads 16"): continue
            t, raw = c.decode(f, "--backend", backend, what=name, **kw); c.close(t, want, "%s %s" % (backend, name)); raws.append((name, raw))
        for shards in ("64,0,4032", "4032,64,0", "0,0,4096"):
            t, raw = c.decode(f, "--backend", backend, "--shards", shards, threads=3, what=shards); c.close(t, want, backend + shards); raws.append((shards, raw))
        c.same(raws, backend)

@case("sliced", "Dao-AILab/flash-attention#1417; meta-pytorch/gpt-fast#233; pytorch/pytorch#101967")
def sliced(c):
    """a full cache with lengths, and the cache cut at that length, are the same problem; what lies behind is never used"""
    for n in (1, 63, 64, 65, 500, 1000):
        p = Problem(n, h=4, g=2, N=n, d=32); f = p.save(c.path()); want = p.want()
        for backend in ("cpu", "emulated"):
            t, first = c.decode(f, "--backend", backend); c.close(t, want, "cut %d" % n); raws = [("cut", first)]
            for name, fill in (("zeros", 0.0), ("NaN", np.nan), ("3e38", 3e38), ("-Inf", -np.inf), ("copies", None)):
                x = Problem(n, h=4, g=2, N=1100, d=32, lengths=[n])
                x.sq, x.q = p.sq, p.q
                for s, y in ((x.sk, p.sk), (x.sv, p.sv)):
                    s[:, :, n:] = s[:, :, :1] if fill is None else fill
                    s[:, :, :n] = y
                g = x.save(c.path())
                for kw in ({}, dict(threads=3)):
                    _, raw = c.decode(g, "--backend", backend, what="%d %s" % (n, name), **kw); raws.append(("%s %s" % (name, kw), raw))
            c.same(raws, "%s length %d" % (backend, n))

@case("empty-entries", "Dao-AILab/flash-attention#2842; NVIDIA/TensorRT-LLM#15383; vllm-project/vllm#28181")
def empty_entries(c):
    p = Problem(3, b=5, h=6, g=2, N=200, d=64, dtype="F16", lengths=[0, 7, 0, 130, 64]); f = p.save(c.path()); want = p.want()
    for backend, algorithms in (("cpu", EXACT + CLOSE), ("emulated", ["two-level", "gather", "one-shot"])):
        for order in ("contiguous", "dealt"):
            raws = []
            for a in algorithms:
                if (a, order) == ("one-shot", "dealt"): c.refused(["decode", f, "--backend", backend, "--algorithm", a, "--order", order], "takes --order contiguous alone"); continue
                for kw in ([dict(threads=3)] if a != "two-level" else [{}, dict(threads=4), dict(ranks=3), dict(threads=9)]):
                    t, raw = c.decode(f, "--backend", backend, "--algorithm", a, "--order", order, what=a, **kw)
                    c.close(t, want, "%s %s %s %s" % (backend, order, a, kw))
                    if t is not None:
                        for i in (0, 2): c.check(np.all(t["out"][i] == 0) and np.all(np.isneginf(t["lse"][i])), backend, a, order, "entry", i, "without keys is not 0 and -inf")
                    if a not in CLOSE: raws.append(("%s %s" % (a, kw), raw))
            c.same(raws, "%s %s" % (backend, order))

@case("lse-layout", "vllm-project/flash-attention#87; feifeibear/long-context-attention#122")
def lse_layout(c):
    """grouped heads, several entries and queries: every lse in its own place"""
    def make(q, k, v): return q * (1 + np.arange(q.shape[1]))[None, :, None, None] * (1 + np.arange(q.shape[0]))[:, None, None, None] * .3, k, v
    for l in (1, 2, 5):
        p = Problem(4, b=3, h=8, g=2, l=l, N=150, d=64, dtype="BF16", make=make); f = p.save(c.path()); want = p.want()
        for backend in ("cpu", "emulated"):
            for kw in ({}, dict(threads=2), dict(ranks=3)): t, _ = c.decode(f, "--backend", backend, **kw); c.close(t, want, "%s l %d %s" % (backend, l, kw))

@case("edge-lengths", "pytorch/pytorch#159247; Dao-AILab/flash-attention#778")
def edge_lengths(c):
    for N in (1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 319, 320, 321):
        p = Problem(N, h=4, g=1, N=N, d=64, dtype="BF16"); f = p.save(c.path()); want = p.want()
        for backend in ("cpu", "emulated"):
            raws = []
            for kw in ({}, dict(threads=3)):
                t, raw = c.decode(f, "--backend", backend, **kw); c.close(t, want, "%s N %d %s" % (backend, N, kw)); raws.append((str(kw), raw))
            c.same(raws, "%s N %d" % (backend, N))

@case("group-sizes", "pytorch/pytorch#151359, #143117; ikawrakow/ik_llama.cpp#1521; ggml-org/llama.cpp#26404")
def group_sizes(c):
    for h, g in ((3, 1), (5, 1), (6, 1), (7, 1), (12, 2), (20, 1), (33, 1), (9, 3), (14, 2), (64, 1)):
        for dtype in ("BF16", "F32"):
            p = Problem(h, h=h, g=g, N=201, d=64, dtype=dtype); f = p.save(c.path()); want = p.want()
            for backend in ("cpu", "emulated"):
                for kw in ({}, dict(threads=2)): t, _ = c.decode(f, "--backend", backend, what="%d/%d" % (h, g), **kw); c.close(t, want, "%s %d/%d %s %s" % (backend, h, g, dtype, kw))

@case("head-sizes", "microsoft/onnxruntime#28357; ggml-org/llama.cpp#26404; microsoft/onnxruntime#17674")
def head_sizes(c):
    for d, dv in ((1, 1), (1, 512), (512, 1), (192, 128), (256, 512), (96, 160), (46, 59), (3, 5), (511, 2), (130, 257)):
        for dtype in ("F16", "F32"):
            p = Problem(d, h=5, g=1, N=130, d=d, dv=dv, dtype=dtype); f = p.save(c.path()); want = p.want()
            for backend in ("cpu", "emulated"): t, _ = c.decode(f, "--backend", backend, threads=2, what="d_h %d d_v %d" % (d, dv)); c.close(t, want, "%s d_h %d d_v %d %s" % (backend, d, dv, dtype))

@case("far-offsets", "flashinfer-ai/flashinfer#3136; ROCm/aiter#2768, #4474; vllm-project/vllm#50427")
def far_offsets(c):
    """a sparse file of 24 GiB: element and byte offsets of k and v beyond 2^31 and 2^32, few keys in use"""
    b, g, N, d, L = 3, 2, 1 << 24, 64, [5, 100, 70]; small = Problem(8, b=b, h=4, g=g, N=100, d=d, dtype="F16", lengths=L); want = small.want()
    f = c.path(); stride = N * d * 2; total = b * g * stride
    head = {"q": {"dtype": "F16", "shape": [b, 4, 1, d], "data_offsets": [0, small.sq.nbytes]}, "lengths": {"dtype": "I64", "shape": [b], "data_offsets": [small.sq.nbytes, small.sq.nbytes + 24]}}
    at = small.sq.nbytes + 24
    for name in ("k", "v"): head[name] = {"dtype": "F16", "shape": [b, g, N, d], "data_offsets": [at, at + total]}; at += total
    h = json.dumps(head).encode(); h += b" " * (-len(h) % 8)
    with open(f, "wb") as o:
        o.write(struct.pack("<Q", len(h)) + h + small.sq.tobytes() + small.lengths.tobytes()); start = o.tell()
        for n, s in enumerate((small.sk, small.sv)):
            for i in range(b):
                for j in range(g): o.seek(start + n * total + (i * g + j) * stride); o.write(s[i, j].tobytes())
        o.truncate(start + 2 * total)
    try:
        raws = []
        for name, kw in (("1", {}), ("threads 2", dict(threads=2)), ("mpi 3", dict(ranks=3))):
            t, raw = c.decode(f, what=name, **kw); c.close(t, want, "cpu " + name); raws.append((name, raw))
        c.same(raws, "cpu"); c.close(c.oracle(f), want, "oracle")
    finally: os.remove(f)

@case("growth", "ml-explore/mlx-examples#765; ml-explore/mlx-lm#1673; microsoft/onnxruntime-genai#2354; harvard-edge/cs249r_book#1953; sgl-project/sglang#29271")
def growth(c):
    """the cache grows from N - T keys, also from none, over the ends of leaves"""
    for N, T in ((1, 1), (5, 5), (64, 2), (65, 2), (65, 65), (130, 67), (257, 3), (300, 40)):
        p = Problem(N + T, b=2, h=2, g=1, l=T, N=N, d=16); f = p.save(c.path())
        one = Problem(N + T, b=2, h=2, g=1, l=T, N=N, d=16); one.sq, one.q = one.sq[:, :, -1:], one.q[:, :, -1:]; e = one.save(c.path()); want = one.want()
        for backend in ("cpu", "emulated"):
            for order in ("contiguous", "dealt"):
                t, once = c.decode(e, "--backend", backend, "--order", order); c.close(t, want, "%s once" % order); raws = [("at once", once)]
                for kw in ({}, dict(threads=3), dict(ranks=2)):
                    if backend == "emulated" and (kw.get("ranks") or T > 40): continue
                    t, raw = c.decode(f, "--backend", backend, "--order", order, "--steps", T, what="N %d T %d" % (N, T), **kw); raws.append((str(kw), raw))
                c.same(raws, "%s %s N %d T %d" % (backend, order, N, T))

@case("halves", "numpy/numpy#12845; microsoft/DirectXMath#104; iree-org/iree#20676; libxsmm/libxsmm#794; tensorflow/tensorflow#36514")
def halves(c):
    """all 65536 values of F16 and of BF16 as the value of a single key: the output is that number, subnormal or not"""
    for dtype in ("F16", "BF16"):
        bits = np.arange(65536, dtype="<u2"); v = bits.reshape(1, 128, 1, 512); exact = (bits.view("<f2").astype("<f4") if dtype == "F16" else from_bf16(bits)).reshape(1, 128, 1, 512)
        q = np.zeros((1, 128, 1, 8), "<u2"); f = c.path(); save(f, {"q": (dtype, q), "k": (dtype, q), "v": (dtype, v)})
        for backend in ("cpu", "emulated"):
            t, _ = c.decode(f, "--backend", backend)
            if t is None: continue
            got = t["out"]; ok = (got == exact) | (np.isnan(got) & np.isnan(exact)); bad = np.argwhere(~ok)
            c.check(ok.all(), backend, dtype, "%d of 65536 values differ, first bits 0x%04x: %.9g, not %.9g" % (len(bad), int(v[tuple(bad[0])]) if len(bad) else 0, got[tuple(bad[0])] if len(bad) else 0, exact[tuple(bad[0])] if len(bad) else 0))
        for backend in ("cpu", "emulated"):  # the same numbers as keys: score = key, value 1; q = 1
            finite = exact.reshape(-1)[np.isfinite(exact.reshape(-1)) & (np.abs(exact.reshape(-1)) < 80)]; n = len(finite)
            p = Problem(1, h=1, N=n, d=1, dv=2, dtype=dtype, scale=1.0, make=lambda q, k, v: (np.ones_like(q), finite.reshape(1, 1, n, 1), v)); g = p.save(c.path())
            t, _ = c.decode(g, "--backend", backend, "--scale", "1"); c.close(t, p.want(), "%s %s as keys" % (backend, dtype))

@case("alignment", "safetensors/safetensors#231")
def alignment(c):
    """data that starts at any byte: headers of any length, an odd tensor in front"""
    for dtype in ("F64", "F32", "F16", "BF16"):
        p = Problem(11, b=2, h=2, g=1, N=130, d=33, dv=17, dtype=dtype, lengths=[130, 77]); want = p.want(); raws = []; f = p.save(c.path()); t, raw = c.decode(f); c.close(t, want, dtype); raws.append(("aligned", raw))
        for pad in (1, 2, 3, 4, 5, 7):
            for front in (0, 3):
                x = p.tensors(); order = ["odd", "lengths", "v", "q", "k"] if front else ["v", "lengths", "k", "q"]
                if front: x["odd"] = ("U8", np.zeros(front, "u1"))
                g = c.path(); save(g, x, order=order, pad=pad)
                t, raw = c.decode(g, what="pad %d" % pad); raws.append(("pad %d front %d" % (pad, front), raw))
                if pad in (1, 4): t, raw = c.decode(g, threads=3, what="pad %d" % pad); raws.append(("3 ranks, pad %d front %d" % (pad, front), raw))
                if pad == 3: t, _ = c.decode(g, "--backend", "emulated"); c.close(t, want, "emulated %s pad 3" % dtype); c.close(c.oracle(g), want, "oracle %s pad 3" % dtype)
        c.same(raws, dtype)

@case("headers", "carsonpo/safetensors.cpp#3; antirez/h3.c#48; syoyo/safetensors-cpp#1; safetensors/safetensors#255")
def headers(c):
    p = Problem(12, h=2, N=70, d=16); x = p.tensors(); want = p.want(); _, first = c.decode(p.save(c.path())); raws = [("plain", first)]
    for name, meta in (("braces", {"format": "pt", "note": "} , { \"q\": [0], \\ ]"}), ("unicode", {"\u00e9\u4e2d\U0001f333": "\u0000\t\n\u2028"}), ("nested text", {"config": json.dumps({"a": {"b": [1, {"c": "}"}]}})}), ("empty", {}), ("long", {"x": "y" * 300000})):
        f = c.path(); save(f, x, meta=meta); t, raw = c.decode(f, what="metadata " + name); raws.append((name, raw))
    f = c.path(); h = header(x); save(f, x, head=dict(reversed(list(h.items())))); _, raw = c.decode(f, what="header in another order than the data"); raws.append(("order", raw))
    c.same(raws, "headers")
    o = c.path(".out"); f = c.path(); save(f, x, tail=b"\x09\x07\x2f\x00"); c.refused(["decode", f, o], os.path.basename(f), what="4 bytes behind the last tensor", out=o)
    h = header(x); n = h["v"]["data_offsets"]; h["v"]["data_offsets"] = [n[0] + 8, n[1] + 8]; f = c.path(); save(f, x, head=h, tail=b"\0" * 8); c.refused(["decode", f, o], os.path.basename(f), what="a hole between tensors", out=o)
    h = header(x); h["__metadata__"] = {"a": {"b": "c"}}; f = c.path(); save(f, x, head=h); c.refused(["decode", f, o], what="metadata that is not text", out=o)

@case("batch", "deepseek-ai/FlashMLA#212; ROCm/aiter#4378; Dao-AILab/flash-attention#1897")
def batch(c):
    """a sequence alone, and in batches of other sequences, has the same bits"""
    n = 777; alone = Problem(14, h=6, g=2, N=n, d=64, dtype="BF16"); f = alone.save(c.path())
    for backend in ("cpu", "emulated"):
        _, raw = c.decode(f, "--backend", backend); one = None if raw is None else load_bytes(raw); size = []
        for b, place, N, kw in ((2, 0, n, {}), (2, 1, 2000, {}), (9, 4, 900, dict(threads=3)), (33, 32, n, {}), (33, 7, 1500, dict(ranks=2))):
            if backend == "emulated" and b > 9: continue
            r = np.random.default_rng(b); L = r.integers(0, N + 1, b); L[place] = n
            x = Problem(b, b=b, h=6, g=2, N=N, d=64, dtype="BF16", lengths=L)
            x.sq[place], x.sk[place, :, :n], x.sv[place, :, :n] = alone.sq[0], alone.sk[0], alone.sv[0]
            t, _ = c.decode(x.save(c.path()), "--backend", backend, *(["--threads", 1 + b % 2] if backend == "cpu" else []), what="batch of %d" % b, **kw)
            if t is not None and one is not None:
                c.check(t["out"][place].tobytes() == one["out"][0].tobytes() and t["lse"][place].tobytes() == one["lse"][0].tobytes(), backend, "batch of %d, entry %d, N %d: other bits than alone" % (b, place, N))

def load_bytes(raw):
    n = struct.unpack("<Q", raw[:8])[0]; out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__": out[name] = np.frombuffer(raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]], TYPES[t["dtype"]][0]).reshape(t["shape"])
    return out

@case("operators", "open-mpi/ompi#1754, #12258; faasm/faabric#33")
def operators(c):
    """whatever algorithm MPI chooses for its AllReduce: right, and the same bits on all ranks"""
    p = Problem(15, b=2, h=4, N=700, d=64); f = p.save(c.path()); want = p.want(); exact = []
    for n in (2, 3, 5, 6, 7):
        for k in (0, 1, 2, 3, 4, 5, 6):
            if n in (2, 6) and k not in (0, 3, 6): continue
            mpi = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", str(k)] if k else []
            r = c.path(".json"); t, _ = c.decode(f, "--algorithm", "fused", "--compare", "packed,paper,two-level", "--report", r, ranks=n, mpi=mpi, what="AllReduce %d" % k)
            c.close(t, want, "fused %d ranks, AllReduce algorithm %d" % (n, k))
            if t is None: continue
            for x in json.load(open(r))["runs"]:
                c.check(x["same_bits_on_all_ranks"], x["algorithm"], n, "ranks, AllReduce algorithm", k, ": bits differ between ranks")
                if x["algorithm"] == "two-level": exact.append(x["output_digest"])
    c.check(len(set(exact)) == 1, "two-level has", len(set(exact)), "digests over ranks and AllReduce algorithms")

@case("causal-oracle", "MinghuasLab/flash-attention-npu#120; microsoft/onnxruntime#27992; Dao-AILab/flash-attention#708")
def causal_oracle(c):
    """more queries than keys, and lengths per entry: the last query sees the last key in use"""
    for l, N, lengths in ((5, 2, None), (8, 3, [2, 0, 3]), (3, 70, [2, 3, 70]), (1, 1, None), (4, 0, None)):
        p = Problem(l * 7 + N, b=3, h=8, g=1, l=l, N=N, d=32, lengths=lengths); f = p.save(c.path())
        c.close(c.oracle(f, "--causal", what="l %d N %d" % (l, N)), p.want(causal=True), "oracle --causal l %d N %d lengths %s" % (l, N, lengths))
        if l * N: c.close(c.decode(f)[0], p.want(), "decode l %d N %d lengths %s" % (l, N, lengths))
        for kw in ({}, dict(threads=3)): c.close(c.decode(f, "--causal", **kw)[0], p.want(causal=True), "decode --causal l %d N %d lengths %s %s" % (l, N, lengths, kw))

@case("large-scores", "pytorch/pytorch#121558; ggml-org/llama.cpp#17558, #7805; ikawrakow/ik_llama.cpp#1196")
def large_scores(c):
    """finite products of 1e7 to 1e12, as of activations at the end of F16: the formula has a finite answer"""
    for dtype, x in (("BF16", 133120.0), ("F16", 60000.0), ("F16", 4000.0), ("BF16", 30000.0), ("F32", 133120.0)):  # the first: q, k and v as in the report
        for h, g, N, d in ((1, 1, 1, 64), (1, 1, 2, 64), (4, 2, 200, 64), (8, 1, 1000, 128)):
            p = Problem(17, h=h, g=g, N=N, d=d, dtype=dtype, make=lambda q, k, v: (q * 0 + x, k * 0 + x, v * 0 + x)); f = p.save(c.path()); want = p.want()
            for backend in ("cpu", "emulated"):
                for kw in ({}, dict(threads=3)): t, _ = c.decode(f, "--backend", backend, **kw); c.close(t, want, "%s %s all %g, %d/%d heads of %d, N %d %s" % (backend, dtype, x, h, g, d, N, kw))
    for dtype, x in (("F16", 300.0), ("F16", 3000.0), ("F16", 20000.0), ("BF16", 3000.0), ("BF16", 30000.0)):  # normal numbers, enlarged
        p = Problem(18, h=16, g=4, N=200, d=128, dtype=dtype, make=lambda q, k, v: (q * x, k * x, v)); f = p.save(c.path()); want = p.want()
        for backend in ("cpu", "emulated"): t, _ = c.decode(f, "--backend", backend); c.close(t, want, "%s %s normal numbers times %g" % (backend, dtype, x))

@case("full-halves", "ggml-org/llama.cpp#17558; jzhang38/EasyContext#14")
def full_halves(c):
    """values of 65504 over many keys; shards whose lse lie 1e4 apart"""
    p = Problem(17, h=4, g=2, N=1000, d=128, dtype="F16", make=lambda q, k, v: (q, k, 65504.0 * np.sign(v))); f = p.save(c.path())
    def steps(q, k, v): k[:, :, :64] *= 300; k[:, :, 128:192] *= 100; return q * 30, k, v
    r = Problem(18, h=4, g=2, N=256, d=64, dtype="F16", make=steps); g = r.save(c.path())
    for path, want, name in ((f, p.want(), "65504"), (g, r.want(), "far apart")):
        for backend in ("cpu", "emulated"):
            for a in EXACT + CLOSE if backend == "cpu" else ["two-level"]: t, _ = c.decode(path, "--backend", backend, "--algorithm", a, threads=4); c.close(t, want, "%s %s %s" % (backend, a, name))

@case("latent", "NVIDIA/cutlass#2274; deepseek-ai/FlashMLA")
def latent(c):
    """16 query heads on one latent head of 576 / 512, queries of deviation 100, 256 keys in two splits; beyond the limit of a backend: refused in one line"""
    for dtype in ("F16", "BF16"):
        p = Problem(41, b=3, h=16, g=1, N=256, d=576, dv=512, dtype=dtype, q_scale=100.0, lengths=[256, 1, 130]); f = p.save(c.path()); want = p.want(); raws = []
        for kw in ({}, dict(threads=2), dict(ranks=3)): t, raw = c.decode(f, **kw); c.close(t, want, "%s %s" % (dtype, kw)); raws.append((str(kw), raw))
        c.same(raws, dtype)
        o = c.path(".out"); x = c.run(["decode", f, o, "--backend", "emulated"])
        if x is not None and x.returncode == 0: c.close(load(o), want, "emulated")
        elif x is not None: c.check(x.returncode == 2 and len(x.stderr.strip().splitlines()) == 1 and "576" in x.stderr and not os.path.exists(o), "emulated, d_h 576: neither right nor refused in one line:", x.returncode, x.stderr[-160:])

@case("not-offered", "vllm-project/vllm#41623 (interleave), sinks, windows, softcap, FP8, INT8, pages")
def not_offered(c):
    """what the program does not offer is refused in one line, not ignored; sinks, windows, caps, masks and keys of F8, which it does, are right"""
    w = Problem(20, b=2, h=4, g=2, l=3, N=300, d=32, lengths=[300, 70]); r = np.random.default_rng(20)
    added = np.where(r.random((2, 1, 3, 300)) < 0.3, -np.inf, r.standard_normal((2, 1, 3, 300))).astype("<f4")
    for more, options in (((), dict()), (("--causal", "--window", "50", "--sinks", "5"), dict(causal=True, window=50, sinks=5)), (("--softcap", "1.5"), dict(softcap=1.5))):
        for mask in (None, added):
            g = c.path(); x = w.tensors(); x.update({} if mask is None else {"mask": ("F32", mask)}); save(g, x); want = w.want(mask=mask, **options); raws = []
            for kw in ({}, dict(threads=3), dict(ranks=2)): t, raw = c.decode(g, *more, **kw); c.close(t, want, "%s %s" % (more, kw)); raws.append((str(kw), raw))
            c.same(raws, "%s" % (more,)); c.close(c.oracle(g, *more), want, "oracle %s" % (more,))
    p = Problem(19, h=2, N=70, d=16); f = p.save(c.path()); o = c.path(".out")
    for option in ("--page-size", "--block-table", "--interleave", "--mask"):
        c.refused(["decode", f, o, option, "5"], option, what=option, out=o)
    sk, sv = (r.integers(0, 120, (1, 2, 70, 16)).astype("u1") | (r.integers(0, 2, (1, 2, 70, 16)).astype("u1") << 7) for _ in "kv"); k_scale, v_scale = (r.random((1, 2)).astype("<f4") / 64 for _ in "kv"); g = c.path(); raws = []; e = Problem(19, h=2, N=70, d=16, dtype="BF16")
    save(g, e.tensors() | {"k": ("F8_E4M3", sk), "v": ("F8_E4M3", sv), "k_scale": ("F32", k_scale), "v_scale": ("F32", v_scale)}); want = attention(e.q, *(from_e4m3(x) * y[:, :, None, None].astype("f8") for x, y in ((sk, k_scale), (sv, v_scale))))
    for kw in ({}, dict(threads=3), dict(ranks=2)): t, raw = c.decode(g, **kw); c.close(t, want, "keys of F8_E4M3 %s" % kw); raws.append((str(kw), raw))
    c.same(raws, "keys of F8_E4M3"); t, _ = c.decode(g, "--backend", "emulated"); c.close(t, want, "emulated, keys of F8_E4M3")
    for dtype, item in (("F8_E5M2", 1), ("I8", 1), ("U8", 1), ("I32", 4), ("C64", 8)):
        x = {n: np.zeros(s, "u1") for n, s in (("q", (1, 2, 1, 16 * item)), ("k", (1, 2, 70, 16 * item)), ("v", (1, 2, 70, 16 * item)))}; head, at = {}, 0
        for n, a in x.items(): head[n] = {"dtype": dtype, "shape": [*a.shape[:3], 16], "data_offsets": [at, at + a.nbytes]}; at += a.nbytes
        g = c.path(); save(g, {n: ("U8", a) for n, a in x.items()}, head=head); c.refused(["decode", g, o], dtype, what="keys of " + dtype, out=o)
    mixed = p.tensors(); mixed["k"] = ("F16", p.sk.astype("<f2")); g = c.path(); save(g, mixed); c.refused(["decode", g, o], "k", "F16", what="q F32 and k F16", out=o)
    g = c.path(); x = p.tensors(); x["lengths"] = ("I32", np.array([70], "<i4")); save(g, x); c.refused(["decode", g, o], "lengths", what="lengths of I32", out=o)

# ---- main -------------------------------------------------------------------------------------------------------------
def main():
    a = sys.argv[1:]; value = lambda n, d: a[a.index(n) + 1] if n in a else d
    if "--help" in a or "-h" in a: print(__doc__); return 0
    here = os.path.dirname(os.path.realpath(__file__)); program = os.path.abspath(value("--program", "build/tree_attn"))
    only = value("--only", ""); chosen = [x for x in CASES if not only or x[0] in only.split(",")]
    if "--list" in a:
        for cid, source, _, h in chosen: print("%-18s %s" % (cid, source))
        return 0
    if not os.path.exists(program): print("no program at", program); return 1
    if not chosen: print("no case chosen"); return 1
    right, runs = 0, 0; start = time.time()
    for cid, source, f, _ in chosen:
        T = tempfile.mkdtemp(prefix="public-"); c = Case(program, T); t = time.time()
        try: f(c)
        except Exception as e: c.fail("the case itself failed: %s: %s" % (type(e).__name__, e))
        finally: shutil.rmtree(T, ignore_errors=True)
        runs += c.runs; right += not c.bad
        print("%-18s %s  %3d runs  %5.1f s  worst %.2g of the bound   (%s)" % (cid, "right" if not c.bad else "WRONG", c.runs, time.time() - t, c.worst, source), flush=True)
        for x in c.bad[:8]: print("    " + x.replace(T + "/", ""), flush=True)
        if len(c.bad) > 8: print("    and %d more" % (len(c.bad) - 8), flush=True)
    print("%d of %d right, %d runs, %.0f s" % (right, len(chosen), runs, time.time() - start))
    return int(right != len(chosen))

if __name__ == "__main__": sys.exit(main())
