#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/notebook.py and index.py: marks, folded code and answers, and a fault for each part that a notebook lacks."""
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools"))
import index

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
