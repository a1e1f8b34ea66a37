#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/kernel_figures.py: facts in another order than the book says are errors."""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import kernel_figures



class Calls(unittest.TestCase):
    def test_the_build_gives_every_script_the_files_that_it_takes(self):
        calls = re.findall(r"^tree_attn_figures\(\w+ (\w+\.py)([^)]*)\)", (ROOT / "docs" / "CMakeLists.txt").read_text(encoding="utf-8"), re.MULTILINE)
        self.assertGreater(len(calls), 5)
        for script, given in calls:
            taken = re.search(rf"^(?:Run:|    ) docs/tools/{script} ((?:[\w/]+\.json )*)FOLDER", (ROOT / "docs" / "tools" / script).read_text(encoding="utf-8"), re.MULTILINE)
            self.assertIsNotNone(taken, script)
            self.assertEqual(len(given.split()), len(taken[1].split()), script)


class WarpLeaf(unittest.TestCase):
    ROWS = [range(begin, begin + 8) for begin in range(0, 64, 8)]
    RUN = {"lane": 5, "first": [4 * lane for lane in range(32)], "held": [0x30, 0xF0, 0xFF, 0xFFFF, 0xFFFFFFFF],
           "events": [event for rows in ROWS for event in (*(["K", a] for a in rows), *(["x", a] for a in rows for _ in range(5)), *(["V", a] for a in rows), *(["+", a] for a in rows))]}

    def test_another_order_is_an_error(self):
        kernel_figures.warp_leaf({"warp_leaf": self.RUN})
        events = [*self.RUN["events"]]
        events[60], events[61] = events[61], events[60]
        for wrong in (events, events[:-1], [*self.RUN["events"], self.RUN["events"][-1]]):
            with self.assertRaises(ValueError):
                kernel_figures.warp_leaf({"warp_leaf": self.RUN | {"events": wrong}})


class Fibers(unittest.TestCase):
    def test_one_fiber_runs_at_a_time_and_all_meet_before_any_goes_on(self):
        order = [[thread, part] for part in range(3) for thread in (3, 1, 0, 2, 7, 6, 5, 4)]
        kernel_figures.fibers({"fibers": {"0": order}})
        with self.assertRaises(ValueError):
            kernel_figures.fibers({"fibers": {"0": order[1:9] + order[:1] + order[9:]}})


class Tile(unittest.TestCase):
    DATA = {"tile": [[lane, lane % 4 * 2 + slot, lane // 4 + 8 * c] for lane in range(32) for slot in range(2) for c in range(2)],
            "transposed": [[8 * row + lane // 4 for row in (2 * (lane % 4), 2 * (lane % 4) + 1)] for lane in range(32)]}

    def test_weights_that_stay_in_their_lanes_are_an_error(self):
        kernel_figures.tile(self.DATA)
        with self.assertRaises(ValueError):
            kernel_figures.tile(self.DATA | {"transposed": [[2 * lane, 2 * lane + 1] for lane in range(32)]})


if __name__ == "__main__":
    unittest.main()
