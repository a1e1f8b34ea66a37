#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.ops.tree_attn: what torch.library.opcheck asks of operators, and compiled functions whose bits are those of eager ones.

Run: ./run python --peers
"""
import unittest

import torch

import tree_attn
import tree_attn.ops

torch.set_num_threads(1)
COMPILED = {"fullgraph": True, "backend": "inductor"}
OPS = torch.ops.tree_attn


def drawn():
    generator = torch.Generator().manual_seed(71)
    return [torch.randn(shape, generator=generator) for shape in ((2, 8, 3, 32), (2, 2, 100, 32), (2, 2, 100, 16), (8,))]


def opened():
    return tree_attn.ops.Layer(tree_attn.Attention(heads=8, kv_heads=2, head_dim=32, value_dim=16, batch=2))


def same(a, b):
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True))


class Ops(unittest.TestCase):
    def test_operators_are_what_the_package_computes(self):
        q, k, v, logits = drawn()
        self.assertTrue(same(OPS.attention(q, k, v, 0.3, True, 20, 4), tree_attn.attention(q, k, v, 0.3, True, 20, 4)))
        self.assertTrue(same(OPS.attention(q, k, v, sink=logits), tree_attn.attention(q, k, v, sinks=logits)))
        a, b = tree_attn.attention(q, k[:, :, :50], v[:, :, :50]), tree_attn.attention(q, k[:, :, 50:], v[:, :, 50:])
        self.assertTrue(same(OPS.merge(*a, *b, form="base two"), tree_attn.merge(*a, *b, lse="base two")))

    def test_opcheck(self):
        q, k, v, logits = drawn()
        layer = opened()
        torch.library.opcheck(OPS.attention.default, (q, k, v), {"causal": True, "window": 9, "sinks": 2})
        torch.library.opcheck(OPS.attention.default, (q.bfloat16(), k.bfloat16(), v.bfloat16()), {"sink": logits})
        o, lse = OPS.attention(q, k, v)
        torch.library.opcheck(OPS.merge.default, (o, lse, o.clone(), lse.clone()))
        torch.library.opcheck(OPS.append.default, (layer.number, layer.state, k[0], v[0], 0))
        torch.library.opcheck(OPS.append.default, (layer.number, layer.state, None, None, 1), {"n": 0})
        torch.library.opcheck(OPS.step.default, (layer.number, layer.state, q, 16), {"causal": True, "sink": logits})
        torch.library.opcheck(OPS.step.default, (layer.number, layer.state, q, 16), {"by_heads": True})
        self.assertTrue(same(layer.step(q, by_heads=True), layer.step(q)))

    def test_a_layer_of_inference_mode_goes_on_outside(self):
        q, k, v, _ = drawn()
        with torch.inference_mode():
            layer = opened()
            layer.append(k[0], v[0])
        layer.append(k[1], v[1], 1)
        with torch.inference_mode():
            inside = layer.step(q)
        self.assertTrue(same(layer.step(q), inside))

    def test_a_compiled_function_is_one_graph_with_the_bits_and_the_order_of_an_eager_one(self):
        q, k, v, _ = drawn()

        def decode(layer, q, k, v, n):
            outputs = []
            for begin, end, l in ((0, n, 3), (n, n + 1, 1), (n + 1, n + 1, 2)):
                for entry in range(2):
                    layer.append(k[entry, :, begin:end], v[entry, :, begin:end], entry)
                out, lse = layer.step(2 * q[:, :, :l], causal=True)
                outputs += [out + 1, lse]
            return outputs

        torch._dynamo.reset()
        for n in (60, 70):  # the second time with dynamic shapes, and another layer
            eager, compiled = opened(), opened()
            explained = torch._dynamo.explain(decode)(opened(), q, k, v, n)
            self.assertEqual((explained.graph_count, explained.graph_break_count), (1, 0))
            expected = decode(eager, q, k, v, n)
            self.assertTrue(same(torch.compile(decode, **COMPILED)(compiled, q, k, v, n), expected))
            self.assertEqual((compiled.state.item(), eager.state.item()), (9, 9))
            self.assertEqual(compiled.attention.length(0), n + 1)

    def test_a_gradient_is_refused_in_eager_and_compiled_calls(self):
        q, k, v, _ = drawn()
        q.requires_grad_()
        layer = opened()
        for call in (lambda x: OPS.attention(x, k, v), lambda x: layer.step(x), torch.compile(lambda x: OPS.attention(x, k, v)[0], **COMPILED)):
            with self.assertRaisesRegex(Exception, "a tensor requires a gradient, which the output would not have: pass its detach"):
                call(q)
        self.assertEqual(layer.state.item(), 0)
        for mode in torch.no_grad, torch.inference_mode:
            with mode():
                self.assertFalse(OPS.attention(2 * q, k, v)[0].requires_grad)
                self.assertTrue(same(layer.attention.step(q), layer.step(q.detach())))
                self.assertTrue(same(tree_attn.attention(q, k, v), tree_attn.attention(q.detach(), k, v)))


if __name__ == "__main__":
    unittest.main()
