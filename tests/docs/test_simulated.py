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


REPORT = {"model": simulated.MODEL, "rows": [row("schedules", "fused"), row("fig_3", "ring", latency_us=833_000.4)]}


class Simulated(unittest.TestCase):

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
        paper = re.search(r"kPaperCluster(\{[^;]*);", source("distributed/exchange/step_time.hpp"))[1].replace("*kGigabytePerSecond", "")
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
        for broken in ("no markers", f"{simulated.END}\n{simulated.BEGIN}\n", text + simulated.BEGIN):
            with self.assertRaises(ValueError):
                simulated.with_tables(broken, [])


if __name__ == "__main__":
    unittest.main()
