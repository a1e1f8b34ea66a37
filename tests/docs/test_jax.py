#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/IV.2-jax.md: its PyTorch form of Alg. 3 computes attention. It runs on four threads, with a torch of nested lists."""
import math
import operator
import pathlib
import random
import re
import threading
import types
import unittest

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "IV.2-jax.md"
CODE = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[1]


class Tensor:
    """[b, n_h] matrices, each a list of rows; an axis of length 1 is repeated."""

    def __init__(self, matrices):
        self.matrices = matrices

    def over(self, f, *others):
        """f of the matrices of every batch entry and head."""
        return Tensor([[f(*parts) for parts in zip(*heads)] for heads in zip(self.matrices, *(other.matrices for other in others))])

    def each(self, f, *others):
        """f of every element."""
        def of(*parts):
            n, m = (max(len(part) for part in parts), max(len(part[0]) for part in parts))
            return [[f(*(part[i % len(part)][j % len(part[0])] for part in parts)) for j in range(m)] for i in range(n)]
        return self.over(of, *others)

    def rows(self, f):
        return self.over(lambda part: [f(row) for row in part])

    def __matmul__(self, other):
        return self.over(lambda a, b: [[sum(map(operator.mul, row, column)) for column in zip(*b)] for row in a], other)

    def transpose(self, *axes):
        assert axes == (-1, -2)
        return self.over(lambda part: [list(column) for column in zip(*part)])

    def __sub__(self, other):
        return self.each(operator.sub, other)

    def __mul__(self, other):
        return self.each(operator.mul, other)

    def __truediv__(self, other):
        return self.each(operator.truediv, other)

    def clone(self):
        return Tensor(self.matrices)


def log_sum_exp(row):
    m = max(row)
    return m + math.log(sum(math.exp(x - m) for x in row))


class Ranks:
    """The ranks of one call: dist.all_reduce() replaces a tensor of every rank by the reduction over all."""

    def __init__(self, n):
        self.barrier, self.given, self.rank = threading.Barrier(n, timeout=10), [None] * n, threading.local()

    def all_reduce(self, tensor, op="sum"):
        self.given[self.rank.index] = Tensor(tensor.matrices)
        self.barrier.wait()
        result = self.given[0].each(lambda *x: max(x) if op == "max" else sum(x), *self.given[1:])
        self.barrier.wait()
        tensor.matrices = result.matrices


def run(code, q, shards):
    """Returns what the function of the page returns on every rank."""
    ranks = Ranks(len(shards))
    dist = types.SimpleNamespace(all_reduce=ranks.all_reduce, ReduceOp=types.SimpleNamespace(MAX="max"))
    torch = types.SimpleNamespace(softmax=lambda x, axis: x.rows(lambda row: [math.exp(s - log_sum_exp(row)) for s in row]),
                                  logsumexp=lambda x, axis, keepdim: x.rows(lambda row: [log_sum_exp(row)]), exp=lambda x: x.each(math.exp))
    names = {"torch": torch, "dist": dist}
    exec("\n".join(line for line in code.splitlines() if not line.startswith("import")), names)
    outputs = [None] * len(shards)

    def one(index):
        ranks.rank.index = index
        outputs[index] = names["tree_decode"](Tensor(q), *map(Tensor, shards[index])).matrices

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(shards))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outputs


class PyTorchForm(unittest.TestCase):
    def setUp(self):
        number = random.Random(1).gauss
        tensor = lambda *shape: [tensor(*shape[1:]) for _ in range(shape[0])] if shape else number(0, 1)
        self.b, self.h, self.d, lengths = 2, 3, 4, [3, 1, 5, 4]
        self.q = tensor(self.b, self.h, 1, self.d)
        self.shards = [(tensor(self.b, self.h, t, self.d), tensor(self.b, self.h, t, self.d)) for t in lengths]

    def distance(self, outputs):
        """From attention over all keys, by its definition."""
        largest = 0
        for i in range(self.b):
            for j in range(self.h):
                keys = [key for k, _ in self.shards for key in k[i][j]]
                values = [value for _, v in self.shards for value in v[i][j]]
                weights = [math.exp(sum(x * y for x, y in zip(self.q[i][j][0], key))) for key in keys]
                for c in range(self.d):
                    z = sum(w * value[c] for w, value in zip(weights, values)) / sum(weights)
                    largest = max(largest, *(abs(output[i][j][0][c] - z) for output in outputs))
        return largest

    def test_it_is_attention_on_every_rank(self):
        self.assertLess(self.distance(run(CODE, self.q, self.shards)), 1e-14)

    def test_without_any_of_its_collectives_it_is_not(self):
        collectives = [line for line in CODE.splitlines() if "all_reduce" in line]
        self.assertEqual(len(collectives), 3)
        for line in collectives:
            with self.subTest(line=line):
                self.assertGreater(self.distance(run(CODE.replace(line, ""), self.q, self.shards)), 1e-3)


if __name__ == "__main__":
    unittest.main()
