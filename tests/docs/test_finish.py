#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/finish.py and docs/book.js: the search finds what chapters say, and listings of code lead to derivations."""
import json
import pathlib
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import finish
import note

PAGE = """<html><head><title>Book: The tree</title></head><body><div class="header"><div class="headertitle"><div class="title">The tree</div></div></div>
<div class="contents"><div class="toc"><ul><li>Depth</li></ul></div><div class="textblock"><p>Bruck's exchange over \\(p\\) ranks.<br></p>
<h1><a class="anchor" id="depth"></a>Depth of \\( \\operatorname{log} p \\)</h1><p>It has <em>few</em> steps, \\[ \\zeta_{i} \\]</p>
<div class="beside"><div class="source">int beside;</div></div><p>and <code>merge()</code>.</p><svg><text>drawn</text></svg></div></div></body></html>"""


class Text(unittest.TestCase):
    def test_sections_of_a_page(self):
        self.assertEqual(finish.text_of({"tree.html": PAGE}), [
            ["tree.html", "The tree", "", "Bruck's exchange over p ranks."],
            ["tree.html#depth", "The tree", "Depth of log p", "It has few steps, zeta_ i and merge()."]])


class Listings(unittest.TestCase):
    def test_citations_and_mentions_become_links(self):
        listing = '<span class="comment">/// @paper{eq_6, eq. (6)} and eq. (99)</span> x <span class="comment">// Line 4 of Alg. 1, eq. (6).</span> eq. (6)'
        linked = finish.linked_listing(listing, {"eq_6": "energy.html#eq_6", "alg_1": "algorithms.html#alg_1"})
        self.assertEqual(linked, '<span class="comment">/// @paper <a class="code" href="energy.html#eq_6">eq. (6)</a> and eq. (99)</span> x '
                         '<span class="comment">// Line 4 of <a class="code" href="algorithms.html#alg_1">Alg. 1</a>, '
                         '<a class="code" href="energy.html#eq_6">eq. (6)</a>.</span> eq. (6)')


ERRATA = """<html><head><script src="mathjax/MathJax.js"></script><script src="book.js"></script></head><body><div class="title">Errata of the paper</div>
<div class="contents"><div class="toc"><ul><li>1. One</li></ul></div><div class="textblock"><p ><a class="anchor" id="md"></a> Two slips.</p><p >What you need.</p>
<h1><a class="anchor" id="slip_1"></a>
1. One &amp; only</h1><div class="cited">Shown by: <a href="test_x.html#a">x: it is one</a></div><p >Where: <a href="bayes.html#eq_30">eq. (30)</a> of <a href="https://arxiv.org/abs/1">the paper</a>.</p>
<h1><a class="anchor" id="slip_2"></a>
2. Two</h1><div class="cited">Shown by: no test: a letter</div><p >Text.</p>
<div class="neighbours">next</div></div></div><!-- contents --></body></html>"""


class Note(unittest.TestCase):
    def test_it_has_every_item_with_its_tests_and_no_link_into_the_site(self):
        found = note.note(ERRATA)
        for part in ("<p> Two slips.", '<h2 id="slip_1">1. One &amp; only</h2>', "Shown by: <a >x: it is one</a>", "eq. (30)</a> of", "Shown by: no test: a letter",
                     'href="https://arxiv.org/abs/1"', "How to cite", "@misc{tree_attention_errata", "Version 0.2.0", "MathJax.js"):
            self.assertIn(part, found.replace("<p><a class=\"anchor\" id=\"md\"></a>", "<p>"))
        for part in ("book.js", "bayes.html", "test_x.html", "What you need", "neighbours", "toc"):
            self.assertNotIn(part, found)
        self.assertEqual(found.count("<div"), found.count("</div>"))

    def test_a_missing_item_is_a_fault(self):
        with self.assertRaisesRegex(ValueError, r"the items are \[1, 3\]"):
            note.note(ERRATA.replace("slip_2", "slip_3"))

    def test_it_cites_what_the_repository_cites(self):
        version, title, arxiv = note.citation()
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        self.assertIn(f"project(tree_attn VERSION {version} ", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))
        self.assertIn(f"arXiv:{arxiv}", readme)
        self.assertIn(title.replace("GPU", "{GPU}"), readme)


@unittest.skipUnless(shutil.which("node"), "there is no node to run docs/book.js with")
class Search(unittest.TestCase):
    SECTIONS = [["a.html", "The tree", "", "A tree over keys. Trees have leaves."], ["a.html#x", "The tree", "Bruck", "His AllGather sends blocks."],
                ["b.html", "Costs", "", "The exchange of Bruck over NVLink and the ring of NCCL."]]

    def found(self, query):
        script = "const {findInText} = require(process.argv[1]); console.log(JSON.stringify(findInText(JSON.parse(process.argv[2]), process.argv[3])))"
        result = subprocess.run(["node", "-e", script, str(ROOT / "docs" / "book.js"), json.dumps(self.SECTIONS), query],
                                capture_output=True, text=True, check=True)
        return json.loads(result.stdout)

    def test_a_word_in_a_heading_comes_first(self):
        self.assertEqual([each["link"] for each in self.found("bruck")], ["a.html#x", "b.html"])

    def test_the_hit_stands_in_its_context(self):
        hit = self.found("nvlink")[0]
        self.assertEqual((hit["before"], hit["hit"], hit["after"]), ("The exchange of Bruck over ", "NVLink", " and the ring of NCCL."))

    def test_all_words_have_to_be_there_and_begin_a_word(self):
        self.assertEqual([each["link"] for each in self.found("ring NCCL")], ["b.html"])
        for nothing in ("ring leaves", "ruck", "x", "", "(", "VLink"):
            self.assertEqual(self.found(nothing), [], nothing)


if __name__ == "__main__":
    unittest.main()
