#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/recall.py: tables follow from what was measured, a broken report is refused; texts and questions are those of the recipe."""
import copy
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
sys.path.insert(0, str(ROOT / "tests" / "data" / "recall"))
import make_haystack
import recall


def length(dtype, right):
    return {"characters": 1024, "dtype": dtype, "texts": 2, "records": 9, "asked": 4, "right": right, "found": 4, "weight": 0.98765, "read_seconds": 0.5, "token_us": 1234.0}


def layout(order, ranks, digest):
    return {"characters": 64, "order": order, "ranks": ranks, "nodes": 1, "right": 1, "asked": 1, "messages": 2, "bytes": 2112, "bytes_between_nodes": 0, "peak_kv_bytes": 1 << 20,
            "read_seconds": 0.1, "token_us": 1.0, "digest": digest}


REPORT = {"measured": "2026-01-02", "machine": {"cpu": "a processor", "cores": 2}, "lengths": [length("f32", 4), length("bf16", 3)],
          "layouts": [layout("contiguous", 1, "a"), layout("contiguous", 2, "a"), layout("dealt", 1, "b")],
          "algorithms": [{"characters": 64, "ranks": 8, "algorithm": "ring", "messages": 112, "bytes": 3 << 30, "bytes_between_nodes": 1536, "token_us": 2e6, "digest": "a", "answer": "x"}],
          "confidence": [{"characters": 64, "known": True, "asked": 4, "right": 4, "weight": 0.9, "below": dict.fromkeys(map(str, recall.WEIGHT_LIMITS), 2)}]}


class Recall(unittest.TestCase):

    def test_broken_reports(self):
        changes = [("lengths", {"weight": float("nan")}), ("lengths", {"right": 5}), ("layouts", {"digest": "c"}), ("confidence", {"right": 5}), ("algorithms", {"token_us": -1.0})]
        for name, change in changes:
            broken = copy.deepcopy(REPORT)
            broken[name][0] |= change
            with self.assertRaises(ValueError, msg=str(change)):
                recall.check(broken)
        for name in REPORT:
            with self.assertRaises(ValueError):
                recall.check(REPORT | {name: None})

    def test_the_report_of_the_chapter(self):
        report = recall.measured()
        chapter = (ROOT / "docs" / "IV.6-model.md").read_text(encoding="utf-8")
        for name, make in recall.TABLES.items():
            self.assertIn(f"<!-- table: begin {name}\n", chapter)
            self.assertGreater(len(make(report)), 3)
        self.assertEqual({row["characters"] for row in report["lengths"]}, {4**n for n in range(5, 11)})

    def test_haystack(self):
        text, records = make_haystack.haystack(4096, 5)
        self.assertEqual(len(text), 4096)
        self.assertGreater(len(records), 10)
        for key, value, at in records:
            before = make_haystack.question(key, value)
            self.assertEqual(text[at - len(before):at + len(value) + 1].replace("\n", " "), before.replace("\n", " ") + value + ".")


if __name__ == "__main__":
    unittest.main()
