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


class Readme(unittest.TestCase):
    def test_the_readme_of_the_notebooks_is_theirs_with_what_they_printed(self):
        text = notebook.README.read_text(encoding="utf-8")
        printed = notebook.printed_in(text)
        self.assertEqual(sorted(printed), sorted(int(path.name.split("_")[0]) for path in notebook.README.parent.glob("[0-9]*_*.cpp")))
        self.assertEqual(notebook.readme(printed), text)
        self.assertNotIn("@ref", text)
        self.assertGreater(min(map(len, printed.values())), 40)

    def test_what_is_printed_is_compared(self):
        printed = notebook.printed_in(notebook.README.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            for path in notebook.README.parent.glob("[0-9]*_*.cpp"):
                pathlib.Path(folder, path.stem).mkdir()
                pathlib.Path(folder, path.stem, "printed.txt").write_text(f"{notebook.MARK}3\n{printed[int(path.name.split('_')[0])]}", encoding="utf-8")
            notebook.write_readme(pathlib.Path(folder), False)
            with pathlib.Path(folder, "5_associativity_and_the_state", "printed.txt").open("a", encoding="utf-8") as file:
                file.write("more\n")
            with self.assertRaises(SystemExit):
                notebook.write_readme(pathlib.Path(folder), False)


class Notebook(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "notebooks_cpp").mkdir()
        self.path = self.root / "notebooks_cpp" / "1_title.cpp"
        self.path.write_text(NOTEBOOK, encoding="utf-8")

    def faults(self, old="", new=""):
        """Returns what index.py says of the notebook with a part replaced."""
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
