#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package: results, kinds of arrays, errors, and attention over ranks.

Run: ./run python    or, over ranks: mpirun -n 4 python3 tests/python/test_tree_attn.py
"""
import ctypes
import unittest

import numpy

import tree_attn
from optional import package

torch, jax, MPI = map(package, ("torch", "jax", "mpi4py.MPI"))

RNG = numpy.random.default_rng(47)


def draw(*shape, dtype="float32"):
    return RNG.standard_normal(shape).astype(dtype)


def plain(q, k, v, scale=None):
    """The formula, in double."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.astype("float64") for x in (q, numpy.repeat(k, group, 1), numpy.repeat(v, group, 1)))
    s = numpy.einsum("bhld,bhnd->bhln", q, k) * (scale or q.shape[-1] ** -0.5)
    top = s.max(-1, keepdims=True)
    weight = numpy.exp(s - top)
    return numpy.einsum("bhln,bhnd->bhld", weight, v) / weight.sum(-1)[..., None], numpy.log(weight.sum(-1)) + top[..., 0]


class Functions(unittest.TestCase):
    q, k, v = draw(2, 8, 3, 32), draw(2, 2, 100, 32), draw(2, 2, 100, 16)

    def test_attention_is_the_formula(self):
        for dtype, error in (("float32", 1e-6), ("float16", 2e-3), ("float64", 1e-6)):
            q, k, v = (x.astype(dtype) for x in (self.q, self.k, self.v))
            out, lse = tree_attn.attention(q, k, v)
            z, exact = plain(q, k, v)
            self.assertEqual((out.dtype, lse.dtype), (numpy.dtype(dtype), numpy.float32))
            self.assertLess(abs(out - z).max(), error)
            self.assertLess(abs(lse - exact).max(), 1e-5)
        self.assertLess(abs(tree_attn.attention(self.q, self.k, self.v, scale=0.7)[0] - plain(self.q, self.k, self.v, 0.7)[0]).max(), 1e-5)

    def test_what_a_query_sees(self):
        logits = draw(8)
        for causal, window, first in ((True, None, None), (True, 20, None), (True, 20, 4), (False, 30, 7), (True, 20, logits)):
            learned = first if first is logits else None
            out, lse = tree_attn.attention(self.q, self.k, self.v, causal=causal, window=window, sinks=first)
            position, n, group = numpy.arange(100), 100, 4
            k, v = (numpy.repeat(x.astype("float64"), group, 1) for x in (self.k, self.v))
            s = numpy.einsum("bhld,bhnd->bhln", self.q.astype("float64"), k) * 32 ** -0.5
            for j in range(3):
                end = n - 2 + j if causal else n
                unseen = (position >= end) | (position < end - (window or n)) & (position >= (first if learned is None and first else 0))
                s[:, :, j, unseen] = -numpy.inf
            weight = numpy.exp(s)
            total = weight.sum(-1) + (0 if learned is None else numpy.exp(logits.astype("float64"))[None, :, None])
            self.assertLess(abs(out - numpy.einsum("bhln,bhnd->bhld", weight, v) / total[..., None]).max(), 1e-6)
            self.assertLess(abs(lse - numpy.log(total)).max(), 1e-5)
        with self.assertRaisesRegex(ValueError, "sink has 3 elements, but there are 8 heads"):
            tree_attn.attention(self.q, self.k, self.v, sinks=draw(3))

    def test_errors_are_below_the_bound(self):
        out, _ = tree_attn.attention(self.q, self.k, self.v)
        error = abs(out - plain(self.q, self.k, self.v)[0])
        bound = tree_attn.error_bound(self.q, self.k, self.v)
        self.assertTrue((error <= bound).all() and error.max() > 0)
        self.assertTrue((tree_attn.error_bound(self.q, self.k, self.v, n_additions=100, output_roundoff=2 ** -8) > bound).all())

    def test_views_are_read_in_place(self):
        swapped = numpy.ascontiguousarray(self.k.swapaxes(1, 2)).swapaxes(1, 2)
        self.assertFalse(swapped.flags.c_contiguous)
        a, b = tree_attn.attention(self.q, swapped, self.v), tree_attn.attention(self.q, self.k, self.v)
        self.assertEqual(a[0].tobytes(), b[0].tobytes())
        with self.assertRaisesRegex(ValueError, "stride 2 along its last axis; 1 is needed"):
            tree_attn.attention(self.q[..., ::2], self.k[..., :16], self.v)
        read_only = self.q.copy()
        read_only.flags.writeable = False
        self.assertEqual(tree_attn.attention(read_only, self.k, self.v)[0].tobytes(), b[0].tobytes())

    def test_merge_of_parts_is_attention_over_all(self):
        parts = [tree_attn.attention(self.q, self.k[:, :, a:b], self.v[:, :, a:b]) for a, b in ((0, 30), (30, 100))]
        out, lse = tree_attn.attention(self.q, self.k, self.v)
        for form, factor in (("natural", 1), ("base two", numpy.log2(numpy.e)), ("natural, inf is empty", 1)):
            merged, both = tree_attn.merge(parts[0][0], (parts[0][1] * factor).astype("float32"), parts[1][0], (parts[1][1] * factor).astype("float32"), lse=form)
            self.assertLess(abs(merged - out).max(), 1e-6)
            self.assertLess(abs(both - lse).max(), 1e-5)
        empty = numpy.full_like(lse, numpy.inf)
        self.assertTrue(numpy.isnan(tree_attn.merge(out, lse, out, empty)[0]).all())
        self.assertLess(abs(tree_attn.merge(out, lse, out * 0, empty, lse="natural, inf is empty")[0] - out).max(), 1e-6)
        with self.assertRaisesRegex(ValueError, "lse is 'decimal'; one of 'natural'"):
            tree_attn.merge(out, lse, out, lse, lse="decimal")

    def test_the_gradient_of_the_energy_is_attention(self):
        q, k, v = draw(1, 2, 1, 8, dtype="float64"), draw(1, 1, 20, 8, dtype="float64"), draw(1, 1, 20, 3, dtype="float64")
        zeta = 0.3 * draw(1, 2, 1, 3, dtype="float64")
        self.assertLess(abs(tree_attn.energy_gradient(q, k, v) - plain(q, k, v, 1)[0]).max(), 1e-14)
        gradient, step = tree_attn.energy_gradient(q, k, v, zeta), 1e-6
        for j in range(3):
            ahead, back = zeta.copy(), zeta.copy()
            ahead[..., j] += step
            back[..., j] -= step
            slope = (tree_attn.energy(q, k, v, ahead) - tree_attn.energy(q, k, v, back)) / (2 * step)
            self.assertLess(abs(slope - gradient[..., j]).max(), 1e-8)
        mean, covariance = tree_attn.moments(q[0, 0, 0], k[0, 0], v[0, 0], zeta[0, 0, 0])
        self.assertLess(abs(mean - gradient[0, 0, 0]).max(), 1e-14)
        self.assertTrue((numpy.linalg.eigvalsh(covariance) > -1e-15).all())

    def test_errors_are_exceptions_with_the_line(self):
        with self.assertRaisesRegex(ValueError, "head_dim of q"):
            tree_attn.attention(self.q[..., :16].copy(), self.k, self.v)
        with self.assertRaisesRegex(ValueError, "q has 3 axes; expected 4"):
            tree_attn.attention(self.q[0], self.k, self.v)
        with self.assertRaisesRegex(ValueError, "k has elements of code 0"):
            tree_attn.attention(self.q, self.k.astype("int32"), self.v)


class OnAGpu(unittest.TestCase):
    """An array that says it is on a GPU, as CuPy's or PyTorch's are: no element of it can be read here."""

    class Array:
        def __init__(self, like):
            self.like, self.shape, self.dtype, self.asked = like, like.shape, like.dtype, []

        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, stream=None):
            self.asked.append(stream)
            capsule = self.like.__dlpack__()
            ctypes.c_int32.from_address(tree_attn._pointer(capsule, b"dltensor") + 8).value = 2
            return capsule

    def test_arrays_of_a_gpu_are_for_the_backend_cuda_alone(self):
        q, k = self.Array(draw(1, 2, 1, 8)), draw(1, 2, 5, 8)
        line = "an array of .* is on device type 2, index 0; arrays in memory of the host are taken"
        with self.assertRaisesRegex(ValueError, line):
            tree_attn.attention(q, k, k)
        with tree_attn.Attention(heads=2, head_dim=8) as layer:
            keys = self.Array(k[0])
            with self.assertRaisesRegex(ValueError, line):
                layer.append(keys, keys)
            self.assertEqual((q.asked, keys.asked, layer.length()), ([], [], 0))
            # What the package would pass on to "cuda", the library refuses for another backend.
            layer._device = 2
            with self.assertRaisesRegex(ValueError, "^k is on device type 2, index 0; tensors in memory of the host are taken$"):
                layer.append(keys, k[0])
            self.assertEqual((keys.asked, layer.length()), ([1], 0))


class Layer(unittest.TestCase):
    """Alone, or over the ranks that mpirun has started: then each process runs these tests together with the others."""

    def setUp(self):
        self.comm = MPI.COMM_WORLD if MPI is not None and MPI.COMM_WORLD.size > 1 else None
        self.size = self.comm.size if self.comm else 1
        random = numpy.random.default_rng(5)
        self.q, self.k, self.v = (random.standard_normal(shape).astype("float32") for shape in ((1, 8, 1, 32), (2, 700, 32), (2, 700, 16)))

    def test_appended_keys_have_the_bits_of_one_rank(self):
        with tree_attn.Attention(heads=8, kv_heads=2, head_dim=32, value_dim=16) as alone:
            alone.append(self.k, self.v)
            expected = alone.step(self.q)
        self.assertLess(abs(expected[0] - plain(self.q, self.k[None], self.v[None])[0]).max(), 1e-6)
        with tree_attn.Attention(self.comm, heads=8, kv_heads=2, head_dim=32, value_dim=16) as layer:
            for at in range(700):
                if layer.holds(at):
                    layer.append(self.k[:, at:at + 1], self.v[:, at:at + 1])
                else:
                    layer.append(None, None, n=1)
            self.assertEqual(layer.length(), 700)
            self.assertEqual(layer.step(self.q, causal=True, window=1000)[0].tobytes(), layer.step(self.q)[0].tobytes())
            self.assertNotEqual(layer.step(self.q, window=300, sinks=5)[0].tobytes(), layer.step(self.q)[0].tobytes())
            out, lse = layer.step(self.q)
            self.assertEqual((out.tobytes(), lse.tobytes()), (expected[0].tobytes(), expected[1].tobytes()))
            held = sum(layer.holds(at) for at in range(700))
            self.assertTrue(self.size == 1 or 0 < held < 700)
            layer.truncate(699)
            self.assertNotEqual(layer.step(self.q)[0].tobytes(), out.tobytes())
            layer.release()
            self.assertEqual(layer.length(), 0)
            with self.assertRaisesRegex(IndexError, "batch entry 1"):
                layer.length(1)

    def test_a_step_has_any_number_of_queries_with_the_bits_of_a_layer_of_its_own(self):
        shape = {"heads": 8, "kv_heads": 2, "head_dim": 32, "value_dim": 16}
        q = numpy.random.default_rng(6).standard_normal((1, 8, 64, 32)).astype("float32")
        for most_queries in (0, 64):
            with tree_attn.Attention(self.comm, most_queries=most_queries, **shape) as layer:
                for kept, end, n in ((0, 64, 64), (64, 128, 64), (128, 129, 1), (129, 134, 5), (131, 132, 1)):
                    layer.truncate(kept)
                    layer.append(self.k[:, kept:end], self.v[:, kept:end])
                    out, lse = layer.step(q[:, :, :n], causal=True)
                    with tree_attn.Attention(**shape) as alone:
                        alone.append(self.k[:, :end], self.v[:, :end])
                        expected = alone.step(q[:, :, :n], causal=True)
                    self.assertEqual(out.shape, (1, 8, n, 16))
                    self.assertEqual((out.tobytes(), lse.tobytes()), (expected[0].tobytes(), expected[1].tobytes()))

    def test_queries_in_and_outputs_out_by_heads_have_the_bits_of_a_step(self):
        n, rank = 4, self.comm.rank if self.comm else 0
        shape = {"heads": n * self.size, "kv_heads": 2, "head_dim": 32, "value_dim": 16}
        q = numpy.random.default_rng(7).standard_normal((1, n * self.size, 3, 32)).astype("float32")
        mine = slice(rank * n, rank * n + n)
        convert = torch.from_numpy if torch else numpy.asarray
        with tree_attn.Attention(self.comm, **shape) as layer:
            layer.append(self.k, self.v)
            for rule in ({}, {"causal": True, "window": 300, "sinks": numpy.linspace(-1, 1, n * self.size, dtype="float32")}):
                whole, lse = layer.step(q, **rule)
                of_heads = layer.step(convert(q[:, mine].copy()), by_heads=True, **rule)
                self.assertEqual(tuple(of_heads[0].shape), (1, n, 3, 16))
                self.assertEqual([numpy.asarray(x).tobytes() for x in of_heads], [whole[:, mine].tobytes(), lse[:, mine].tobytes()])
            out = numpy.empty((1, n, 3, 16), "float32"), None
            self.assertIs(layer.step(q[:, mine].copy(), out=out, by_heads=True)[0], out[0])
            self.assertEqual(out[0].tobytes(), layer.step(q)[0][:, mine].tobytes())
            with self.assertRaisesRegex(ValueError, r"q is \[1, 1, 3, 32\]; expected \[1, 4, l, 32\], the heads of one of \d ranks"):
                layer.step(q[:, :1].copy(), by_heads=True)

    def test_rows_of_eight_bits_have_the_bits_of_their_elements_on_one_rank(self):
        # Powers of two lose nothing: the elements that are stored are those of a cache of float32.
        k_scale, v_scale = numpy.array([[2.0 ** -5, 2.0 ** -7], [2.0 ** -6, 2.0 ** -4]]), 2.0 ** -6

        def rounded(x, scale):  # to three bits after the first one; what is smaller than 2^-6 has fewer
            wide = x / scale
            ulp = 2.0 ** (numpy.maximum(numpy.floor(numpy.log2(numpy.maximum(abs(wide), 1e-30))), -6) - 3)
            return (numpy.clip(numpy.round(wide / ulp) * ulp, -448, 448) * scale).astype("float32")

        shape = {"heads": 8, "kv_heads": 2, "head_dim": 32, "value_dim": 16}
        q = numpy.concatenate([self.q, self.q])
        with tree_attn.Attention(dtype="bfloat16" if torch else "float32", batch=2, **shape) as wide:
            for entry in (0, 1):
                rows = rounded(self.k, k_scale[entry, :, None, None]), rounded(self.v, v_scale)
                wide.append(*(torch.from_numpy(x).bfloat16() for x in rows) if torch else rows, entry=entry)
            expected = wide.step(q)
        with tree_attn.Attention(self.comm, dtype="float8_e4m3fn", k_scale=k_scale, v_scale=v_scale, batch=2, **shape) as layer:
            for begin in range(0, 700, 50):
                for entry in (0, 1):
                    layer.append(self.k[:, begin:begin + 50], self.v[:, begin:begin + 50], entry)
            out, lse = layer.step(q)
        if torch:
            self.assertEqual((out.tobytes(), lse.tobytes()), (expected[0].tobytes(), expected[1].tobytes()))
        self.assertLess(max(abs(out - expected[0]).max(), abs(lse - expected[1]).max()), 1e-5)
        for wrong in (0, -1, float("nan"), 2.0 ** -101, 2.0 ** 101, float("inf")):
            with self.assertRaisesRegex(ValueError, "2 scales for 1 entries of 2 KV heads; each is from 2.-100 to 2.100"):
                tree_attn.Attention(self.comm, dtype="float8_e4m3fn", k_scale=[1, wrong], **shape)
        with self.assertRaisesRegex(ValueError, "broadcast"):
            tree_attn.Attention(self.comm, dtype="float8_e4m3fn", v_scale=[1, 2, 3], **shape)
        with self.assertRaisesRegex(ValueError, "scales for F32; F8_E4M3 alone has them"):
            tree_attn.Attention(self.comm, v_scale=1, **shape)
        if self.comm:
            with self.assertRaisesRegex(ValueError, "ranks 0 and 1 differ in hash of value scales"):
                tree_attn.Attention(self.comm, dtype="float8_e4m3fn", v_scale=1 + (self.comm.rank == 1), **shape)

    def test_pages_of_a_window_have_the_bits_of_other_memory(self):
        shape = {"heads": 8, "kv_heads": 2, "head_dim": 32, "value_dim": 16}
        with tree_attn.Attention(self.comm, **shape) as layer, tree_attn.Attention(self.comm, n_pages=4, page_window=100, page_sinks=3, **shape) as paged:
            for begin in range(0, 700, 50):
                for each in (layer, paged):
                    each.append(self.k[:, begin:begin + 50], self.v[:, begin:begin + 50])
                self.assertEqual(*(each.step(self.q, causal=True, window=100, sinks=3)[0].tobytes() for each in (layer, paged)))
            with self.assertRaisesRegex(ValueError, "sees keys before position 576, which may have been given back"):
                paged.step(self.q)
        with tree_attn.Attention(self.comm, n_pages=1, **shape) as paged:
            with self.assertRaisesRegex(IndexError, "pages"):
                paged.append(self.k, self.v)
            self.assertEqual(paged.length(), 0)
        with self.assertRaisesRegex(ValueError, "n_pages is -1; at least 1 is needed"):
            tree_attn.Attention(self.comm, n_pages=-1, **shape)

    def test_values_that_are_components_of_the_keys_have_the_bits_of_values_apart(self):
        shape = {"heads": 8, "kv_heads": 2, "head_dim": 32, "value_dim": 16}
        with tree_attn.Attention(self.comm, **shape) as apart, tree_attn.Attention(self.comm, values_in_keys=True, **shape) as latent:
            for begin in range(0, 700, 50):
                k = self.k[:, begin:begin + 50]
                apart.append(k, numpy.ascontiguousarray(k[..., :16])), latent.append(k)
                self.assertEqual(*(each.step(self.q)[0].tobytes() for each in (apart, latent)))
            with self.assertRaisesRegex(ValueError, "v is not null, but values are the first components of the keys"):
                latent.append(k, k[..., :16])
        with self.assertRaisesRegex(ValueError, "values of 33 elements of F32 are not components of keys of 32"):
            tree_attn.Attention(self.comm, values_in_keys=True, heads=8, head_dim=32, value_dim=33)

    def test_combine_of_own_kernels(self):
        rank = self.comm.rank if self.comm else 0
        cuts = numpy.linspace(0, 700, self.size + 1).astype(int)
        mine = slice(cuts[rank], cuts[rank + 1])
        o, lse = tree_attn.attention(self.q, self.k[None, :, mine], self.v[None, :, mine])
        exact, _ = plain(self.q, self.k[None], self.v[None])
        with tree_attn.Attention(self.comm, heads=8, head_dim=32, value_dim=16) as layer:
            self.assertLess(abs(layer.combine(o, lse)[0] - exact).max(), 1e-6)
            if 8 % self.size == 0:
                n = 8 // self.size
                self.assertLess(abs(layer.combine(o, lse, by_heads=True)[0] - exact[:, rank * n:(rank + 1) * n]).max(), 1e-6)
            else:
                with self.assertRaisesRegex(ValueError, "cannot be scattered"):
                    layer.combine(o, lse, by_heads=True)

    def test_a_closed_layer_and_unknown_names_are_refused(self):
        layer = tree_attn.Attention(heads=8, head_dim=32)
        layer.close()
        layer.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            layer.step(self.q)
        with self.assertRaisesRegex(ValueError, "--algorithm none: unknown"):
            tree_attn.Attention(heads=8, head_dim=32, algorithm="none")
        with self.assertRaisesRegex(ValueError, "dtype is 'int8'; one of"):
            tree_attn.Attention(heads=8, head_dim=32, dtype="int8")


class Engine(unittest.TestCase):
    """The listings of docs/IV.9-engine.md."""

    def test_listings(self):
        q, k, v = draw(1, 8, 1, 32), draw(2, 90, 32), draw(2, 90, 32)
        (o_prefix, lse_prefix), (o_rest, lse_rest) = (tree_attn.attention(q, k[None, :, part], v[None, :, part]) for part in (slice(30), slice(30, 90)))
        lse_prefix, lse_rest = ((x * numpy.log2(numpy.e)).astype("float32") for x in (lse_prefix, lse_rest))
        out, lse = tree_attn.merge(o_prefix, lse_prefix, o_rest, lse_rest, lse="base two")
        exact, _ = plain(q, k[None], v[None])
        self.assertLess(abs(out - exact).max(), 1e-6)
        comm = MPI.COMM_WORLD if MPI is not None and 8 % MPI.COMM_WORLD.size == 0 else None
        n = 8 // comm.size if comm else 8
        mine = slice(n * comm.rank, n * comm.rank + n) if comm else slice(8)
        q_of_my_heads = q[:, mine].copy()
        layer = tree_attn.Attention(comm, heads=8, kv_heads=2, head_dim=32)
        layer.append(k, v)
        out, lse = layer.step(q)
        out, lse = layer.step(q_of_my_heads, by_heads=True)
        layer.close()
        self.assertLess(abs(out - exact[:, mine]).max(), 1e-6)
        layer = tree_attn.Attention(comm, heads=8, kv_heads=2, head_dim=32)
        o, lse_of_mine = tree_attn.attention(q, k[None], v[None])
        out, lse = layer.combine(o, lse_of_mine, by_heads=True)
        self.assertLess(abs(out - exact[:, :out.shape[1]]).max(), 1e-6)
        layer.close()


@unittest.skipIf(torch is None, "PyTorch is not installed")
class PyTorch(unittest.TestCase):
    def test_tensors_of_every_type(self):
        q, k, v = torch.randn(1, 4, 2, 32), torch.randn(1, 2, 90, 32), torch.randn(1, 2, 90, 32)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            out, lse = tree_attn.attention(q.to(dtype), k.to(dtype), v.to(dtype))
            for needs in range(3):
                arrays = [x.clone().to(dtype).requires_grad_(i == needs) for i, x in enumerate((q, k, v))]
                with self.assertRaisesRegex(ValueError, "requires a gradient, which the output would not have"):
                    tree_attn.attention(*arrays)
            z, _ = plain(*(x.to(dtype).double().numpy() for x in (q, k, v)))
            self.assertEqual((out.dtype, lse.dtype), (dtype, torch.float32))
            self.assertLess(abs(out.double().numpy() - z).max(), 4 * float(torch.finfo(dtype).eps))
        # Elements of 8 bits, without scales.
        eight = [x.to(torch.float8_e4m3fn) for x in (k, v)]
        self.assertTrue(torch.equal(tree_attn.attention(q, *eight)[0], tree_attn.attention(q, *(x.bfloat16() for x in eight))[0]))
        # [b, n, h, d], the layout of FlashAttention, without a copy.
        swapped = k.transpose(1, 2).contiguous().transpose(1, 2)
        self.assertTrue(torch.equal(tree_attn.attention(q, swapped, v)[0], tree_attn.attention(q, k, v)[0]))


    def test_the_causal_edge_is_at_the_end_of_the_keys_where_that_of_pytorch_is_at_their_beginning(self):
        q, k, v = torch.randn(1, 4, 3, 16), torch.randn(1, 4, 90, 16), torch.randn(1, 4, 90, 16)
        of_torch = torch.nn.functional.scaled_dot_product_attention
        out, _ = tree_attn.attention(q, k, v, causal=True)
        self.assertLess((out - of_torch(q, k, v, attn_mask=torch.ones(3, 90, dtype=torch.bool).tril(87))).abs().max(), 1e-5)
        self.assertGreater((out - of_torch(q, k, v, is_causal=True)).abs().max(), 0.1)
        few = k[:, :, :3], v[:, :, :3]  # as many keys as queries
        self.assertLess((tree_attn.attention(q, *few, causal=True)[0] - of_torch(q, *few, is_causal=True)).abs().max(), 1e-5)


@unittest.skipIf(jax is None, "JAX is not installed")
class Jax(unittest.TestCase):
    def test_arrays(self):
        q, k, v = draw(1, 4, 2, 32), draw(1, 2, 90, 32), draw(1, 2, 90, 32)
        out, lse = tree_attn.attention(*(jax.numpy.asarray(x) for x in (q, k, v)))
        self.assertIsInstance(out, jax.Array)
        self.assertLess(abs(numpy.asarray(out) - plain(q, k, v)[0]).max(), 1e-6)
        self.assertEqual(lse.shape, (1, 4, 2))


if __name__ == "__main__":
    unittest.main()
