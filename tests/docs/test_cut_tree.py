#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/cut_the_tree.js: the forests of the page, and every bit of what it shows, are those of the C++ (docs/tools/cut_tree.cpp)."""
import json
import pathlib
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import live
import pdf

FACTS = json.loads((ROOT / "docs" / "cut_the_tree.json").read_text(encoding="utf-8"))
SCRIPT = """
const page = require(process.argv[1]), facts = JSON.parse(require("fs").readFileSync(process.argv[2]));
console.log(JSON.stringify(facts.outputs.map(({cuts}) => ({
  cuts, tree: page.bits(page.byTree(facts, cuts)), paper: page.bits(page.byPaper(facts, cuts)),
  forests: page.forests(facts, cuts).map(forest => forest.map(({level, index}) => [level, index]))}))));
"""


def cover(begin, end):
    """As reference/state/subtree.hpp."""
    while begin < end:
        level = (end - begin).bit_length() - 1
        if begin:
            level = min(level, (begin & -begin).bit_length() - 1)
        yield [level, begin >> level]
        begin += 1 << level


class Facts(unittest.TestCase):
    def test_the_tree_has_one_output_and_alg_3_has_many(self):
        outputs = FACTS["outputs"]
        self.assertGreater(len({tuple(each["cuts"]) for each in outputs}), 30)
        self.assertEqual(len({tuple(each["tree"]) for each in outputs}), 1)
        self.assertGreater(len({tuple(each["paper"]) for each in outputs}), 20)


class Printed(unittest.TestCase):
    def test_the_pdf_has_the_figure_once(self):
        text = f"before{live.snippet('cut_the_tree', FACTS)}after"
        self.assertEqual(pdf.LIVE.sub("", text), "before\nafter")


@unittest.skipUnless(shutil.which("node"), "there is no node to run docs/cut_the_tree.js with")
class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        result = subprocess.run(["node", "-e", SCRIPT, str(ROOT / "docs" / "cut_the_tree.js"), str(ROOT / "docs" / "cut_the_tree.json")],
                                capture_output=True, text=True, check=True)
        cls.found = json.loads(result.stdout)

    def test_all_bits_are_those_of_the_library(self):
        for found, want in zip(self.found, FACTS["outputs"], strict=True):
            self.assertEqual({key: found[key] for key in want}, want)

    def test_forests_are_the_maximal_subtrees(self):
        for found in self.found:
            cuts = found["cuts"]
            self.assertEqual(found["forests"], [list(cover(begin, end)) for begin, end in zip(cuts, cuts[1:])])


if __name__ == "__main__":
    unittest.main()
