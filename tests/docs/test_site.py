#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Doxygen reads every text without a warning: each reference of a chapter, a notebook or a comment leads somewhere.

Nothing is compiled: notebooks have no output here, and figures are empty files. ./run docs, a test of the whole set, makes the site whole.
Skipped without Doxygen.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / "docs" / "tools"
sys.path.insert(0, str(TOOLS))
import filter as pages
import notebook

# A page with two references that lead nowhere, one of a chapter and one of Doxygen: messages about these, and no others, are expected.
PLANTED = "# Planted {#planted}\n\n`no_such_function()` and @ref no_such_place\n"
EXPECTED = {"tree_attn::no_such_function()", "no_such_place"}
INCLUDED = re.compile(r"(?:\\htmlinclude\[block\]|@image html) ([\w.]+)")


def doxyfile(folder):
    """docs/Doxyfile.in for texts in `folder`, without the theme and its header."""
    values = {"PROJECT_SOURCE_DIR": ROOT, "CMAKE_CURRENT_BINARY_DIR": folder, "docs_generated": folder / "generated"}
    text = re.sub(r"@(\w+)@", lambda m: str(values.get(m[1], "")), (ROOT / "docs" / "Doxyfile.in").read_text(encoding="utf-8"))
    return text + "HTML_HEADER =\nHTML_EXTRA_STYLESHEET =\nHTML_EXTRA_FILES =\n"


def messages(folder, planted):
    """Returns what Doxygen says about all texts of the book, the code and the tests, and about one planted page."""
    generated, filtered = folder / "generated", folder / "filtered"
    generated.mkdir()
    (folder / "printed").write_text("")
    for path in (ROOT / "notebooks_cpp").glob("[0-9]*_*.cpp"):
        notebook.page(path, folder / "printed", generated / f"notebook_{path.stem}.md")
    (generated / "notebook_planted.md").write_text(planted)
    tool = [sys.executable, "-B"]
    subprocess.run([*tool, TOOLS / "index.py", "--write", generated / "paper_index.md"], check=True)
    subprocess.run([*tool, TOOLS / "filter.py", "--all", filtered, generated, *(ROOT / name for name in ("docs", "reference", "gpu", "distributed", "tests"))], check=True)
    for path in filtered.rglob("*.md"):
        for name in INCLUDED.findall(path.read_text(encoding="utf-8")):
            (generated / name).touch()
    (folder / "Doxyfile").write_text(doxyfile(folder))
    result = subprocess.run(["doxygen", folder / "Doxyfile"], capture_output=True, text=True, check=False, env=os.environ | {"TREE_ATTN_DOCS_FILTERED": str(filtered)})
    return result.returncode, [line for line in result.stderr.splitlines() if not line.startswith(" ")]


class Site(unittest.TestCase):
    def test_heads_of_test_cases_that_go_on_in_the_next_line(self):
        lines = ['TEST_CASE_TEMPLATE("a: b", Real, float,', "                   double) {  // c", "  x;", "}", 'TEST_CASE("a: d") { y; }']
        found = list(pages.source(lines, pathlib.PurePath("tests/x/test_x.cpp"), set()))
        self.assertEqual([line.partition("*/ ")[2] or line for line in found], ["void test_a_b() {", "  // c", "  x;", "}", "void test_a_d() { y; }"])

    def test_no_head_of_a_test_case_is_left(self):
        def left(lines, where):
            return [line for line in pages.source(lines, where, set()) if re.match(r"\s*TEST_CASE", line)]

        for path in sorted((ROOT / "tests").rglob("test_*.cpp")):
            self.assertEqual(left(path.read_text(encoding="utf-8").splitlines(), path.relative_to(ROOT)), [], path)
        self.assertEqual(len(left(["TEST_CASE(", '    "a: b") {', "}"], pathlib.PurePath("tests/x/test_x.cpp"))), 1)

    def test_every_reference_leads_somewhere(self):
        with tempfile.TemporaryDirectory() as folder:
            status, said = messages(pathlib.Path(folder), PLANTED)
        self.assertNotEqual(status, 0)
        faults = [line for line in said if "notebook_planted.md" not in line]
        self.assertEqual(faults, [], "\n".join(faults))
        self.assertEqual({match[1] for line in said if (match := re.search(r"resolve reference to '([^']+)'", line))}, EXPECTED, said)


if __name__ == "__main__":
    if not shutil.which("doxygen"):
        print("skipped: there is no doxygen in the PATH")
        sys.exit(77)
    unittest.main()
