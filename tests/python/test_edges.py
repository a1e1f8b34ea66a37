#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The edges of the Python package: every keyword changes something, 0 is a value, integers, empty and foreign arrays, modes of arithmetic.

Run: ./run python    or, over ranks: mpirun -n 3 python3 tests/python/test_edges.py Ranks
"""
import copy
import ctypes
import inspect
import math
import os
import pickle
import time
import unittest
import unittest.mock

import numpy

import tree_attn
from optional import package
from tree_attn import Attention, attention

torch, MPI = package("torch"), package("mpi4py.MPI")

RNG = numpy.random.default_rng(48)
q, k, v = (RNG.standard_normal(shape).astype("float32") for shape in ((2, 4, 3, 16), (2, 2, 100, 16), (2, 2, 100, 8)))
wide = [x.astype("float64") for x in (q, k, v)]
zeta, logits = 0.3 * RNG.standard_normal((2, 4, 3, 8)), RNG.standard_normal(4).astype("float32")


def outcome(call):
    """Returns what a call comes to, for comparisons: bytes of all results, or the error."""
    try:
        result = call()
    except Exception as error:
        return type(error).__name__ + ": " + str(error)
    return b"".join(numpy.asarray(x).tobytes() for x in (result if isinstance(result, tuple) else (result,)))


def layer(**setup):
    opened = Attention(**{"heads": 4, "kv_heads": 2, "head_dim": 16, "value_dim": 8, "batch": 2, "most_queries": 3, **setup})
    for entry in (0, 1):
        opened.append(k[entry], v[entry], entry)
    return opened


class Keywords(unittest.TestCase):
    """A keyword that is added to a signature fails here until it has a row."""

    def check(self, function, arguments, table, base=None, apart=()):
        keywords = [name for name, x in inspect.signature(function).parameters.items() if name not in arguments and name not in ("self", *apart)]
        self.assertEqual(sorted(keywords), sorted(table), f"rows for the keywords of {function.__name__}")
        for name, value in table.items():
            before = {**(base or {}), **(value[0] if isinstance(value, tuple) else {})}
            value = value[1] if isinstance(value, tuple) else value
            first, second = (outcome(lambda: function(*arguments.values(), **kw)) for kw in (before, {**before, name: value}))
            self.assertIsInstance(first, bytes, f"{function.__name__}: {first}")
            self.assertIsInstance(second, bytes, f"{function.__name__} with {name}: {second}")
            self.assertNotEqual(first, second, f"{function.__name__} with another {name}")

    SEEN = {"causal": True, "window": 20, "sinks": ({"window": 20}, 3)}
    SCORES = {"mask": RNG.standard_normal((2, 4, 3, 100)) > 0, "softcap": 2.0}

    def test_of_functions(self):
        all_seen = {**self.SEEN, "scale": 0.7}
        self.check(attention, {"q": q, "k": k, "v": v}, {**all_seen, **self.SCORES}, apart=("order",))
        self.check(tree_attn.energy, dict(zip(("q", "k", "v", "zeta"), (*wide, zeta))), all_seen)
        self.check(tree_attn.energy_gradient, dict(zip("qkv", wide)), {**all_seen, "zeta": zeta})
        self.check(tree_attn.error_bound, {"q": q, "k": k, "v": v}, {**all_seen, "n_additions": 100, "n_rescalings": 100, "output_roundoff": 0.1})
        self.check(tree_attn.moments, {"q": wide[0][0, 0, 0], "k": wide[1][0, 0], "v": wide[2][0, 0]}, {"zeta": zeta[0, 0, 0]})
        o, lse = attention(q, k, v)
        self.check(tree_attn.merge, {"o1": o, "lse1": lse, "o2": o[:, ::-1].copy(), "lse2": 2 * lse}, {"lse": "base two"})
        few, many = (tree_attn.error_bound(q, k, v, **kw).max() for kw in ({"n_additions": 100}, {"n_rescalings": 100}))
        self.assertLess(few, many)  # an exponential for each rescaling

    def test_of_a_layer(self):
        o, lse = attention(q, k, v)
        with layer() as opened:
            self.check(opened.step, {"q": q}, {**self.SEEN, **self.SCORES}, apart=("out", "by_heads", "stream"))
            self.check(opened.combine, {"o": o, "lse": lse}, {"form": "base two"}, apart=("by_heads", "stream"))
        for changed in ("entry", "n"):
            lengths = []
            for kw in ({"n": 7}, {"n": 7, "entry": 1} if changed == "entry" else {"n": 9}):
                with layer() as opened:
                    opened.truncate(**kw)
                    lengths.append((opened.length(0), opened.length(1)))
                    opened.append(k[0, :, :5], v[0, :, :5], entry=kw.get("entry", 0))
                    lengths.append((opened.length(0), opened.length(entry=1)))
            self.assertEqual(lengths, {"entry": [(7, 100), (12, 100), (100, 7), (100, 12)], "n": [(7, 100), (12, 100), (9, 100), (14, 100)]}[changed])
        with layer() as opened:
            opened.release(entry=1)
            self.assertEqual((opened.length(0), opened.length(1), opened.holds(5), opened.holds(2 ** 63 - 1)), (100, 0, True, False))
            with self.assertRaisesRegex(ValueError, "n is 3, but k has 100 positions"):
                opened.append(k[0], v[0], n=3)
            with self.assertRaisesRegex(ValueError, "n is needed where k is None"):
                opened.append(None)

    def test_of_a_setup(self):
        """All that Attention() passes to the library."""
        def passed(**keywords):
            fields, call = {}, tree_attn._call

            def recorded(name, *arguments, **kw):
                setup = arguments[0]._obj
                for field, kind in setup._fields_:
                    x = getattr(setup, field)
                    of_tensor = kind is ctypes.c_void_p and x is not None and field != "comm"
                    fields[field] = (x.code, x.bits) if isinstance(x, tree_attn._DataType) else bool(of_tensor) if kind is ctypes.c_void_p else x
                return call(name, *arguments, **kw)
            tree_attn._call = recorded
            try:
                Attention(**{"heads": 4, "head_dim": 16, "n_pages": 40, "page_window": 9, **keywords}).close()
            except ValueError as refused:  # of the backend
                if "transport" not in keywords:
                    raise refused
            finally:
                tree_attn._call = call
            return fields

        eight = {"dtype": "float8_e4m3fn", "n_pages": None, "page_window": None}
        table = {"heads": (8, {"heads": 8, "kv_heads": 8}), "head_dim": (8, {"head_dim": 8, "value_dim": 8}), "kv_heads": 2, "value_dim": 0, "batch": 3, "most_queries": 2, "n_queries": (2, {"most_queries": 2}),
                 "dtype": ("bfloat16", {"key_type": (4, 16), "value_type": (4, 16)}), "scale": (0.0, {"has_scale": 1}), "k_scale": (2.0, {"k_scale": True}, eight),
                 "v_scale": (2.0, {"v_scale": True}, eight), "algorithm": ("gather", {"algorithm": b"gather"}), "backend": ("cpu", {"backend": b"cpu"}),
                 "threads": (3, {"n_threads": 3}), "ranks_per_node": 2, "timeout": 7.5, "n_pages": 50, "page_window": 10, "page_sinks": 3,
                 "values_in_keys": (True, {"values_in_keys": 1}), "capacity": (640, {"capacity": 640}, {"n_pages": None, "page_window": None}),
                 "range_ends": ([None], {"range_ends": True}), "shared_memory": (False, {"no_shared_memory": 1}), "compares": (False, {"skips_comparison": 1}), "portable": (True, {"portable": 1}),
                 "transport": ("nccl", {"transport": b"nccl"})}
        self.assertEqual(sorted(table), sorted(set(inspect.signature(Attention.__init__).parameters) - {"self", "comm", "group"}))
        for name, row in table.items():
            value, expected, base = (*row, {})[:3] if isinstance(row, tuple) else (row, {name: row}, {})
            first, second = passed(**base), passed(**base, **{name: value}) if name not in base else None
            self.assertEqual({field: x for field, x in second.items() if x != first[field]}, expected, name)
        self.assertEqual(passed()["size"], ctypes.sizeof(tree_attn._Setup))
        self.assertEqual(outcome(lambda: passed(most_queries=1, n_queries=1)), "ValueError: most_queries and n_queries, its name in 0.2, are both given")
        self.assertEqual(passed(scale=0.3)["scale"], 0.3)

    def test_flags_that_are_left_out_are_0(self):
        out, lse = numpy.empty((2, 4, 3, 8), "float32"), numpy.empty((2, 4, 3), "float32")
        tree_attn._call("attend", q, k, v, 0, None, out, lse)
        self.assertEqual(out.tobytes(), attention(q, k, v)[0].tobytes())

    def test_a_stream_is_one_of_a_gpu(self):
        opened = layer()
        want = opened.step(q)[0].tobytes()
        for call in opened.step, opened.start, lambda q, stream: opened.combine(q, q[..., 0], stream=stream):
            for stream in 7, type("Stream", (), {"cuda_stream": 0})():
                self.assertEqual(outcome(lambda: call(q, stream=stream)), "ValueError: Attention::use_stream: the backend cpu has no streams")
            self.assertEqual(outcome(lambda: call(q, stream="7")), "TypeError: 'str' object cannot be interpreted as an integer")
        self.assertEqual(opened.step(q)[0].tobytes(), want)

    def test_a_closed_layer_has_ended(self):
        def n_threads():
            return len(os.listdir("/proc/self/task"))
        before = n_threads()
        opened = layer(threads=4)
        self.assertEqual(n_threads(), before + 3)
        opened.close()
        self.assertEqual(n_threads(), before)


class Facade(unittest.TestCase):
    """Tests that what C++ has is there in C and Python."""

    long = [RNG.standard_normal((2, heads, n, 16)).astype("float32") for heads, n in ((4, 3), (2, 300), (2, 300))]

    def opened(self, **setup):
        opened = Attention(**{"heads": 4, "kv_heads": 2, "head_dim": 16, "batch": 2, **setup})
        for entry in (0, 1):
            opened.append(self.long[1][entry], self.long[2][entry], entry)
        return opened

    def test_the_order_of_leaves(self):
        outputs = []
        for order, setup in (("dealt", {}), ("contiguous", {"range_ends": [None]})):
            outputs.append(outcome(lambda: attention(*self.long, causal=True, order=order)))
            with self.opened(**setup) as opened:
                self.assertEqual(outcome(lambda: opened.step(self.long[0], causal=True)), outputs[-1])
        self.assertNotEqual(*outputs)
        self.assertEqual(outputs[1], outcome(lambda: attention(*self.long, causal=True)))
        self.assertEqual(outcome(lambda: attention(q, k, v, order="dear")), "ValueError: order is 'dear'; one of 'contiguous', 'dealt'")
        self.assertRegex(outcome(lambda: self.opened(range_ends=[100, 200])), "^ValueError: range_ends has 2 ends for 1 ranks$")

    def test_an_empty_part_is_the_identity_of_merge(self):
        o, lse = attention(q, k, v)
        none, lse_of_none = numpy.full_like(o, numpy.nan), numpy.full_like(lse, -numpy.inf)
        for of in (o, o.astype("float16")):
            self.assertEqual(outcome(lambda: tree_attn.merge(of, lse, none.astype(of.dtype), lse_of_none)), of.tobytes() + lse.tobytes())
            self.assertEqual(outcome(lambda: tree_attn.merge(none.astype(of.dtype), lse_of_none, of, lse)), of.tobytes() + lse.tobytes())
        self.assertEqual(tree_attn.merge(o, lse, none, lse_of_none, lse="base two")[0].tobytes(), o.tobytes())
        both, lse_of_both = tree_attn.merge(none, lse_of_none, none, lse_of_none)
        self.assertEqual((abs(both).max(), lse_of_both.max()), (0, -numpy.inf))
        half = lse.copy()
        half[:, ::2] = -numpy.inf  # of some rows
        out, _ = tree_attn.merge(o, lse, o[:, ::-1].copy(), half)
        self.assertEqual(out[:, ::2].tobytes(), o[:, ::2].tobytes())
        self.assertNotEqual(out[:, 1::2].tobytes(), o[:, 1::2].tobytes())

    def test_masks_and_soft_caps(self):
        mask = RNG.standard_normal((2, 1, 3, 300)) > 0
        added = numpy.where(mask, 0, -numpy.inf).astype("float32")
        s = numpy.einsum("bhld,bhnd->bhln", self.long[0].astype("float64"), numpy.repeat(self.long[1], 2, 1)) / 4
        weight = numpy.exp(2 * numpy.tanh(s / 2)) * mask
        expected = numpy.einsum("bhln,bhnd->bhld", weight / weight.sum(-1, keepdims=True), numpy.repeat(self.long[2], 2, 1))
        out, _ = attention(*self.long, mask=mask, softcap=2.0)
        self.assertLess(abs(out - expected).max(), 1e-6)
        self.assertLess(abs(tree_attn.attention(*self.long, mask=added, softcap=2.0)[0] - expected).max(), 1e-6)
        with self.opened() as opened:
            first = outcome(lambda: opened.step(self.long[0], mask=mask, softcap=2.0))
            self.assertEqual(first, outcome(lambda: attention(*self.long, mask=mask, softcap=2.0, order="dealt")))
            self.assertRegex(outcome(lambda: opened.step(self.long[0], mask=mask[..., :299])), "^ValueError: .*the mask is .2, 1, 3, 299. instead of .2 or 1, 4 or 1, 3, 300.$")
            self.assertRegex(outcome(lambda: opened.step(self.long[0], mask=mask.astype("float16"))), "^ValueError: mask is F16; booleans and F32 are taken$")
            self.assertRegex(outcome(lambda: opened.step(self.long[0], softcap=-1.0)), "^ValueError: .*a soft cap of -1")

    def test_a_step_that_was_begun_has_the_bits_of_a_step(self):
        with self.opened() as opened:
            opened.start(self.long[0], causal=True, window=90)
            self.assertRegex(outcome(lambda: opened.start(self.long[0])), "^(RuntimeError|ValueError): .*under way")
            while not opened.progress():
                pass
            self.assertEqual(outcome(opened.finish), outcome(lambda: opened.step(self.long[0], causal=True, window=90)))
            self.assertEqual(outcome(opened.finish), "ValueError: no step was begun: call start()")
            opened.start(self.long[0])
            with unittest.mock.patch.object(tree_attn, "_call", side_effect=ValueError("of C")):
                self.assertEqual(outcome(opened.finish), "ValueError: of C")
            self.assertEqual(outcome(opened.finish), outcome(lambda: opened.step(self.long[0])))

    def test_a_sequence_begins_as_another_one(self):
        with Attention(heads=4, kv_heads=2, head_dim=16, batch=2, n_pages=9) as opened:
            opened.append(self.long[1][0], self.long[2][0])
            opened.share(0, 1, 300)
            self.assertEqual(opened.length(1), 300)
            out, _ = opened.step(numpy.repeat(self.long[0][:1], 2, 0))
            self.assertEqual(out[0].tobytes(), out[1].tobytes())
            self.assertRegex(outcome(lambda: opened.share(0, 1, 5)), "^IndexError: .*has 300 positions, not none$")
        with self.opened() as opened:
            self.assertRegex(outcome(lambda: opened.share(0, 1, 5)), "Error: ")

    def test_keys_that_move_change_no_bit(self):
        for setup, moves in (({}, [{}, {"ranks": 1}]), ({"range_ends": [None]}, [{"range_ends": [320]}])):
            with self.opened(**setup) as opened:
                first = outcome(lambda: opened.step(self.long[0]))
                for move in moves:
                    opened.reshard(**move)
                    self.assertEqual(outcome(lambda: opened.step(self.long[0])), first)
                self.assertRegex(outcome(lambda: opened.reshard(ranks=2)), "^ValueError: ranks is 2; at most 1 is possible$")
                if setup:
                    self.assertRegex(outcome(lambda: opened.reshard([100])), "^IndexError: .*a sequence has 300 positions, but the ranges of all ranks end at 100$")
                    self.assertRegex(outcome(opened.reshard), "^ValueError: the leaves are those of ranges, and range_ends is null$")
                self.assertEqual(outcome(lambda: opened.step(self.long[0])), first)

    def test_append_takes_3_axes_and_4(self):
        with self.opened() as opened, Attention(heads=4, kv_heads=2, head_dim=16, batch=2) as other:
            for entry in (0, 1):
                other.append(self.long[1][entry:entry + 1], self.long[2][entry:entry + 1], entry)
            self.assertEqual(outcome(lambda: other.step(self.long[0])), outcome(lambda: opened.step(self.long[0])))
            self.assertEqual(outcome(lambda: other.append(self.long[1], self.long[2])), "ValueError: k has 2 batch entries; one is appended to")
            self.assertEqual(outcome(lambda: other.append(self.long[1][0, 0], self.long[2][0, 0])), "ValueError: k has 2 axes; expected 3 or 4")

    def test_outputs_of_the_caller(self):
        for convert in (lambda x: x, *((torch.from_numpy,) if torch else ())):
            arrays = [convert(x.copy()) for x in (numpy.zeros((2, 4, 3, 16), "float32"), numpy.zeros((2, 4, 3), "float32"))]
            with self.opened() as opened:
                z, lse = opened.step(convert(self.long[0]), out=arrays)
                self.assertTrue(z is arrays[0] and lse is arrays[1])
                self.assertEqual(outcome(lambda: (z, lse)), outcome(lambda: opened.step(self.long[0])))
                self.assertIsNone(opened.step(convert(self.long[0]), out=(arrays[0], None))[1])
                self.assertRegex(outcome(lambda: opened.step(convert(self.long[0]), out=(arrays[1], None))), "^ValueError: out has 3 axes; expected 4$")
                for wrong in ((*arrays, None), (arrays[0],), 5, (None, arrays[1]), (arrays[0], arrays[0][..., 0]), (arrays[0][..., :8], None)):
                    self.assertRegex(outcome(lambda: opened.step(convert(self.long[0]), out=wrong)), "^(Value|Type)Error: ")
        frozen = numpy.zeros((2, 4, 3, 16), "float32")
        frozen.flags.writeable = False
        with self.opened() as opened:
            self.assertEqual(outcome(lambda: opened.step(self.long[0], out=(frozen, None))), "ValueError: an array of numpy in out is read only")
        self.assertFalse(frozen.any())

    def test_an_object_is_not_copied_but_for_a_process_that_is_forked(self):
        with self.opened(threads=2) as opened:
            for copied in (copy.copy, copy.deepcopy, pickle.dumps):
                self.assertRegex(outcome(lambda: copied(opened)), "^TypeError: an Attention has memory and messages of its own")
            expected = outcome(lambda: opened.step(self.long[0]))
            child = os.fork()
            if child == 0:  # without the threads of the pool
                line = outcome(lambda: opened.step(self.long[0]))
                opened.close()
                os._exit(0 if line == expected else 1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertEqual(outcome(lambda: opened.step(self.long[0])), expected)

    def test_a_class_of_numpy_names_a_type(self):
        for of in (numpy.float16, numpy.dtype("float16"), "float16"):
            with Attention(heads=1, head_dim=4, dtype=of) as opened:
                opened.append(numpy.ones((1, 3, 4), "float16"), numpy.ones((1, 3, 4), "float16"))
        self.assertRegex(outcome(lambda: Attention(heads=1, head_dim=4, dtype=int)), "^ValueError: dtype is 'int'; one of ")

    @unittest.skipIf(torch is None, "PyTorch is not installed")
    def test_tensors_of_pytorch_are_read_where_they_lie(self):
        q_, k_, v_ = map(torch.from_numpy, self.long)
        swapped = q_.transpose(1, 2).contiguous().transpose(1, 2)
        with Attention(heads=4, kv_heads=2, head_dim=16, batch=2) as opened, self.opened() as expected:
            for entry in (0, 1):
                opened.append(k_[entry, :, :200], v_[entry, :, :200], entry)
                opened.append(k_[entry:entry + 1, :, 200:], v_[entry:entry + 1, :, 200:], entry)
            for x in (q_, swapped, q_.double(), q_[:, :, :1], q_, q_.transpose(0, 1).contiguous().transpose(0, 1)):
                out, _ = opened.step(x, causal=True, window=70)
                self.assertEqual(out.dtype, x.dtype)
                self.assertEqual(out.float().numpy().tobytes(), expected.step(x.float().contiguous().numpy(), causal=True, window=70)[0].tobytes())
            for x, error in ((q_[0], "q has 3 axes; expected 4"), (q_.clone().requires_grad_(), "an array requires a gradient"), (q_.int(), "q has elements of code 0"),
                             (q_[..., ::2], "q has stride 2 along its last axis")):
                with self.assertRaisesRegex(ValueError, error):
                    opened.step(x)
            for call in (lambda: opened.append(k_[0], v_[0], 2 ** 64), lambda: opened.append(k_[0], v_[0], -1)):
                self.assertRegex(outcome(call), "^IndexError: ")
            for window in (2 ** 64 + 1, 0, -1):
                self.assertRegex(outcome(lambda: opened.step(q_, window=window)), "^ValueError: window is ")
            self.assertEqual((opened.length(0), opened.length(1)), (300, 300))


class Zero(unittest.TestCase):
    def test_a_scale_of_0_is_a_scale(self):
        mean = numpy.repeat(v.astype("float64").mean(2, keepdims=True), 2, 1).repeat(3, 2)
        with layer(scale=0) as opened:
            for out, lse in (attention(q, k, v, scale=0), attention(q, k, v, scale=0.0), opened.step(q)):
                self.assertLess(abs(out - mean).max(), 1e-6)
                self.assertLess(abs(lse - math.log(100)).max(), 1e-6)
        self.assertLess(abs(tree_attn.energy_gradient(*wide, scale=0) - mean).max(), 1e-14)
        self.assertLess(abs(tree_attn.energy(*wide, 0 * zeta, scale=0) - math.log(100)).max(), 1e-14)
        self.assertLess(tree_attn.error_bound(q, k, v, scale=0).max(), tree_attn.error_bound(q, k, v).max())
        for scale in (math.nan, math.inf):
            for call in (lambda: attention(q, k, v, scale=scale), lambda: tree_attn.energy(*wide, zeta, scale=scale), lambda: layer(scale=scale)):
                self.assertRegex(outcome(call), "^ValueError: scale is -?(nan|inf); a finite number is needed$")

    def test_0_is_refused_where_it_means_nothing(self):
        for keywords in ({"kv_heads": 0}, {"threads": 0}, {"ranks_per_node": 0}, {"timeout": 0}, {"timeout": -1}, {"timeout": math.nan}, {"n_pages": 0},
                         {"n_pages": 4, "page_window": 0}, {"page_window": 5}, {"page_sinks": 3}, {"n_pages": 4, "page_sinks": 3}, {"algorithm": ""}, {"backend": ""},
                         {"capacity": -1}, {"capacity": 64, "n_pages": 4}):
            self.assertRegex(outcome(lambda: Attention(heads=4, head_dim=16, **keywords)), "^ValueError: ", keywords)
        for keywords in ({"window": 0}, {"window": -1}, {"sinks": -1, "window": 5}, {"sinks": 3}):
            with layer() as opened:
                for call in (attention, tree_attn.error_bound, tree_attn.energy_gradient, lambda *a, **kw: opened.step(a[0], **kw)):
                    self.assertRegex(outcome(lambda: call(q, k, v, **keywords)), "^ValueError: (window|sinks|seen) ", keywords)
        for keywords in ({"n_additions": 0}, {"n_additions": -1}, {"n_additions": math.nan}, {"n_rescalings": -1}, {"output_roundoff": math.nan}):
            self.assertRegex(outcome(lambda: tree_attn.error_bound(q, k, v, **keywords)), "^ValueError: ", keywords)
        self.assertEqual(attention(q, k, v, sinks=0)[0].tobytes(), attention(q, k, v)[0].tobytes())
        with Attention(heads=4, head_dim=16, value_dim=0, timeout=math.inf) as opened:
            opened.append(numpy.repeat(k[0], 2, 0), numpy.empty((4, 100, 0), "float32"))
            self.assertEqual([x.shape for x in opened.step(q[:1, :, :1])], [(1, 4, 1, 0), (1, 4, 1)])

    def test_integers_are_those_that_were_given(self):
        with layer() as opened:
            for call in (lambda: opened.truncate(2 ** 64), lambda: opened.append(k[0], v[0], entry=2 ** 64), lambda: opened.length(2 ** 64), lambda: opened.holds(-2 ** 63 - 1)):
                self.assertRegex(outcome(call), "^IndexError: (n|entry|position) is -?[0-9]+; at (most|least) -?[0-9]+ is (possible|needed)$")
            for call in (lambda: opened.step(q, window=2 ** 64 + 1), lambda: attention(q, k, v, window=2 ** 64 + 1), lambda: attention(q, k, v, window=9, sinks=2 ** 64),
                         lambda: opened.append(None, n=2 ** 64), lambda: Attention(heads=2 ** 64 + 4, head_dim=16), lambda: Attention(heads=4, head_dim=16, threads=2 ** 31)):
                self.assertRegex(outcome(call), "^ValueError: [a-z_]+ is [0-9]+; at most [0-9]+ is possible$")
            for call in (lambda: opened.truncate(1.5), lambda: attention(q, k, v, window=20.0), lambda: attention(q, k, v, sinks=[1, 2])):
                self.assertRegex(outcome(call), "^TypeError: ")
            self.assertEqual((opened.length(0), opened.length(1)), (100, 100))
            self.assertEqual(opened.step(q, window=numpy.int64(9), sinks=numpy.int32(2))[0].tobytes(), opened.step(q, window=9, sinks=2)[0].tobytes())
        for keywords in ({"head_dim": 2 ** 61}, {"head_dim": 2 ** 40, "value_dim": 2 ** 40}):
            self.assertRegex(outcome(lambda: Attention(heads=4, **{"head_dim": 16, **keywords})), "^MemoryError: memory ran out$")


class Arrays(unittest.TestCase):
    def test_arrays_without_elements(self):
        for a in ((q, k[:, :, :0], v[:, :, :0]), (q[:0], k[:0], v[:0]), (q[:, :, :0], k, v), (q, k, v[..., :0]), (q[:, :0], k[:, :0], v[:, :0])):
            for arrays in (a, [x.copy() for x in a]):
                out, lse = attention(*arrays)
                self.assertEqual((out.shape, lse.shape), ((*a[0].shape[:3], a[2].shape[3]), a[0].shape[:3]))
                self.assertTrue((out == 0).all() and (lse == -numpy.inf if a[1].shape[2] == 0 else numpy.isfinite(lse)).all())
        self.assertEqual(tree_attn.merge(*(numpy.empty(shape, "float32") for shape in ((0, 4, 1, 8), (0, 4, 1)) * 2))[0].shape, (0, 4, 1, 8))
        mean, covariance = tree_attn.moments(q[0, 0, 0], k[0, 0, :0], v[0, 0, :0])
        self.assertTrue((mean == 0).all() and (covariance == 0).all())
        with layer() as opened:
            opened.append(k[0, :, :0], v[0, :, :0])
            opened.append(numpy.empty((2, 0, 16), "float32"), numpy.empty((2, 0, 8), "float32"))
            self.assertEqual(opened.length(), 100)
        with Attention(heads=4, kv_heads=2, head_dim=16) as opened:
            opened.append(k[0], k[0])
            self.assertEqual(opened.step(q[:1, :, :0])[0].shape, (1, 4, 0, 16))

    def test_any_class_with_dlpack(self):
        class Foreign:
            def __init__(self, array):
                self.array, self.shape = array, array.shape

            def __dlpack__(self, **_):
                return self.array.__dlpack__()

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

        class Subclass(numpy.ndarray):
            pass

        expected = attention(q, k, v)
        for kind in (Foreign, lambda x: x.view(Subclass)):
            for arrays in ((kind(q), k, v), (q, kind(k), kind(v)), (kind(q), kind(k), kind(v))):
                for mine, other in zip(attention(*arrays), expected):
                    self.assertIsInstance(mine, numpy.ndarray)
                    self.assertEqual(mine.tobytes(), other.tobytes())
            with layer() as opened:
                self.assertEqual(opened.step(kind(q))[0].tobytes(), layer().step(q)[0].tobytes())
            self.assertEqual(tree_attn.energy(kind(wide[0]), *wide[1:], zeta).tobytes(), tree_attn.energy(*wide, zeta).tobytes())
        o, lse = expected
        with layer() as opened:
            for call in (lambda: attention(q, 8, v), lambda: tree_attn.merge(o, 8, o, lse), lambda: opened.combine(o, 8), lambda: opened.append(k[0], 8)):
                self.assertEqual(outcome(call), "TypeError: an argument is of type int; an array with __dlpack__ is needed")
        for wrong in ([[1.0]], None, 3):
            self.assertRegex(outcome(lambda: attention(wrong, k, v)), "^TypeError: q is of type [A-Za-z]+; an array with __dlpack__ is needed$")

    def test_what_an_array_says_is_not_lost(self):
        masked = numpy.ma.MaskedArray(k, mask=k > 1)
        with layer() as opened:
            for call in (lambda: attention(q, masked, v), lambda: opened.append(masked[0], v[0]), lambda: attention(numpy.ma.MaskedArray(q), k, v),
                         lambda: attention(q, k, v, sinks=numpy.ma.MaskedArray(logits)), lambda: layer(dtype="float8_e4m3fn", k_scale=numpy.ma.MaskedArray([1.0, 2.0]))):
                self.assertRegex(outcome(call), "^TypeError: an array of numpy.ma has a mask")
            self.assertEqual(opened.length(), 100)

        class NeedsGradient:
            requires_grad, shape, dtype, __dlpack__, __dlpack_device__ = True, q.shape, q.dtype, q.__dlpack__, q.__dlpack_device__
        self.assertRegex(outcome(lambda: attention(NeedsGradient(), k, v)), "^ValueError: an array requires a gradient")

    def test_read_only_arrays_are_not_copied(self):
        first = numpy.ones((1, 1, 1, 16), "float32")
        many = numpy.broadcast_to(first, (1, 1, 2 ** 40, 16))  # 64 TiB
        out, lse = attention(first, many, many, window=7)
        self.assertLess(abs(out - 1).max(), 1e-6)
        self.assertLess(abs(lse - 4 - math.log(7)).max(), 1e-6)
        frozen = k.copy()
        frozen.flags.writeable = False
        self.assertEqual(attention(q, frozen[:, :, 5:], v[:, :, 5:])[0].tobytes(), attention(q, k[:, :, 5:], v[:, :, 5:])[0].tobytes())
        self.assertFalse(frozen.flags.writeable)


class Modes(unittest.TestCase):
    def test_rounding_modes_of_the_program_change_no_bit(self):
        library = ctypes.CDLL(None)
        tiny = (RNG.integers(-5, 6, v.shape) * 1e-41).astype("float32")
        with layer(threads=2) as opened:
            expected = attention(q, k, tiny)[0].tobytes() + opened.step(q)[0].tobytes()
            for mode in (0x400, 0x800, 0xC00) if os.uname().machine == "x86_64" else (0x400000, 0x800000, 0xC00000):
                self.assertEqual(library.fesetround(mode), 0)
                try:
                    out = attention(q, k, tiny)[0].tobytes() + opened.step(q)[0].tobytes()
                    self.assertEqual(library.fegetround(), mode)
                finally:
                    library.fesetround(0)
                self.assertEqual(out, expected)


class Ranks(unittest.TestCase):
    """Over the ranks that mpirun has started."""

    def setUp(self):
        self.comm = MPI.COMM_WORLD if MPI is not None else None
        if self.comm is None or self.comm.size == 1:
            self.skipTest("one rank")

    def test_ranks_per_node_is_that_of_all_ranks(self):
        with self.assertRaisesRegex(ValueError, "ranks 0 and [0-9] differ in "):
            Attention(self.comm, heads=4, head_dim=16, ranks_per_node=1 if self.comm.rank == 0 else self.comm.size)

    def test_by_heads_is_a_part_of_the_heads(self):
        with Attention(self.comm, heads=self.comm.size, head_dim=16) as opened:
            o, lse = q[:1, :1].repeat(self.comm.size, 1), q[:1, :1, :, 0].repeat(self.comm.size, 1)
            self.assertEqual(opened.combine(o, lse)[0].shape[1], self.comm.size)
            self.assertEqual(opened.combine(o, lse, by_heads=True)[0].shape[1], 1)

    def test_what_one_rank_refuses_all_refuse_at_once_and_the_next_call_is_right(self):
        """Arguments that Python refuses before they are in C; not where a call of append() waits for no rank."""
        mine, masked = self.comm.rank == 1, numpy.ma.MaskedArray

        def refused(name, call, alone=False):
            self.comm.Barrier()
            start = time.monotonic()
            line = outcome(call)
            self.assertLess(time.monotonic() - start, 1, name)
            if alone:
                self.assertEqual(str(line).startswith(("ValueError: ", "TypeError: ", "IndexError: ")), mine, (name, line))
            else:
                self.assertRegex(line, "^ValueError: rank 1: ", name)
                self.assertEqual(len(set(self.comm.allgather(line))), 1, name)

        class Torn:
            shape, dtype = q[:1].shape, q.dtype

            def __dlpack_device__(self):
                return 1, 0

            def __dlpack__(self, **_):
                raise BufferError("torn\nin two")

        good = {"heads": 4, "head_dim": 16}
        for name, value in (("dtype", "float31"), ("heads", 2 ** 64), ("heads", "4"), ("head_dim", 16.5), ("batch", None), ("threads", 0), ("timeout", 0), ("timeout", "1"),
                            ("window", 0), ("algorithm", 7), ("backend", []), ("k_scale", masked([1.0])), ("k_scale", [1.0, 2.0, 3.0]), ("scale", "x"), ("capacity", -1)):
            refused(name, lambda: Attention(self.comm, **{**good, **({"page_window" if name == "window" else name: value} if mine else {})}))
        twice = numpy.repeat(k[0], 2, 0)
        for n_pages in (None, 4):
            with Attention(self.comm, n_pages=n_pages, **good) as opened:
                for name, array, keywords in (("two axes", twice[0], {}), ("a list", [1.0], {}), ("a mask", masked(twice), {}), ("another n", twice, {"n": 3}),
                                              ("an entry of 2^64", twice, {"entry": 2 ** 64}), ("no n", None, {}), ("a number", twice, {"v": 5})):
                    refused(f"append {name}, {n_pages} pages", lambda: opened.append(*((array,) if mine else (twice,)), **{"v": twice, **(keywords if mine else {})}),
                            alone=n_pages is None)
                    opened.truncate(0)
                self.assertEqual(opened.length(), 0)
                opened.append(twice, twice)
                for name, array, keywords in (("a list", [1.0], {}), ("three axes", q[0], {}), ("a mask", masked(q[:1]), {}), ("torn", Torn(), {}), ("a window of 0", q[:1], {"window": 0}),
                                              ("a window of 2^64", q[:1], {"window": 2 ** 64}), ("sinks with a mask", q[:1], {"sinks": masked(logits)}), ("sinks", q[:1], {"sinks": "3"})):
                    refused(f"step {name}", lambda: opened.step(array if mine else q[:1], **(keywords if mine else {})))
                expected = attention(q[:1], twice[None], twice[None])
                for name, o, lse, keywords in (("three axes", q[0], expected[1], {}), ("a mask", masked(expected[0]), expected[1], {}), ("a number", expected[0], 5, {}),
                                               ("a form", expected[0], expected[1], {"form": "base ten"}), ("by heads of many", expected[0], expected[1], {"by_heads": q})):
                    refused(f"combine {name}", lambda: opened.combine(*((o, lse) if mine else expected), **(keywords if mine else {})))
                self.assertEqual([x.tobytes() for x in opened.step(q[:1])], [x.tobytes() for x in expected])
                if torch is not None:
                    of_torch = torch.from_numpy(q[:1])
                    for name, keywords in (("three outputs", {"out": (1, 2, 3)}), ("an output", {"out": 5}), ("causal", {"causal": q}), ("window", {"window": 2 ** 64 + 1})):
                        refused(f"step {name} of PyTorch", lambda: opened.step(of_torch, **(keywords if mine else {})))
                    self.assertEqual(opened.step(of_torch)[0].numpy().tobytes(), expected[0].tobytes())

    def test_an_error_of_the_program_leaves_at_once_and_a_wait_ends_after_the_time_limit(self):
        self.comm.Barrier()
        start = math.nan
        try:
            with Attention(self.comm, heads=4, head_dim=16, timeout=2) as opened:
                start = time.monotonic()
                if self.comm.rank == 1:
                    raise LookupError("of the program")
                opened.append(numpy.repeat(k[0], 2, 0), numpy.repeat(k[0], 2, 0))
                opened.step(q[:1, :, :1])
        except LookupError:
            self.assertLess(time.monotonic() - start, 1.5)
        except tree_attn.TransportError:
            self.assertNotEqual(self.comm.rank, 1)
            self.assertLess(time.monotonic() - start, 6)
        else:
            self.fail("no error")
        self.comm.Barrier()
        with Attention(self.comm, heads=4, head_dim=16) as opened:
            opened.append(numpy.repeat(k[0], 2, 0), numpy.repeat(k[0], 2, 0))
            self.assertEqual(opened.step(q[:1, :, :1])[0].shape, (1, 4, 1, 16))


if __name__ == "__main__":
    unittest.main()
