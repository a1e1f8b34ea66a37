#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/beside.py: beside every numbered formula stand the function that computes it, whole, and a test that calls it."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools"))
import beside
import filter as pages
import index
import paper

CODED, TESTED = index.citations("paper", index.ROOMS, []), index.citations("tested", ["tests"], [])


class Block(unittest.TestCase):
    def test_ends_with_its_brace(self):
        lines = ["  int f(int a,", "        int b) {", "", "    if (a) {", "      return 1;", "    }", "    return b;", "  }", "  int g();"]
        self.assertEqual(beside.block(lines, 0), [line[2:] for line in lines[:8]])

    def test_on_one_line(self):
        self.assertEqual(beside.block(["int f() { return 1; }", "int g();"], 0), ["int f() { return 1; }"])

    def test_a_declaration(self):
        self.assertTrue(beside.is_declaration(beside.block(["int f(int a,", "      T b = {});", "int g() {", "}"], 0)))
        self.assertFalse(beside.is_declaration(beside.block(["int f() {", "  return 1;", "}"], 0)))


class Emphasis(unittest.TestCase):
    def test_with_a_formula_inside(self):
        self.assertEqual(pages.emphasised(["* *A $x$", "b* c *d*"]), ["* <em>A $x$", "b</em> c *d*"])

    def test_nothing_else(self):
        for lines in (["* item $x$"], ["**bold $x$**"], ["`*a $x$ b*`"], ["$F^*$ and $G^*$"], ["*a", "", "$x$ b*"],
                      ["```", "*a $x$*", "```"], ["$$", "*a $x$*", "$$"]):
            self.assertEqual(pages.emphasised(lines), lines)


class Beside(unittest.TestCase):
    def test_every_equation_has_code_and_a_test(self):
        self.assertEqual(beside.faults(), [])
        for n in range(1, 39):
            with self.subTest(n=n):
                page = beside.beside(f"eq_{n}", CODED, TESTED, {})
                self.assertGreaterEqual(page.count("```cpp"), 2)
                self.assertIn("<b>eq. ", "\n".join(page))
                self.assertEqual(len([line for line in page if line.startswith("TEST_CASE(")]), 1)

    def test_the_code_is_that_of_the_source(self):
        page = beside.beside("eq_6", CODED, TESTED, {})
        self.assertIn("  return log_sum_exp<Scalar>(exponents<Scalar>(q, K, V, zeta));", page)
        self.assertEqual(page[page.index("```cpp") + 1], "template <class Scalar = double>")

    def test_the_code_of_a_function_that_its_header_declares(self):
        citation = next(each for each in CODED["eq_5"] if each.name == "attention()")
        path, lines = beside.definition(citation)
        self.assertEqual(path.suffix, ".cpp")
        self.assertEqual(lines[-1], "}")

    def test_the_oracle_comes_before_the_kernels(self):
        self.assertEqual({each.name for each in beside.shown_code(CODED["alg_3"])}, {"tree_decode_paper()"})
        self.assertGreater(len(CODED["alg_3"]), 5)

    def test_the_test_is_of_the_same_file_and_calls_the_function(self):
        code = beside.shown_code(CODED["eq_20"])
        test = beside.shown_test(TESTED["eq_20"], code)
        self.assertEqual(str(test.path), "tests/reference/energy/test_moments.cpp")
        self.assertTrue(beside.calls(test, [each.name for each in code]))
        self.assertFalse(beside.calls(test, ["momen()", "tree_energy()"]))

    def test_what_the_page_has_already_is_folded(self):
        seen = {}
        first, second = (beside.beside(key, CODED, TESTED, seen) for key in ("eq_1", "eq_2"))
        self.assertNotIn("the same lines", "\n".join(first))
        self.assertIn("the same lines as beside eq. (1)", "\n".join(second))

    def test_folds_are_closed(self):
        for key in paper.STATEMENTS:
            text = "\n".join(beside.beside(key, CODED, TESTED, {}))
            for tag in ("div", "details"):
                self.assertEqual(text.count(f"<{tag}"), text.count(f"</{tag}>"), key)


if __name__ == "__main__":
    unittest.main()
