#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The listings of the chapter "In your engine" are those of programs that tests compile and run."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "IV.9-engine.md").read_text(encoding="utf-8")
RUN = {"cpp": ROOT / "tests" / "docs" / "engine.cpp", "python": ROOT / "tests" / "python" / "test_tree_attn.py"}
EXAMPLE = ROOT / "python" / "examples" / "hugging_face.py"


def lines(text):
    """Statements of a listing, with one space between words: a formatter may align comments otherwise."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def contains(all_lines, part):
    return any(all_lines[i:i + len(part)] == part for i in range(len(all_lines)))


class Engine(unittest.TestCase):
    def test_every_listing_is_run(self):
        listings = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        self.assertEqual([language for language, _ in listings].count("cpp"), 3)
        self.assertEqual([language for language, _ in listings].count("python"), 4)
        marked = [line.strip() for line in EXAMPLE.read_text(encoding="utf-8").splitlines() if line[-3:] in ("# 1", "# 2", "# 3")]
        self.assertEqual(marked, listings.pop(0)[1].splitlines())
        for language, text in listings:
            self.assertTrue(contains(lines(RUN[language].read_text(encoding="utf-8")), lines(text)), f"{RUN[language].name} does not have:\n{text}")

    def test_the_page_is_short(self):
        self.assertLessEqual(len(PAGE.split()), 1600)

    def test_figures(self):
        self.assertIn(f"{8 * 7 * 6 * (514 + 513) * 4:,} bytes by `two-level`, and {8 * 7 * 6 * 514 * 4:,} bytes", PAGE)
        functions = (ROOT / "distributed" / "interface" / "tree_attn.h").read_text(encoding="utf-8").count("\nTREE_ATTN_API ")
        self.assertIn(f"{functions} functions on DLPack tensors", PAGE)


if __name__ == "__main__":
    unittest.main()
