#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/race.py: the figure of README.md is drawn from measured digests and predicted messages, and shows all of them."""
import json
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools"))
import race

FACTS = json.loads(race.FACTS.read_text(encoding="utf-8"))
RING, TREE = FACTS["schedules"]


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
        self.assertEqual(len({each[name] for each in digests for name in ("two-level", "ring")}), 1)
        self.assertEqual(len({each["paper"] for each in digests}), len(race.RANKS))

    def test_every_rank_ends_with_all_shards_when_the_schedule_does(self):
        for row in (RING, TREE):
            steps = race.known(row)
            self.assertEqual({each[-1][1] for each in steps.values()}, {row["ranks"]})
            self.assertEqual(max(each[-1][0] for each in steps.values()), max(message[3] for message in row["messages"]))
        # A shard more at every hop of the ring.
        self.assertEqual([n for _, n in race.known(RING)[0]], list(range(1, 9)))

    def test_the_clock(self):
        clock = race.Clock(27.0, 9000.0)
        parts = [clock.part(us) for us in (0, 13.5, 27.0, 9000.0)]
        seconds = [part * clock.seconds for part in parts]
        for got, want in zip(seconds, (0, race.SLOW / 2, race.SLOW, race.SLOW + race.FAST)):
            self.assertAlmostEqual(got, want)

    def test_key_times_grow(self):
        for values in re.findall(r'keyTimes="([^"]*)"', race.drawing(FACTS, "light")):
            times = [float(value) for value in values.split(";")]
            self.assertEqual(times, sorted(times), values)
            self.assertEqual(times[0], 0)
            self.assertLessEqual(times[-1], 1)


if __name__ == "__main__":
    unittest.main()
