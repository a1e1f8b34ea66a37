#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/notebook.py and index.py: marks, folded code and answers, and a fault for each part that a notebook lacks."""
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools"))
import filter as doxygen_filter
import index
import notebook

NOTEBOOK = """\
// %% [markdown]
// # A title {#a_title}
//
// **What you need:** nothing. **What you
// get:** $x$.
//
// **Predict:** 1 or 2?

// %%
int main() {
  // %% Drawing
  std::puts("drawn");
}

// %% [markdown]
// ## What to take home
//
// ## Questions
//
// 1. Why?
//
//    <details><summary>Answer</summary>
//
//    So.
//
//    </details>
"""


class Notebook(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "notebooks_cpp").mkdir()
        self.path = self.root / "notebooks_cpp" / "1_title.cpp"
        self.path.write_text(NOTEBOOK, encoding="utf-8")

    def faults(self, old="", new=""):
        """What index.py says of the notebook with a part replaced."""
        assert old in NOTEBOOK
        self.path.write_text(NOTEBOOK.replace(old, new) if old else NOTEBOOK, encoding="utf-8")
        found = []
        with mock.patch.object(index, "ROOT", self.root):
            index.notebooks_are_sound(found)
        return found

    def test_cells_inside_main_are_marked(self):
        marked = self.root / "marked.cpp"
        notebook.mark(self.path, marked)
        self.assertEqual([line for line in marked.read_text().splitlines() if "CELL" in line], ['std::fputs("\\x1e" "CELL 2\\n", stdout);'])

    def test_code_under_a_title_is_folded_and_its_output_is_not(self):
        printed, page = self.root / "printed.txt", self.root / "page.md"
        printed.write_text(notebook.MARK + "2\ndrawn\n")
        notebook.page(self.path, printed, page)
        text = page.read_text()
        fold, end, output = (text.index(part) for part in ("<details><summary>Drawing</summary>", "</details>", '<div class="printed">'))
        self.assertTrue(fold < text.index("std::puts") < end < output < text.index("\ndrawn\n"))

    def test_many_headers_are_folded_and_what_follows_is_not(self):
        printed, page = self.root / "printed.txt", self.root / "page.md"
        printed.write_text("")
        for n, folded in ((3, False), (4, True)):
            headers = "\n".join(f"#include <header_{i}>" for i in range(n))
            self.path.write_text(NOTEBOOK.replace("// %%\nint main", f"// %%\n{headers}\n\nint x;\nint main"), encoding="utf-8")
            notebook.page(self.path, printed, page)
            text = page.read_text()
            self.assertEqual("<details><summary>Headers</summary>" in text, folded)
            if folded:
                fold = text.partition("<summary>Headers</summary>")[2].partition("</details>")
                self.assertIn("#include <header_3>\n```", fold[0])
                self.assertNotIn("int x;", fold[0])
                self.assertIn("int x;", fold[2])

    def test_doxygen_gets_folds_as_html(self):
        lines = list(doxygen_filter.chapter(["   <details><summary>Answer</summary>", "", "   So.", "", "   </details>"], set()))
        self.assertEqual(lines[0], r"   \htmlonly[block]<details><summary>Answer</summary>\endhtmlonly")
        self.assertEqual(lines[-1], r"   \htmlonly[block]</details>\endhtmlonly")
        self.assertEqual(list(doxygen_filter.chapter(["```", "</details>", "```"], set()))[1], "</details>")

    def test_a_whole_notebook_has_no_fault(self):
        self.assertEqual(self.faults(), [])

    def test_a_part_that_is_missing_is_a_fault(self):
        for part in ("**What you need:**", "get:**", "**Predict:**", "## What to take home", "## Questions"):
            self.assertIn("there is no", " ".join(self.faults(part, "...")), part)

    def test_a_question_without_an_answer_is_a_fault(self):
        self.assertEqual(self.faults("//    <details><summary>Answer</summary>", "//"), ["notebooks_cpp/1_title.cpp: 1 questions and 0 answers"])

    def test_lines_that_markdown_or_the_filter_would_spoil_are_faults(self):
        self.assertIn("does not end on its line", self.faults("get:** $x$.", "get:** $x")[0])
        self.assertIn("begins with a number", self.faults("//    So.", "//    40. So.")[0])


if __name__ == "__main__":
    unittest.main()
