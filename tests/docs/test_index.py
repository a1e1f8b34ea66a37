#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/index.py: each rule of texts, citations and links finds what breaks it, and nothing else."""
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools"))
import index


class Rules(unittest.TestCase):
    def faults(self, rule, files, *arguments):
        """Returns what a rule says of a tree of these files, and what it returns."""
        found = []
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            with mock.patch.multiple(index, ROOT=root, CHAPTERS=root / "docs", NOT_YET=root / "docs" / "not_yet.txt"):
                self.returned = rule(*arguments, found)
        return found

    def test_citations_have_a_key_its_label_and_their_place(self):
        def cite(text, alias="paper", name="reference/a.hpp"):
            return self.faults(index.citations, {name: text}, alias, ["reference", "tests"])

        self.assertEqual(cite("\n/// @tested{eq_6, eq. (6)}\n"), ["reference/a.hpp:2: @tested belongs into tests/"])
        self.assertEqual(cite("// @paper{eq_6, eq. (6)}\n", "tested", "tests/a.cpp"), ["tests/a.cpp:1: @paper belongs into code"])
        self.assertEqual(cite("/// @paper{eq_99, eq. (99)}\n"), ["reference/a.hpp:1: the paper has no eq_99"])
        self.assertEqual(cite("/// @paper{eq_6, eq. (7)}\n"), ["reference/a.hpp:1: eq_6 is eq. (6), not eq. (7)"])

    def test_a_citation_belongs_to_what_stands_below_it(self):
        for below, name in (("template <class Real>\ninline Real energy(const Real* q) {\n", "energy()"), ("// more\n#pragma once\n\nstruct State {\n", "State"),
                            ("template <class Real, class List = std::vector<Real>>\nclass Tree;\n", "Tree"), ("enum class Kind { a };\n", "Kind"), ("constexpr double kHalf = 0.5;\n", "kHalf"),
                            ("bool operator==(const A&) const;\n", "operator==()"), ('TEST_CASE("a: b, \\"c\\"") {\n', 'a: b, \\"c\\"'), ("// nothing\n", "here"),
                            ("__global__ void __launch_bounds__(256) leaves(int n) {\n", "leaves()")):
            faults = self.faults(index.citations, {"reference/a.hpp": f"/// @paper{{eq_6, eq. (6)}}\n{below}"}, "paper", ["reference"])
            self.assertEqual((faults, [c.name for c in self.returned["eq_6"]]), ([], [name]))

    def test_what_is_not_yet_there_is_listed_by_key_and_part(self):
        self.assertEqual(self.faults(index.not_yet, {"docs/not_yet.txt": "# none\neq_6: code, test  # soon\n"}), [])
        self.assertEqual(self.returned, {"eq_6": {"code", "test"}})
        for line in ("eq_99: code", "eq_6: page", "eq_6"):
            self.assertEqual(self.faults(index.not_yet, {"docs/not_yet.txt": line}), [f"docs/not_yet.txt:1: expected 'eq_20: docs, code, test', found '{line}'"])

    def test_chapters_name_files_and_functions_that_are_there(self):
        def read(text):
            return self.faults(index.chapters_are_sound, {"docs/I.1-a.md": text, "reference/a.hpp": "int there(int);\n"})

        self.assertEqual(read("`reference/a.hpp` has `there()` and `a::there()`; $x$, `$`, \\$ and $\\alpha$.\n\n```sh\necho $HOME\n```\nThe file `a.hpp`.\n"), [])
        self.assertEqual(read("\n`reference/b.hpp`\n"), ["docs/I.1-a.md:2: there is no reference/b.hpp"])
        self.assertEqual(read("`gone()`\n"), ["docs/I.1-a.md:1: gone() is no function of ours; others are named without parentheses"])
        self.assertEqual(read("a $x +\ny$ b\n"), [f"docs/I.1-a.md:{i}: a formula that does not end on its line" for i in (1, 2)])

    def test_what_stands_in_a_header_has_a_comment(self):
        def read(text, name="reference/a.hpp"):
            return self.faults(index.undocumented, {name: f"#pragma once\nnamespace a {{\n\n{text}\n}}\n"})

        for text in ("/// Counts.\nint f(int);\nint f(long);\n", "class Later;\n", "/// Holds.\nstruct S {\n  int member;\n  void g();\n};\n", "int kN = 3;  ///< of them\n",
                     "/// Says.\ninline const char* f() {\n  return \"{ // }\";\n}\n"):
            self.assertEqual(read(text), [], text)
        self.assertEqual(read("int f(int);\n"), ["reference/a.hpp:4: no comment says what this is: int f(int);"])
        self.assertEqual(read("/// Counts.\nint f(int);\n\nint g(int);\n"), ["reference/a.hpp:7: no comment says what this is: int g(int);"])
        self.assertEqual(read("/// Counts.\nint f() {\n  return '}';\n}\n\nstruct S {\n};\n"), ["reference/a.hpp:9: no comment says what this is: struct S {"])
        self.assertEqual(read("/// Says.\nchar f() {\n  return '{';\n}\n\nint g();\n"), ["reference/a.hpp:9: no comment says what this is: int g();"])
        self.assertEqual(read("int f(int);\n", "reference/a.cpp"), [])
        self.assertEqual(read("int f(int);\n", "gpu/platform/cuda/device.hpp"), [])

    def test_comparisons_that_accept_too_much(self):
        def read(text):
            return self.faults(index.comparisons, {"tests/a.cpp": text})

        self.assertEqual(read("CHECK(x.maxCoeff<Eigen::PropagateNaN>() < 1);\nCHECK(y == Approx(f(1)).epsilon(1e-9));\nconst double z = x.maxCoeff();\n"), [])
        self.assertEqual(read("\nCHECK(x.maxCoeff() < 1);\n"), ["tests/a.cpp:2: maxCoeff() drops NaN: maxCoeff<Eigen::PropagateNaN>()"])
        self.assertEqual(read("CHECK(y == Approx(f(1)));\n"), ["tests/a.cpp:1: doctest::Approx without .epsilon()"])

    def test_links_of_a_site(self):
        files = {"a.html": '<link href="b.css?v=1"><script src="away.js"></script><img src="https://elsewhere/x.png"><a href="b.html#here">1</a><a href="#top" id="top">2</a>'
                 '<a href="b.html#gone">3</a><a href="c.html">4</a><a href="https://elsewhere/">5</a><a href="b.html#x-members">6</a><a href="mailto:x@y">7</a>'
                 '<a href="b.html#named">8</a>',
                 "b.html": '<p id="here"><a name="named"></a>', "b.css": ""}
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                pathlib.Path(folder, name).write_text(text, encoding="utf-8")
            self.assertEqual(list(index.dead_links(pathlib.Path(folder))), [
                "a.html: away.js: not part of the site, so the page needs a network",
                "a.html: https://elsewhere/x.png: not part of the site, so the page needs a network",
                "a.html: b.html#gone: no such anchor", "a.html: c.html: no such file"])


if __name__ == "__main__":
    unittest.main()
