#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tree_attn.diagnose: right dumps are right, faults are named, and the page's case prints what the page shows.

Run: ./run python
"""
import contextlib
import functools
import io
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import numpy

import tree_attn

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "diagnose.md"
BF16 = "bfloat16"


def stored(x, dtype):
    """An array as a dump has it; BF16 as its bits."""
    if dtype != BF16:
        return x.astype(dtype)
    bits = numpy.ascontiguousarray(x, "float32").view("uint32")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("uint16")


def dump(dtype="float32", lengths=(40, 70, 30), rows=2, seed=1, partials=True, merged=True, change=lambda rank, o, lse: (o, lse), keys=lambda rank, k, v: (k, v), values=1, **seen):
    """A decode of 4 heads over two; change: what the merge gets of each rank; keys: what a rank attends to. seen: as of tree_attn.attention()."""
    rng = numpy.random.default_rng(seed)
    draw = lambda *shape, of=1: stored(of * rng.standard_normal(shape), dtype)
    wide = lambda x: (x.astype("uint32") << 16).view("float32") if dtype == BF16 else x
    x, states = {"q": draw(2, 4, rows, 32)}, []
    for r, n in enumerate(lengths):
        k, v = draw(2, 2, n, 32), draw(2, 2, n, 16, of=values)
        x.update({f"k.{r}": k, f"v.{r}": v})
        o, lse = tree_attn.attention(wide(x["q"]), *keys(r, wide(k), wide(v)), **(seen if r == len(lengths) - 1 else {}))
        x.update({f"o.{r}": stored(o, dtype), f"lse.{r}": lse} if partials else {})
        states.append(change(r, o, lse))
    if merged:
        out, x["lse"] = functools.reduce(lambda a, b: tree_attn.merge(*a, *b), states)
        x["out"] = stored(out, dtype)
    return x


def rounded(x, dtype):
    """The nearest values of a type, wide."""
    x = stored(x, dtype)
    return (x.astype("uint32") << 16).view("float32").astype("float64") if dtype == BF16 else x.astype("float64")


def in_16_bits(dtype, scores, values, shown):
    """One query whose ranks have these scores and values: weights, partials and their merge are each rounded once to a type. shown: names of the dump."""
    high = [rounded(s, dtype) for s in scores]
    parts = [numpy.stack([a, rounded(s - a, dtype), s - a - rounded(s - a, dtype)], -1)[None, None] for s, a in zip(scores, high)]
    x, sums = {"q": stored(numpy.ones((1, 1, 1, 3)), dtype)}, []
    for r, (k, v) in enumerate(zip(parts, values)):
        x.update({f"k.{r}": stored(k, dtype), f"v.{r}": stored(v[None, None, :, None], dtype)})
        s = rounded(k, dtype).sum(-1)[0, 0]
        p = numpy.exp(s - s.max())
        sums.append((rounded(rounded(p, dtype) @ v / p.sum(), dtype), numpy.log(p.sum()) + s.max()))
        x.update({f"o.{r}": stored(sums[r][0].reshape(1, 1, 1, 1), dtype), f"lse.{r}": numpy.full((1, 1, 1), sums[r][1], "float32")})
    w = numpy.exp([lse for _, lse in sums])
    x["out"] = stored(numpy.reshape(w @ [o for o, _ in sums] / w.sum(), (1, 1, 1, 1)), dtype)
    return {name: f for name, f in x.items() if name[0] in "qkv" or name in shown}


def save(path, tensors, settings):
    """A file of safetensors."""
    names, at, header = {"float32": "F32", "float16": "F16", "uint16": "BF16", "int64": "I64"}, 0, {"__metadata__": {"settings": json.dumps(settings)}}
    for name, x in tensors.items():
        header[name] = {"dtype": names[str(x.dtype)], "shape": x.shape, "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(x.tobytes() for x in tensors.values()))


class Diagnose(unittest.TestCase):
    def names(self, fault, tensors, **layout):
        report = tree_attn.diagnose(tensors, layout=layout)
        self.assertEqual((report["verdict"], report["fault"]), ("wrong", fault), str(report))
        return report

    def test_right_is_right(self):
        for dtype in ("float32", "float16", BF16):
            for partials, merged in ((True, True), (True, False), (False, True)):
                for lengths in ((40, 70, 30), (40, 0, 30), (65,)):
                    report = tree_attn.diagnose(dump(dtype, lengths, partials=partials, merged=merged))
                    self.assertEqual((report["verdict"], report["fault"]), ("right", None), str(report))
                    self.assertLess(report["largest"], 0.8)
            self.assertEqual(tree_attn.diagnose(dump(dtype, causal=True), layout={"causal": True})["verdict"], "right")

    def test_each_rounding_to_16_bits_is_counted_once(self):
        """Errors that are all as large as they can be, and of one sign: of weights, partials and their merge; and of weights and outputs below 2^-14."""
        up = lambda n, p: numpy.log(numpy.append(1, numpy.full(n, p)))
        for dtype, unit in ((BF16, 2.0 ** -8), ("float16", 2.0 ** -11)):
            scores = [up(149, (1 + 1.02 * unit) / 2), up(50, (1 + 1.02 * unit) / 2)]
            first = 1 + 2 * unit * round(0.04 / unit)
            values = [numpy.full(150, first), numpy.full(51, first + 4 * unit)]
            x = in_16_bits(dtype, scores, values, ("out",))
            report = tree_attn.diagnose(x, layout={"scale": 1.0})
            self.assertEqual(report["verdict"], "right", str(report))
            self.assertGreater(report["largest"], 0.9)
            x["out"] = stored(numpy.full((1, 1, 1, 1), first + 6 * unit), dtype)  # the next number
            self.assertEqual(tree_attn.diagnose(x, layout={"scale": 1.0})["verdict"], "wrong")
        scores, values = [up(2000, 1.01 * 2.0 ** -25), up(1, 2.0 ** -13)], [numpy.append(0, numpy.ones(2000)), numpy.zeros(2)]
        report = tree_attn.diagnose(in_16_bits("float16", scores, values, ("o.0", "lse.0", "o.1", "lse.1", "out")), layout={"scale": 1.0})
        self.assertEqual(report["verdict"], "right", str(report))
        self.assertGreater(report["largest"], 0.9)
        tiny = dump("float16", values=1e-6)
        self.assertEqual(tree_attn.diagnose(tiny)["verdict"], "right")
        tiny["o.1"][0, 0, 0, 0] += numpy.float16(2.0 ** -22)
        self.assertEqual(tree_attn.diagnose(tiny)["verdict"], "wrong")

    def test_faults_of_the_merge(self):
        for partials in (True, False):
            self.names("lse_base2", dump(partials=partials, change=lambda r, o, lse: (o, lse / numpy.float32(math.log(2)))))
            gone = self.names("rank_missing", dump(partials=partials, change=lambda r, o, lse: (o, lse - (numpy.inf if r == 1 else 0))))
            self.assertIn("rank 1", gone["detail"])
            self.assertIsNone(gone["where"]["rank"])
            self.names("rank_twice", dump(partials=partials, change=lambda r, o, lse: (o, lse + numpy.float32(math.log(2) if r == 2 else 0))))
            self.names("empty_lse", dump(partials=partials, lengths=(40, 0, 30), change=lambda r, o, lse: (o, numpy.where(numpy.isinf(lse), numpy.float32(0), lse))))
            self.names("heads_permuted", dump(partials=partials, change=lambda r, o, lse: (o[:, [2, 0, 3, 1]].copy(), lse[:, [2, 0, 3, 1]].copy())))
        self.names("nan_zero", {**(x := dump(lengths=(40, 0, 30))), "out": x["out"] * numpy.float32("nan")})
        self.names("partials_16bit", dump(change=lambda r, o, lse: (o.astype("float16").astype("float32"), lse)))

    def test_faults_of_a_rank(self):
        late = self.names("last_keys_missing", dump(keys=lambda r, k, v: (k[:, :, :-3 if r == 2 else None], v[:, :, :-3 if r == 2 else None])))
        self.assertEqual((late["detail"], late["where"]["rank"]), ("[0, 0, 3] of the ranks", 2))
        self.names("causal_edge", dump(), causal=True)
        self.names("scale_missing", dump(lengths=(65,), scale=1.0))
        self.names("kv_grouping", dump(keys=lambda r, k, v: (k[:, ::-1].copy(), v[:, ::-1].copy())))
        self.names("none of these", dump(keys=lambda r, k, v: (k + 0.1 * numpy.roll(k, 1, 3), v)))

    def test_calls(self):
        x = dump()
        shards, partials = [(x[f"k.{r}"], x[f"v.{r}"], [40 * (r > 0) + 70 * (r > 1) + numpy.arange(n)][0]) for r, n in enumerate((40, 70, 30))], [(x[f"o.{r}"], x[f"lse.{r}"]) for r in range(3)]
        self.assertEqual(tree_attn.diagnose(x["q"], shards, partials, x["out"], x["lse"])["parts"], tree_attn.diagnose(x)["parts"])
        for wrong, line in (({"k.1": x["k.0"]}, r"v.1 is \[2, 2, 70, 16\]; expected \[2, 2, 40, 16\]"), ({"lse": x["lse"][:1]}, "lse is"), ({"q": x["q"].astype(int)}, "of type int64")):
            with self.assertRaisesRegex(ValueError, line):
                tree_attn.diagnose({**x, **wrong})
        with self.assertRaisesRegex(ValueError, "nothing to check"):
            tree_attn.diagnose(x["q"], shards)
        with self.assertRaisesRegex(ValueError, "'windows'; there are: scale"):
            tree_attn.diagnose(x, layout={"windows": 3})

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "x.safetensors"
            run = lambda *more: subprocess.run([sys.executable, "-m", "tree_attn.diagnose", path, *more], capture_output=True, text=True)
            save(path, dump(BF16, causal=True), {"causal": True})
            right = run()
            self.assertEqual((right.returncode, right.stderr, right.stdout.split(":")[0]), (0, "", "right"))
            save(path, dump(BF16), {"causal": True})
            wrong = run("--json")
            self.assertEqual((wrong.returncode, json.loads(wrong.stdout)["fault"]), (1, "causal_edge"))
            x = dump(lengths=(40, 0, 30))
            for name, number, is_not, line in (("lse.1", math.inf, ("inf", "-inf"), "right: at most inf of the bound, in lse.1 at "), ("out", math.nan, ("nan",), "wrong: out has inf of its bound at .*: nan, not ")):
                save(path, {**x, name: numpy.full_like(x[name], number)}, {})
                report = json.loads(run("--json").stdout, parse_constant=self.fail)
                self.assertEqual((report["where"]["is"], report["where"]["not"])[:len(is_not)], is_not)
                self.assertEqual((report["where"]["part"], report["largest"], report["parts"][name]), ("inf", "inf", "inf"))
                self.assertRegex(run().stdout, f"^{line}")
            save(path, dump(BF16), {})
            whole = path.read_bytes()
            for broken in (b"", whole[:100], whole[:-1], whole[:8] + b"x" + whole[9:], whole.replace(b'"BF16"', b'"BF17"'), whole.replace(b"[0, ", b"[9, ")):
                path.write_bytes(broken)
                said = run()
                self.assertEqual((said.returncode, said.stdout, said.stderr.count("\n")), (2, "", 1), said.stderr)
            path.unlink()
            self.assertEqual(run().returncode, 2)

    def test_the_case_of_the_page(self):
        code, shown = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL).groups()
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names := {})
        digits = lambda text: re.sub(r"\d\.\d+(?:e[-+]\d+)?", "x", text)  # errors of the library's own sums depend on the instruction set
        self.assertEqual(digits(printed.getvalue()), digits(shown))
        report, of_page = json.loads(json.dumps(names["report"])), json.loads(re.search(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL).group(1))
        near = lambda x: x if not isinstance(x, float) else float(f"{x:.2g}")
        for of, shown in ((report, of_page), (report["where"], of_page["where"])):
            self.assertEqual([*of], [*shown])
            self.assertEqual({name: near(x) for name, x in of.items() if not isinstance(x, dict)}, {name: near(x) for name, x in shown.items() if not isinstance(x, dict)})


if __name__ == "__main__":
    unittest.main()
