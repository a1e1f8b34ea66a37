#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/decode_speed.py: what was measured becomes a table and a figure, and a broken file is refused."""
import copy
import json
import math
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import decode_speed


def ratio(cpu, wall):
    return {"cpu": cpu, "cpu_range": [cpu - 0.01, cpu + 0.02], "wall": wall, "wall_range": [wall, wall]}


CASE = {"dtype": "F32", "keys": 512, "heads": 16, "kv_heads": 16, "head_dim": 128, "threads": 1,
        "of_read": {"decode": ratio(0.9, 0.8), "plain": ratio(0.45, 0.4), "Eigen": ratio(0.3, 0.2)},
        "times_faster": {"plain": ratio(2, 2.1), "Eigen": ratio(3, 4)},
        "of_key": {"multiplies": 257, "adds": 256, "conversions": 0, "exponentials": 1},
        "of_arithmetic": {"decode": ratio(0.6, 0.7)}, "of_fused": {"decode": ratio(0.3, 0.35)}}
GROUPED = {"dtype": "BF16", "keys": 65536, "queries": 8, "heads": 16, "kv_heads": 4, "head_dim": 128, "threads": 2,
           "of_read": {"decode": ratio(0.5, 0.6), "plain": ratio(0.1, 0.15)},
           "times_faster": {"plain": ratio(5, 4)}}
REPORT = {"date": "2026-11-21", "processor": "a processor", "cores": 2, "versions": {"compiler": "GNU 12.2.0", "Eigen": "3.4.0"},
          "starts": 5, "rounds": 7, "huge_pages": 1.0, "cases": [CASE, GROUPED]}


class Measured(unittest.TestCase):
    def test_the_table(self):
        self.assertEqual(decode_speed.table(decode_speed.check(REPORT)), [
            "Measured 2026-11-21, a processor, 2 cores, GNU 12.2.0, Eigen 3.4.0; pages of 2 MiB; "
            "medians over 5 starts of 7 rounds; in brackets, the range over the starts.",
            "",
            "| batch 1, one query | counted per key and group | of read, CPU time | of read, wall time | of multiplies and adds | of them fused | relative to two loops | relative to Eigen |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
            "| F32, 16 heads of 128, 512 keys | 257 multiplies, 256 adds, 1 exponentials | 0.90 (0.89 to 0.92) | 0.80 (0.80 to 0.80) | 0.60 | 0.30 | 2.00 | 3.00 |",
            "| BF16, 16 heads of 128 over 4 kv heads, 65536 keys, 8 causal queries, 2 threads |  | 0.50 (0.49 to 0.52) | 0.60 (0.60 to 0.60) |  |  | 4.00 |  |",
        ])

    def test_small_pages_are_said(self):
        self.assertIn("; pages of 4 KiB, in part;", decode_speed.setting(REPORT | {"huge_pages": 0.5}))

    def test_the_figure_has_a_bar_per_program_and_case(self):
        root = xml.etree.ElementTree.fromstring(decode_speed.figure(REPORT))
        boxes = [element for element in root.iter() if element.tag.endswith("rect")]
        legend = 1 + len(decode_speed.baselines(REPORT))
        self.assertEqual(len(boxes), legend + 3 + 2)
        widths = [float(box.get("width")) for box in boxes[legend:]]
        self.assertAlmostEqual(widths[1] / widths[0], 0.5, 9)
        self.assertAlmostEqual(widths[3] / widths[0], 0.6 / 0.9, 9)

    def test_a_broken_report(self):
        def fault(change):
            report = copy.deepcopy(REPORT)
            change(report)
            with self.assertRaises(ValueError) as raised:
                decode_speed.check(report)
            return str(raised.exception)

        self.assertIn("'rounds' is missing", fault(lambda report: report.pop("rounds")))
        self.assertIn("'starts' is missing", fault(lambda report: report.pop("starts")))
        self.assertIn("'cores' is missing or of another type", fault(lambda report: report.update(cores="2")))
        self.assertIn("no compiler", fault(lambda report: report["versions"].pop("compiler")))
        self.assertIn("there is no case", fault(lambda report: report.update(cases=[])))
        self.assertIn("measured twice", fault(lambda report: report["cases"].append(CASE)))
        self.assertIn("'heads' of a case", fault(lambda report: report["cases"][0].update(heads=0)))
        self.assertIn("F8 is no type", fault(lambda report: report["cases"][0].update(dtype="F8")))
        self.assertIn("'of_read' is of the decode", fault(lambda report: report["cases"][1]["of_read"].pop("decode")))
        self.assertIn("'of_read' is of the decode", fault(lambda report: report["cases"][0]["of_read"].pop("Eigen")))
        self.assertIn("no baseline 'other'", fault(lambda report: [report["cases"][0][key].update(other={"cpu": 1, "wall": 1}) for key in ("of_read", "times_faster")]))
        for value in (0, -1, math.nan, math.inf, None, "1"):
            self.assertIn("F32, 16 heads of 128, 512 keys: a ratio in wall time", fault(lambda report: report["cases"][0]["times_faster"]["plain"].update(wall=value)))

        for span in (None, [0.9], [0.91, 0.92], [0.8, 0.89]):
            self.assertIn("0.9 in cpu time is not in the range", fault(lambda report: report["cases"][0]["of_read"]["decode"].update(cpu_range=span)))

    def test_a_broken_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "decode_speed.json")
            path.write_text(json.dumps(REPORT), encoding="utf-8")
            self.assertEqual(decode_speed.read(path), REPORT)
            path.write_text(json.dumps(REPORT)[:-1], encoding="utf-8")
            with self.assertRaisesRegex(ValueError, "^decode_speed.json: "):
                decode_speed.read(path)


class Readme(unittest.TestCase):
    def test_lines_take_the_place_of_those_between_the_markers(self):
        text = f"before\n{decode_speed.BEGIN}\nold\n{decode_speed.END}\nafter\n"
        self.assertEqual(decode_speed.with_measurements(text, ["a", "b"]), f"before\n{decode_speed.BEGIN}\na\nb\n{decode_speed.END}\nafter\n")

    def test_markers_that_are_missing_or_swapped(self):
        for text in ("", decode_speed.BEGIN, decode_speed.END + decode_speed.BEGIN, 2 * (decode_speed.BEGIN + decode_speed.END)):
            with self.assertRaises(ValueError):
                decode_speed.with_measurements(text, [])

    def test_it_has_the_table_of_what_was_measured_last(self):
        readme = (ROOT / "docs" / "measured.md").read_text(encoding="utf-8")
        table = "\n".join(decode_speed.table(decode_speed.read()))
        self.assertIn(f"{decode_speed.BEGIN}\n{table}\n", readme)


if __name__ == "__main__":
    unittest.main()
