#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/ideas.py: what its pictures draw is what the formulas of the book say."""
import math
import pathlib
import random
import re
import struct
import sys
import unittest
from fractions import Fraction

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import ideas


def as_float(x):
    return struct.unpack("f", struct.pack("f", x))[0]


class Ideas(unittest.TestCase):
    def test_the_sum_on_the_ruler_is_that_of_floats(self):
        seeded = random.Random(1)
        for _ in range(1000):
            high, low, shift = as_float(seeded.uniform(0.5, 4)), as_float(seeded.uniform(0.5, 4)), seeded.randrange(30)
            # The product by a power of two is exact, and a double holds the sum of both before it is rounded to a float.
            if shift < 25:
                self.assertEqual(ideas.merged(Fraction(high), Fraction(low), shift), Fraction(as_float(high + low / 2**shift)))
        text, exponent = ideas.digits(Fraction(5, 2))
        self.assertEqual((text, exponent), ("101" + "0" * 21, 1))

    def test_the_tangent_is_attention(self):
        step = 1e-5
        self.assertAlmostEqual((ideas.energy(step) - ideas.energy(-step)) / (2 * step), ideas.output(), places=9)
        self.assertIn(f"slope z = {ideas.output():.2f}", ideas.tangent())

    def test_the_dealt_order(self):
        self.assertEqual([ideas.owner(leaf, 2) for leaf in range(8)], [0, 2, 1, 3, 0, 2, 1, 3])
        self.assertEqual(re.findall(r"rank (\d): (\d+) of 10", ideas.orders()),
                         [("0", "4"), ("1", "4"), ("2", "2"), ("3", "0"), ("0", "3"), ("1", "2"), ("2", "3"), ("3", "2")])

    def test_the_level_of_the_saddle_passes_through_it(self):
        near = [((ideas.energy(zeta) - ideas.energy(0)) / zeta, zeta) for zeta in (-1e-4, 1e-4)]
        for z, zeta in near:
            self.assertTrue(math.isclose(z, ideas.output(zeta / 2), rel_tol=1e-6))

    def test_the_halo_and_the_memory_are_those_of_the_chapters(self):
        chapters = {name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("IV.3-cost", "IV.6-model")}
        layers, back, halo = re.search(r"L \(w - 1\) = (\d+) \\cdot (\d+) = (\d+)", chapters["IV.6-model"]).groups()
        self.assertIn(f"starts {layers} x {back} = {halo} characters early", ideas.halo())
        self.assertEqual(re.findall(r">(\d+) MB<", ideas.memory()), [f"{n * 2 * 64000 * 2048 * 2 / 1e6:.0f}" for n in (1, 2, 3)])
        self.assertIn("$6btd + 2bd$: three shards", chapters["IV.3-cost"])

    def test_every_picture_is_in_a_chapter(self):
        text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
        for name in ("ruler", "tangent", "saddle", "orders", "halves", "heads", "seen", "halo", "memory"):
            self.assertEqual(text.count(f"(figures/idea_{name}.svg)"), 1, name)


if __name__ == "__main__":
    unittest.main()
