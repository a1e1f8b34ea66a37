#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/paper.py: chapters that state something else than the paper are found, and those that only look different are not."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools"))
import book
import paper

CHAPTERS = {path.name: book.read(path) for path in paper.FILE.parent.glob("*.md")}
LIST = paper.FILE.read_text(encoding="utf-8")


class Chapters(unittest.TestCase):
    def faults(self, name, old, new, occurrences=1):
        """Returns what the check says once `old` reads `new` in a chapter."""
        self.assertEqual(CHAPTERS[name].count(old), occurrences, old)
        return list(paper.chapter_faults(paper.read(), CHAPTERS | {name: CHAPTERS[name].replace(old, new)}))

    def test_the_book_has_no_fault(self):
        self.assertEqual(list(paper.chapter_faults(paper.read(), CHAPTERS)), [])
        self.assertEqual(list(paper.list_faults(paper.read())), [])

    def test_every_formula_of_the_paper_is_compared(self):
        """One symbol off, anywhere, in any of the 38."""
        for n in range(1, 39):
            with self.subTest(n=n):
                name = next(name for name, text in CHAPTERS.items() if f"\\tag{{{n}}}" in text)
                faults = self.faults(name, f"\\tag{{{n}}}", f"+ 1 \\tag{{{n}}}")
                self.assertEqual(len(faults), 1, faults)
                self.assertIn(f"is not eq. ({n}) of the paper", faults[0])

    def test_setting_is_no_difference(self):
        self.assertEqual(self.faults("IV.3-cost.md", r"4btd + 2bd . \tag{8}", "4 b \\, t d\n+ {}2 bd \\tag{8} .".replace("{}", "")), [])
        self.assertEqual(self.faults("I.1-stream.md", r"n_i = n_{i-1} + v_i s_i , \tag{2}", r"n_{i} = n_{i - 1} + v_i \; s_{i}, \tag{2}"), [])

    def test_a_formula_that_is_gone(self):
        self.assertEqual(self.faults("I.1-stream.md", r"\tag{3}", ""), ["no chapter has eq. (3): a display with \\tag, or a heading with {#eq_3}"])

    def test_lines_of_an_algorithm(self):
        wrong = self.faults("IV.1-algorithms.md", r"| 3 | $m = \mathrm{AllReduce}(\max,", r"| 3 | $m = \mathrm{AllReduce}(\min,")
        self.assertEqual(len(wrong), 1)
        self.assertIn("Alg. 3, line 3", wrong[0])
        self.assertIn("Alg. 2, line 7: 'None'", self.faults("IV.1-algorithms.md", "| 7 | return $z$ | |\n", "")[0])

    def test_a_figure_that_its_page_does_not_mention(self):
        self.assertEqual(self.faults("IV.3-cost.md", "Fig. 4", "A figure", CHAPTERS["IV.3-cost.md"].count("Fig. 4")),
                         ["fig_4: no page with the anchor 'peak_memory' mentions Fig. 4"])

    def test_mentions(self):
        faults = lambda text: list(paper.mention_faults(paper.read(), "x", text))
        self.assertEqual(faults("eq. (38), eq. (cov), Alg. 1, line 8, Alg. 2,\n// lines 4 to 7, Alg. 3"), [])
        for text in ("eq. (39)", "eqs. (0)", "eq. (hessian)", "Alg. 3, line 7", "Alg. 1, lines 7 and 9", "Alg. 2,\n/// line 8", "Alg. 4, line 1"):
            self.assertEqual(len(faults(text)), 1, text)


class List(unittest.TestCase):
    def faults(self, old, new):
        self.assertEqual(LIST.count(old), 1, old)
        return list(paper.list_faults(paper.Paper(LIST.replace(old, new))))

    def test_items_that_are_missing_or_too_many(self):
        self.assertIn("the list has no eq_20, eq. (20) of the paper", self.faults("[eq_20]", "[eq_200]"))
        self.assertIn("the list has no fig_3a, Fig. 3(a) of the paper", self.faults("[fig_3a]", "[fig_5]"))
        self.assertIn("the list has no slip_9, slip 9 of the paper", self.faults("[slip_9]", "[slip_14]"))

    def test_an_algorithm_has_all_of_its_lines(self):
        self.assertIn("alg_2: Alg. 2 has 7 lines, here are 6", self.faults("  '$z = \\mathrm{Reduce}(\\mathrm{sum}, R)$',\n", ""))


if __name__ == "__main__":
    unittest.main()
