#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/race.py: figure and table of README.md show measured digests and predicted messages, all of them, and what the program predicts.

Run: tests/docs/test_race.py [--program build/tree_attn]
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools"))
import race

FACTS = json.loads(race.FACTS.read_text(encoding="utf-8"))
RING, TREE = FACTS["schedules"][:2]
PROGRAM = sys.argv.pop(sys.argv.index("--program") + 1) if "--program" in sys.argv else None


class Facts(unittest.TestCase):
    def test_the_drawings_are_those_of_the_facts(self):
        self.assertEqual(list(race.faults()), [])
        changed = json.loads(json.dumps(FACTS))
        changed["schedules"][1]["messages"][0][3] += 1
        for name, path in race.DRAWINGS.items():
            self.assertNotEqual(race.drawing(changed, name), path.read_text(encoding="utf-8"))

    def test_bits_of_tree_and_ring_are_equal_and_those_of_three_all_reduces_are_not(self):
        digests = FACTS["digests"]
        self.assertEqual([each["ranks"] for each in digests], race.RANKS)
        self.assertEqual(len({each[name] for each in digests for name in ("two-level", "ring", "ring-state")}), 1)
        self.assertEqual(len({each["paper"] for each in digests}), len(race.RANKS))

    def test_every_rank_ends_with_all_shards_when_the_schedule_does(self):
        for row in (RING, TREE):
            steps = race.known(row)
            self.assertEqual({each[-1][1] for each in steps.values()}, {row["ranks"]})
            self.assertEqual(max(each[-1][0] for each in steps.values()), max(message[3] for message in row["messages"]))
        # A shard more at every hop of the ring.
        self.assertEqual([n for _, n in race.known(RING)[0]], list(range(1, 9)))

    def test_the_tree_merges_in_nodes_first(self):
        found = list(race.merges(TREE))
        self.assertEqual([(level, index) for level, index, _, _ in found], [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (3, 0)])
        self.assertEqual([crosses for _, _, _, crosses in found], [False] * 6 + [True])
        inside, between = ({us for level, _, us, _ in found if (level == 3) == last} for last in (False, True))
        self.assertEqual((len(inside), between), (1, {max(message[3] for message in TREE["messages"])}))
        self.assertLess(max(inside), min(between))

    def test_the_table_has_a_row_per_schedule(self):
        rows = race.table(FACTS).splitlines()[2:]
        self.assertEqual({row.split("`")[1] for row in rows}, {row["algorithm"] for row in FACTS["schedules"]})
        self.assertEqual(rows[1], "| `ring` | keys and values | 112 | 3.50&nbsp;GiB | 896&nbsp;MiB | 9.44&nbsp;ms | `bd0a8240b41cbe5f` |")


@unittest.skipUnless(PROGRAM, "no program was named with --program")
class Program(unittest.TestCase):
    def test_tree_attn_predict_says_the_same(self):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder, "report.json")
            subprocess.run([PROGRAM, "predict", "--seq-len", str(TREE["keys"]), "--ranks", str(TREE["ranks"]), "--ranks-per-node", str(TREE["per_node"]), "--report", report],
                           check=True, stdout=subprocess.DEVNULL)
            predicted = {run["algorithm"]: run["predicted"] for run in json.loads(report.read_text(encoding="utf-8"))["runs"]}
        for row in FACTS["schedules"]:
            of = predicted[row["algorithm"]]
            self.assertEqual(race.sent(row), (of["messages_per_step"], of["bytes_per_step"], of["bytes_between_nodes_per_step"]))
            self.assertAlmostEqual(row["us"] / of["step_us"], 1, delta=1e-5)


if __name__ == "__main__":
    unittest.main(argv=[word for word in sys.argv if word != "--program"])
