#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/demo: its last five lines say what its numbers say, and a demo that shows something else fails."""
import importlib.machinery
import importlib.util
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("demo", str(ROOT / "docs" / "tools" / "demo"))
demo = importlib.util.module_from_spec(importlib.util.spec_from_loader("demo", loader))
try:
    loader.exec_module(demo)
except FileNotFoundError:
    print("skipped: there is no mpirun in the PATH")
    sys.exit(77)

DECODED = {"two-level": {"bytes_per_step": 199680}, "ring": {"bytes_per_step": 3758096384, "seq_len": 65536}}
DIGESTS = {1: "a", 3: "a", 8: "a", 13: "a"}


class Conclusion(unittest.TestCase):
    def test_five_lines_say_what_was_shown(self):
        lines, is_right = demo.conclusion(DECODED, "It is 1", "It is 1", DIGESTS, "b", 262144)
        self.assertTrue(is_right)
        self.assertEqual(len(lines), 5)
        self.assertIn("sent 195 KiB in the tree and 3.50 GiB in the ring, 18,821 times as many", lines[0])
        self.assertIn("one digest on 1, 3, 8 and 13 ranks, a; by `paper` on 8 b.", lines[1])
        self.assertIn('"It is 1" is what the text says, in 262144 characters', lines[2])

    def test_other_bits_and_a_wrong_answer_fail(self):
        lines, is_right = demo.conclusion(DECODED, "It is 1", "It is 1", DIGESTS | {13: "c"}, "b", 262144)
        self.assertFalse(is_right)
        self.assertIn("different digests on 1, 3, 8 and 13 ranks, a, c", lines[1])
        lines, is_right = demo.conclusion(DECODED, "It is 2", "It is 1", DIGESTS, "b", 262144)
        self.assertFalse(is_right)
        self.assertIn("wrong: It is 1", lines[2])


if __name__ == "__main__":
    unittest.main()
