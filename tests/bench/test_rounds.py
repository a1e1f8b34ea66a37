#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/bench/decode_rounds.py: ratios are paired, and wrong results stop the benchmark."""
import pathlib
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import decode_rounds


class Rounds(unittest.TestCase):
    def test_ratios_are_paired_within_a_round(self):
        # The machine is ten times slower in the second round; the ratio of medians would be 0.2.
        times = {"read": [[1, 1], [10, 30], [1, 2]], "decode": [[2, 4], [20, 60], [5, 5]]}
        self.assertEqual(decode_rounds.ratios([times], "read", "decode"),
                         {"cpu": 0.5, "cpu_range": [0.5, 0.5], "wall": 0.4, "wall_range": [0.4, 0.4]})

    def test_a_start_counts_once(self):
        # Two of three starts are fast, the slow one has the most rounds; all rounds together would have a median of 0.2.
        starts = [{"read": [[1, 1]] * n, "decode": [[of_read, 2]] * n} for n, of_read in ((1, 2), (5, 5), (1, 1))]
        self.assertEqual(decode_rounds.ratios(starts, "read", "decode"),
                         {"cpu": 0.5, "cpu_range": [0.2, 1], "wall": 0.5, "wall_range": [0.5, 0.5]})

    def test_another_result_stops_the_benchmark(self):
        def check(of_decode, of_plain):
            answers = {"decode": of_decode, "plain": of_plain}
            worker = mock.Mock(ask=lambda request, program, *_: answers[program])
            decode_rounds.check_results({}, {"read": worker, "decode": worker, "plain": worker})

        check("1 -2", "1.09 -2")
        for of_decode, of_plain in (("1 -2", "1.2 -2"), ("1 -2", "1"), ("1 -2", "nan -2"), ("nan -2", "nan -2"), ("inf 1", "inf 1"), ("0 0", "0 0")):
            with self.assertRaisesRegex(SystemExit, "^bench: .* different results"):
                check(of_decode, of_plain)

    def test_the_first_case_of_a_type_is_its_largest(self):
        size = {}
        for case in decode_rounds.CASES:
            n = (2 * case["kv_heads"] * case["keys"] + case["heads"] * case["queries"]) * case["head_dim"]
            self.assertLessEqual(n, size.setdefault(case["dtype"], n))


if __name__ == "__main__":
    unittest.main()
