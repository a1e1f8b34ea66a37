#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/reading_path.py: every rule of the path finds what breaks it, and nothing else."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools"))
import reading_path

MARKS = "<!-- path: begin (docs/tools/reading_path.py) -->\n{}<!-- path: end -->\n"
LIST = """# A comment.
[one]
a.hpp   what a is
b.hpp   what b is
[beside]
c.cu    what c is
[exceptions]
x.hpp   not for a first reading
"""
FILES = {"a.hpp": "", "b.hpp": '#include "a.hpp"\n#include <cmath>\n', "c.cu": '#include "b.hpp"\n  # include "x.hpp"\n', "x.hpp": "", "page.md": MARKS.format("")}


class Path(unittest.TestCase):
    def run_main(self, changes=None, text=LIST, words=("--write",), **constants):
        """(exit status, what is printed, page.md) with files, a list and constants of the script changed."""
        constants = {"MOST_FILES": 2, "MOST_LINES": 9, "MOST_EXCEPTIONS": 1, "BESIDE": {"beside": 2}, "PLAIN": {"b.hpp": 2},
                     "SECTIONS": ["one", "beside", "exceptions"], "PAGES": {"page.md": "`{}`"}} | constants
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
            for name, content in (FILES | (changes or {}) | {reading_path.LIST: text}).items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(exist_ok=True)
                path.write_text(content, encoding="utf-8")
            with mock.patch.multiple(reading_path, ROOT=pathlib.Path(folder), **constants), mock.patch.object(sys, "argv", ["reading_path.py", *words]):
                status = reading_path.main()
            return status, printed.getvalue(), pathlib.Path(folder, "page.md").read_text(encoding="utf-8")

    def fault(self, *args, **changed):
        """The one line of a path that is wrong."""
        status, printed, _ = self.run_main(*args, **changed)
        self.assertEqual((status, printed.count("\n")), (1, 1), printed)
        return printed

    def test_a_path_that_is_right(self):
        status, printed, page = self.run_main()
        self.assertEqual((status, printed), (0, "2 files, 2 lines\n"))
        self.assertIn("2 files; 5 minutes, at 20 lines a minute.", page)
        self.assertIn("| one | 5 | `a.hpp` | what a is |\n|  |  | `b.hpp` | what b is |\n| beside, beside the path | 5 | `c.cu` | what c is |\n<!-- path: end", page)
        self.assertEqual(self.run_main({"page.md": page}, words=())[0], 0)

    def test_includes(self):
        self.assertIn("b.hpp: includes y.hpp, which is neither on the path", self.fault({"b.hpp": '#include "y.hpp"\n'}))
        self.assertIn("a.hpp: includes b.hpp, which stands below it", self.fault({"a.hpp": '#include "b.hpp"\n'}))
        self.assertIn("no file of the path reaches the exception x.hpp", self.fault({"c.cu": ""}))

    def test_includes_of_exceptions_are_followed(self):
        through = {"x.hpp": '#include "y.hpp"\n', "y.hpp": '#include "z.hpp"\n#include "a.hpp"\n', "z.hpp": ""}
        self.assertIn("x.hpp: includes y.hpp, which is neither on the path", self.fault(through))
        self.assertIn("y.hpp: includes z.hpp, which is neither on the path", self.fault(through, LIST + "y.hpp  no bit\n", MOST_EXCEPTIONS=2))
        self.assertEqual(self.run_main(through, LIST + "y.hpp  no bit\nz.hpp  none\n", MOST_EXCEPTIONS=3)[0], 0)

    def test_folders_of_exceptions(self):
        below, listed = {"x.hpp": '#include "below/y.hpp"\n', "below/y.hpp": '#include "below/z.hpp"\n', "below/z.hpp": ""}, LIST + "below/  no bit\n"
        self.assertEqual(self.run_main(below, listed, MOST_EXCEPTIONS=2)[0], 0)
        self.assertIn("below/ is an exception, and holds files of the path", self.fault(below, listed.replace("[beside]", "below/z.hpp  z\n[beside]"), MOST_EXCEPTIONS=2, MOST_FILES=3))

    def test_limits(self):
        self.assertIn("2 files on the path, at most 1", self.fault(MOST_FILES=1))
        self.assertIn("10 lines on the path, at most 9", self.fault({"a.hpp": "\n" * 8}))
        self.assertIn("1 exceptions, at most 0", self.fault(MOST_EXCEPTIONS=0))
        self.assertIn("3 lines under [beside], at most 2", self.fault({"c.cu": FILES["c.cu"] + "\n"}))
        self.assertIn("b.hpp: 3 lines, at most 2", self.fault({"b.hpp": FILES["b.hpp"] + "\n"}))
        self.assertIn("d.hpp: is not on the path", self.fault({"d.hpp": "\n"}, PLAIN={"d.hpp": 1}))

    def test_the_path_of_the_project(self):
        with contextlib.redirect_stdout(io.StringIO()) as printed, mock.patch.object(sys, "argv", ["reading_path.py"]):
            self.assertEqual(reading_path.main(), 0, printed.getvalue())


if __name__ == "__main__":
    unittest.main()
