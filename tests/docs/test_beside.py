#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/beside.py: beside every numbered formula stand the function that computes it, whole, and a test that calls it."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools"))
import beside
import index
import paper

CODED, TESTED = index.citations("paper", index.ROOMS, []), index.citations("tested", ["tests"], [])


class Beside(unittest.TestCase):
    def test_every_equation_has_code_and_a_test(self):
        self.assertEqual(beside.faults(), [])
        for n in range(1, 39):
            with self.subTest(n=n):
                page = beside.beside(f"eq_{n}", CODED, TESTED, {})
                self.assertGreaterEqual(page.count("```cpp"), 2)
                self.assertIn("<b>eq. ", "\n".join(page))
                self.assertEqual(len([line for line in page if line.startswith("TEST_CASE(")]), 1)

    def test_the_oracle_comes_before_the_kernels(self):
        self.assertEqual({each.name for each in beside.shown_code(CODED["alg_3"])}, {"tree_decode_paper()"})
        self.assertGreater(len(CODED["alg_3"]), 5)

    def test_the_test_is_of_the_same_file_and_calls_the_function(self):
        code = beside.shown_code(CODED["eq_20"])
        test = beside.shown_test(TESTED["eq_20"], code)
        self.assertEqual(str(test.path), "tests/reference/energy/test_moments.cpp")
        self.assertTrue(beside.calls(test, [each.name for each in code]))
        self.assertFalse(beside.calls(test, ["momen()", "tree_energy()"]))

    def test_folds_are_closed(self):
        for key in paper.STATEMENTS:
            text = "\n".join(beside.beside(key, CODED, TESTED, {}))
            # Doxygen's script takes every element of the class "code" for a link.
            self.assertNotIn('class="code"', text, key)
            for tag in ("div", "details"):
                self.assertEqual(text.count(f"<{tag}"), text.count(f"</{tag}>"), key)


if __name__ == "__main__":
    unittest.main()
