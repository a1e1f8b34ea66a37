#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/simulated.py: tables follow from the rows, broken rows are refused, and the chapter has the tables of the file."""
import copy
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools"))
import simulated


def row(experiment, algorithm, **values):
    return {"experiment": experiment, "cluster": "h100", "ranks": 8, "keys": 80_000, "batch": 1, "heads": 16, "kv_heads": 16, "head_dim": 128,
            "order": "contiguous", "message_us": 0, "algorithm": algorithm, "computed": False, "latency_us": 36.54, "combine_us": 9.166,
            "messages": 14, "bytes": 1, "bytes_between_nodes": 0, "merge_steps": 3, "peak_kv_bytes": 524_288_000} | values


REPORT = {"model": simulated.MODEL, "rows": [row("schedules", "fused"), row("schedules", "two-level", combine_us=4.5), row("schedules", "fused", ranks=64),
                                             row("schedules", "fused", message_us=0.3, combine_us=5.5), row("schedules", "fused", batch=64, combine_us=7.25),
                                             row("fig_3", "ring", latency_us=833_000.4), row("fig_3", "two-level", order="dealt", latency_us=29.5),
                                             # Seven hops of all keys and values in BF16; four states in F32 from each of eight ranks.
                                             row("fig_3", "ring", keys=5_120_000, bytes=7 * 2 * 2 * 5_120_000 * 2048),
                                             row("fig_3", "paper", keys=5_120_000, bytes=4 * 8 * 4 * 2080), row("fig_4", "ring"),
                                             row("large", "gather", keys=1 << 30, computed=True, latency_us=77.7),
                                             row("large", "fused", keys=1 << 30), row("example", "ring", keys=640_000, latency_us=730.0),
                                             row("example", "fused", keys=640_000, latency_us=35.0, combine_us=5.0)]}


class Simulated(unittest.TestCase):
    def test_tables(self):
        lines = simulated.tables(simulated.check(REPORT))
        self.assertEqual(lines[2:6], ["| algorithm | 8 GPUs | 64 GPUs |", "| --- | ---: | ---: |", "| `two-level` | 4.50 |  |", "| `fused` | 9.17 | 9.17 |"])
        self.assertIn("| algorithm | 80k | 5.12M |", lines)
        self.assertIn("| `ring` | 833.0 ms | 36.5 |", lines)
        self.assertIn("| `two-level`, dealt | 29.5 |  |", lines)
        self.assertIn("| `gather` | 77.7 computed |", lines)
        # Rows of other costs and of other batches have tables of their own.
        self.assertIn("| `fused` | 5.50 |", lines)
        self.assertIn("| `fused` | 7.25 |", lines)
        self.assertIn("| algorithm | 1 node |", lines)
        self.assertIn("| `ring` | 524 |", lines)
        self.assertEqual(simulated.keys_text(1 << 30), "2^30")
        self.assertEqual([simulated.time_text(us) for us in (9999.94, 10_000, 9_999_940, 175_756_000)], ["9999.9", "10.0 ms", "9999.9 ms", "175.8 s"])
        # 30 us of reading, then 7 hops in 700 us.
        self.assertIn("640k keys on 8 H100: a GPU reads its keys and values in 30 us, and the ring moves them to a neighbour in 100 us.", lines[-1])

    def test_volumes_of_the_paper(self):
        # p = 8: a hop moves 2 N d = 2 * 5.12M * 2048 elements; eq. (14) is 2 * 7/8 * 2080 elements, of which 4 states are 2.29 times as many.
        line = next(line for line in simulated.tables(REPORT) if line.startswith("| 8 | "))
        self.assertEqual([cell.strip() for cell in line.split("|")[1:-1]],
                         ["8", "20971520000", "20971520000", "2621440000", "2621440000", "8320", "3640", "2.29", "1.71"])

    def test_broken_rows(self):
        for change in ({"latency_us": float("nan")}, {"latency_us": -1.0}, {"ranks": "8"}, {"combine_us": None},
                       {"order": "reversed"}, {"computed": 1}, {"ranks": True}):
            broken = copy.deepcopy(REPORT)
            broken["rows"][0] |= change
            with self.assertRaises(ValueError, msg=str(change)):
                simulated.check(broken)
        with self.assertRaises(ValueError):
            simulated.check(REPORT | {"rows": REPORT["rows"] * 2})
        with self.assertRaises(ValueError):
            simulated.check(REPORT | {"rows": []})

    def test_the_constants_are_those_of_the_sources(self):
        """The rows come from clusters.cpp and the model backend, the predictions beside them from kPaperCluster."""
        def source(name):
            return re.sub(r"\s+", "", (simulated.DOCS.parent / name).read_text(encoding="utf-8"))

        def numbers(text):
            return [float(number) for number in re.findall(r"[\d.]+(?:e-?\d+)?", text)]

        h100 = simulated.MODEL["h100"]
        links = [(h100[f"{where}_bytes_per_second"], h100[f"{where}_us"]) for where in ("inside", "between")]
        cluster = re.search(r'\{"h100",8,512,\{([^}]*)\},\{([^}]*)\}\}', source("tests/bench/simulated/clusters.cpp"))
        self.assertEqual([numbers(link) for link in cluster.groups()], [[rate, us / 1e6] for rate, us in links])
        paper = re.search(r"kPaperCluster(\{[^;]*);", source("distributed/plan/step_time.hpp"))[1].replace("*kGigabytePerSecond", "")
        self.assertEqual(numbers(paper), [number for rate, us in links for number in (us, rate / 1e9)] + [0, simulated.MODEL["memory_bytes_per_second"] / 1e9])
        rate = re.search(r"kModelBytesPerSecond=([^;]*);", source("tests/support/model_backend.hpp"))[1]
        self.assertEqual(numbers(rate), [simulated.MODEL["memory_bytes_per_second"]])
        pair = simulated.MODEL["rtx4090"]
        cluster = re.search(r'\{"rtx4090",2,1,(\{[^}]*\}),\1\}', source("tests/bench/simulated/clusters.cpp"))
        self.assertEqual(numbers(cluster[1]), [pair["inside_bytes_per_second"], pair["inside_us"] / 1e6])
        cards = re.search(r"kTwoCards(\{[^;]*);", source("docs/tools/schedules.cpp"))[1].replace("*kGigabytePerSecond", "")
        self.assertEqual(numbers(cards), 2 * [pair["inside_us"], pair["inside_bytes_per_second"] / 1e9] + [0, pair["memory_bytes_per_second"] / 1e9])
        self.assertEqual(simulated.read()["model"], simulated.MODEL)

    def test_the_chapter_has_these_tables(self):
        text = simulated.CHAPTER.read_text(encoding="utf-8")
        self.assertEqual(text, simulated.with_tables(text, simulated.tables()))
        with self.assertRaises(ValueError):
            simulated.with_tables("no markers", [])


if __name__ == "__main__":
    unittest.main()
