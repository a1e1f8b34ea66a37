#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The predicted times: how long the chains of a join are, and what follows from counts that are known."""
import json
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools"))
import predicted_times


class Predicted(unittest.TestCase):
    def test_a_chain_has_the_parts_of_a_group_and_what_the_other_groups_left(self):
        self.assertEqual([predicted_times.chain(*shape, 4) for shape in ((1, 4, 128), (1, 8, 128), (1, 16, 128), (4, 16, 128), (8, 16, 128), (1, 8, 256))], [4, 5, 7, 16, 32, 5])
        self.assertEqual([predicted_times.chain(*shape, 8) for shape in ((1, 16, 128), (4, 16, 128), (8, 16, 128))], [7, 9, 16])

    def test_a_time_is_the_read_and_the_instructions_of_the_start_of_the_last_pass_and_of_the_ends(self):
        walk = {"kernel": "equal_runs", "architecture": "sm_90a", "worker": "MmaTile<BFloat16, 128, 8>", "rows": "tensor map", "start": 100, "pass": 200, "arrival": 300, "exit": 400, "state": 50}
        line = {"shape": "BF16, 32/8 heads, 8k keys", "step": "short-end", "read_seconds": 1e-5, "graph_seconds": 3e-5, "apart_seconds": 2e-5}
        (name, read, before, predicted), = predicted_times.seconds(("BF16", "32/8", 4, 16, 4), [walk | {"rows": "loaded"}, walk], [line, line | {"step": "copies"}, line | {"shape": "BF16, 8/8 heads, 8k keys"}])
        self.assertEqual((name, read, before), (line["shape"], 1e-5, 2e-5))
        self.assertAlmostEqual(predicted - read - predicted_times.FIXED, (1000 + (2 + 8) * 50) * predicted_times.CYCLES / predicted_times.CLOCK)

    def test_eight_queries_cost_a_tenth_more_than_one_while_the_memory_binds(self):
        counted, card = (json.loads((predicted_times.ROOT / "docs" / name).read_text(encoding="utf-8")) for name in ("kernel_instructions.json", "card.json"))
        found = {(dtype, group, keys): factor for dtype, group, keys, _, factor in predicted_times.factors(counted["walks"], card["lines"])}
        self.assertTrue(all(1 < found["BF16", group, keys] <= 1.1 for group in (1, 2) for keys in ("8k", "64k")), found)
        # Four warps on one leaf multiply for longer than it takes to come; every row of F32 requests it again.
        self.assertTrue(all(1.1 < found["BF16", 4, keys] < 2 and 6 < found["F32", group, keys] <= 8 for group in (1, 2, 4) for keys in ("8k", "64k")), found)

    def test_a_query_tile_has_up_to_four_tiles_of_rows_and_reads_its_keys_once(self):
        walk = {"worker": "MmaTile<BFloat16, 128, 8>", "start": 0, "pass": 0, "leaf": 100, "arrival": 0, "exit": 0, "state": 0}
        read = [round((predicted_times.step(walk, 1, rows, 65536, 1) - predicted_times.FIXED), 6) for rows in (8, 16, 32, 33, 64, 65)]
        self.assertEqual(read, [1, 1, 1, 2, 2, 3])
        walked = [predicted_times.step(walk, 1, rows, 65536, 0) - predicted_times.FIXED for rows in (8, 9, 16, 17, 32)]
        self.assertEqual([round(each / walked[0], 6) for each in walked], [1, 2, 2, 4, 4])

    def test_no_prediction_is_below_the_read(self):
        rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in predicted_times.table()[2:]]
        self.assertGreater(len(rows), 8)
        self.assertTrue(all(float(row[1].split()[0]) < float(row[3].split()[0]) and float(row[4]) < 1 for row in rows), rows)

    def test_latent_rows_are_walked_by_as_many_blocks_as_are_joined_in_the_time_that_they_save(self):
        walk = {"start": 0, "pass": 0, "leaf": 100, "arrival": 0, "exit": 0, "state": 0}
        leaf = 100 * predicted_times.CYCLES / predicted_times.CLOCK
        read, walked, step = predicted_times.latent(walk, 8, 8192)
        self.assertAlmostEqual(read, 2.55e-6 + 8192 * 1152 / 4.68e12)
        self.assertAlmostEqual(walked, 3 * leaf)  # 128 leaves, 48 blocks
        self.assertAlmostEqual(step, read + 1.5 * predicted_times.FIXED)
        self.assertAlmostEqual(predicted_times.latent(walk, 128, 8192)[1], 8 * 1.23 * leaf)  # 16 blocks for each of 8 query tiles
        # Two tiles of eight rows in 512 slices each, twice as many as threads, of a team of 8 and 6 teams.
        states = predicted_times.latent(walk | {"state": 1}, 16, 8192)[2] - predicted_times.latent(walk, 16, 8192)[2]
        self.assertAlmostEqual(states, 2 * 2 * (8 + 6) * predicted_times.CYCLES / predicted_times.CLOCK)


if __name__ == "__main__":
    unittest.main()
