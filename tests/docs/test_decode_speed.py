#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/decode_speed.py: what was measured becomes a table and a figure, and a broken file is refused."""
import copy
import math
import pathlib
import re
import sys
import unittest

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

    def test_a_broken_report(self):
        def fault(change):
            report = copy.deepcopy(REPORT)
            change(report)
            with self.assertRaises(ValueError) as raised:
                decode_speed.check(report)
            return str(raised.exception)

        self.assertIn("'starts' is missing", fault(lambda report: report.pop("starts")))
        self.assertIn("'cores' is missing or of another type", fault(lambda report: report.update(cores="2")))
        self.assertIn("'versions' names no compiler", fault(lambda report: report["versions"].pop("compiler")))
        self.assertIn("measured twice", fault(lambda report: report["cases"].append(CASE)))
        self.assertIn("F8 is no type", fault(lambda report: report["cases"][0].update(dtype="F8")))
        self.assertIn("'of_read' is of the decode", fault(lambda report: report["cases"][1]["of_read"].pop("decode")))
        self.assertIn("'of_read' is of the decode", fault(lambda report: report["cases"][0]["of_read"].pop("Eigen")))
        self.assertIn("no baseline 'other'", fault(lambda report: [report["cases"][0][key].update(other={"cpu": 1, "wall": 1}) for key in ("of_read", "times_faster")]))
        for value in (0, -1, math.nan, math.inf, None, "1"):
            self.assertIn("F32, 16 heads of 128, 512 keys: a ratio in wall time", fault(lambda report: report["cases"][0]["times_faster"]["plain"].update(wall=value)))

        for span in (None, [0.9], [0.91, 0.92], [0.8, 0.89]):
            self.assertIn("0.9 in cpu time is not in the range", fault(lambda report: report["cases"][0]["of_read"]["decode"].update(cpu_range=span)))

    def test_bars_are_of_the_clock_of_their_case(self):
        """CPU time of one thread, wall time of two: this decode, then each baseline that was measured."""
        svg = decode_speed.figure(REPORT)  # after 0.25 and 0.75 of the axis
        self.assertEqual(re.findall(r">(\d\.\d\d)</text>", svg)[2:], ["0.90", "0.45", "0.30", "0.60", "0.15"])


class Readme(unittest.TestCase):

    def test_the_figure_has_room_for_what_it_draws(self):
        """With every baseline, since a legend wider than the figure is cut off."""
        svg = decode_speed.figure(decode_speed.read())
        width = float(re.search(r'width="(\d+)"', svg)[1])
        places = [float(x) for x in re.findall(r'<(?:rect|text)[^>]* x="([\d.]+)"', svg)]
        self.assertGreater(len(places), 20)
        self.assertLess(max(places), width - 20)

    def test_it_has_the_table_of_what_was_measured_last(self):
        readme = (ROOT / "docs" / "measured.md").read_text(encoding="utf-8")
        table = "\n".join(decode_speed.table(decode_speed.read()))
        self.assertIn(f"{decode_speed.BEGIN}\n{table}\n", readme)


if __name__ == "__main__":
    unittest.main()
