#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/kernel_figures.py: the bars of the ladder are the bytes of its steps, and a time only where this kernel was measured."""
import copy
import json
import os
import pathlib
import re
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import kernel_figures
import kernel_tables

STEPS = [name for _, name, *_ in kernel_tables.steps()]


def measured_record(steps):
    record = copy.deepcopy(kernel_tables.RECORD)
    line = next(line for line in record["lines"] if line["shape"] == "BF16, 16/16 heads, 8k keys")
    record["lines"] = [line | {"step": name, "shape": f"BF16, {heads} heads, 8k keys", "graph_seconds": 1e-4} for name in steps for heads in ("16/16", "32/8")]
    return record


class Steps(unittest.TestCase):
    def test_a_lower_bound_is_no_expectation_and_multiples_are_those_of_the_read(self):
        record = measured_record(["naive"])
        svg, read = kernel_figures.steps(record), record["lines"][0]["read_seconds"]
        self.assertNotIn("expected", svg)
        self.assertEqual(svg.count(f"100 µs, {1e-4 / read:.2f} times the read; floor"), 2)
        rows = [line.split(" | ") for line in kernel_tables.ladder()[2:]]
        self.assertEqual([row[3].strip() for row in rows[1:]], ["14.4&nbsp;µs"] * (len(STEPS) - 1))
        self.assertNotIn("–", [row[4].strip(" |") for row in rows])
        with mock.patch.dict(kernel_tables.CARD, lines=[{"shape": "BF16, 16/16 heads, 8k keys", "step": "naive", "graph_seconds": 1e-3, "apart_seconds": 2e-3, "read_seconds": 2e-5}]):
            self.assertIn("2 ms, 100 times the read", kernel_tables.ladder()[2])


class WarpLeaf(unittest.TestCase):
    ROWS = [range(begin, begin + 8) for begin in range(0, 64, 8)]
    RUN = {"lane": 5, "first": [4 * lane for lane in range(32)], "held": [0x30, 0xF0, 0xFF, 0xFFFF, 0xFFFFFFFF],
           "events": [event for rows in ROWS for event in (*(["K", a] for a in rows), *(["x", a] for a in rows for _ in range(5)), *(["V", a] for a in rows), *(["+", a] for a in rows))]}

    def test_what_a_lane_has_after_each_exchange_is_what_was_recorded(self):
        svg = kernel_figures.warp_leaf({"warp_leaf": self.RUN})
        rows = {y: svg.count(f'class="b" x="{342 + 8 * 5}" y="{y}"') for y in range(48, 138, 15)}
        self.assertEqual(rows, {y: 1 for y in rows})
        self.assertEqual(sum(len(re.findall(rf'class="b" x="[0-9]+" y="{y}" width="7" height="13"', svg)) for y in rows), 1 + 2 + 4 + 8 + 16 + 32)
        self.assertIn("lane 5: elements 20 to 23", svg)

    def test_another_order_is_an_error(self):
        events = [*self.RUN["events"]]
        events[60], events[61] = events[61], events[60]
        for wrong in (events, events[:-1], [*self.RUN["events"], self.RUN["events"][-1]]):
            with self.assertRaises(ValueError):
                kernel_figures.warp_leaf({"warp_leaf": self.RUN | {"events": wrong}})


class Fibers(unittest.TestCase):
    def test_one_fiber_runs_at_a_time_and_all_meet_before_any_goes_on(self):
        order = [[thread, part] for part in range(3) for thread in (3, 1, 0, 2, 7, 6, 5, 4)]
        svg = kernel_figures.fibers({"fibers": {"0": order}})
        places = re.findall(r'class="[abc]" x="(\d+)"', svg)
        self.assertEqual((len(places), len(set(places))), (24, 24))
        with self.assertRaises(ValueError):
            kernel_figures.fibers({"fibers": {"0": order[1:9] + order[:1] + order[9:]}})


class Tile(unittest.TestCase):
    DATA = {"tile": [[lane, lane % 4 * 2 + slot, lane // 4 + 8 * c] for lane in range(32) for slot in range(2) for c in range(2)],
            "transposed": [[8 * row + lane // 4 for row in (2 * (lane % 4), 2 * (lane % 4) + 1)] for lane in range(32)]}

    def test_the_weights_are_drawn_in_the_lanes_of_both_products(self):
        labels = re.findall(r">(\d+)</text>", kernel_figures.tile(self.DATA))
        grids = [[int(label) for label in labels[begin:end]] for begin, end in ((0, 64), (64, 128))]
        self.assertEqual(grids, [[4 * key + query // 2 for key in range(8) for query in range(8)], [4 * query + key // 2 for key in range(8) for query in range(8)]])

    def test_weights_that_stay_in_their_lanes_are_an_error(self):
        with self.assertRaises(ValueError):
            kernel_figures.tile(self.DATA | {"transposed": [[2 * lane, 2 * lane + 1] for lane in range(32)]})


class Instructions(unittest.TestCase):
    def test_the_counts_of_a_build_come_before_those_that_are_recorded(self):
        walk = {"kernel": "equal_runs", "architecture": "sm_90a", "worker": "SubWarp<float, 32, 1>", "rows": "bulk", "start": 345, "arrival": 320, "exit": 280, "state": 80, "pass": 1, "leaf": 4321, "per_8_kib": 1,
                "hot_bytes": 2048, "loop_bytes": 1, "kernel_bytes": 4096, "registers": 99, "stack": 0}
        large = walk | {"kernel": "one_shot", "worker": "MmaTile<Half, 64, 4>", "hot_bytes": 40 * 1024}
        recorded = kernel_tables.instructions()
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TREE_ATTN_DOCS_RESOURCES"] = folder
            try:
                self.assertEqual(kernel_tables.instructions(), recorded)
                counted = pathlib.Path(folder) / "tests" / "gpu" / "kernel_instructions.json"
                counted.parent.mkdir(parents=True)
                counted.write_text(json.dumps({"compiler": "nvcc 99", "walks": [walk, large, large | {"architecture": "sm_80", "hot_bytes": 49 * 1024}]}), encoding="utf-8")
                shown = kernel_tables.instructions()
            finally:
                del os.environ["TREE_ATTN_DOCS_RESOURCES"]
        self.assertEqual([line for line in shown if line.startswith("| `")],
                         ["| `SubWarp<float, 32, 1>` | bulk | sm_90a | 345 | 320, 280, 80 | 4321 | 1 | 768 | 2.0 KiB | 4 KiB | 99 |"])
        self.assertIn("nvcc 99", shown[0])
        largest = "`one_shot` with `MmaTile<Half, 64, 4>`, rows by bulk."
        self.assertEqual(shown[-2:], [f"* sm_80: 1 walks of all kernels, 1 with more than 40 KiB of hot code. The largest has 49.0 KiB: {largest}",
                                      f"* sm_90a: 2 walks of all kernels, none with more than 40 KiB of hot code. The largest has 40.0 KiB: {largest}"])


if __name__ == "__main__":
    unittest.main()
