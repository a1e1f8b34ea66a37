#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/bench/decode_rounds.py: ratios are paired, and wrong results stop the benchmark; tests/bench/peers.py: what is missing is said in one line."""
import collections
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import decode_rounds
import peers


class Fake:
    """A worker that answers as it was told to: {request: [answer, ...]}."""

    def __init__(self, answers):
        self.answers = {request: collections.deque(lines) for request, lines in answers.items()}

    def ask(self, *words):
        return self.answers[" ".join(map(str, words[:2]))].popleft()


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

    def test_a_case(self):
        case = dict(decode_rounds.CASES[0])
        worker = Fake({"case F32": ["257 256 0 1\n"], "result decode": ["1 -2\n"], "result plain": ["1.01 -2\n"], "result Eigen": ["1 -2.01\n"],
                       "time read": ["1 1\n"] * 3, "time decode": ["2 4\n"] * 3, "time arithmetic": ["1 3\n"] * 3, "time fused": ["0.5 1\n"] * 3, "time plain": ["1 2\n"] * 3, "time Eigen": ["4 2\n"] * 3})
        measured = decode_rounds.compare(case, [decode_rounds.time_case(case, [worker], 3, lambda names: names[::-1])])

        def ratio(cpu, wall):
            return {"cpu": cpu, "cpu_range": [cpu, cpu], "wall": wall, "wall_range": [wall, wall]}

        self.assertEqual(case["of_key"], {"multiplies": 257, "adds": 256, "conversions": 0, "exponentials": 1})
        self.assertEqual(measured, case | {"of_arithmetic": {"decode": ratio(0.5, 0.75)}, "of_fused": {"decode": ratio(0.25, 0.25)}, "of_read": {"decode": ratio(0.5, 0.25), "plain": ratio(1, 0.5), "Eigen": ratio(0.25, 0.5)},
                                           "times_faster": {"plain": ratio(0.5, 0.5), "Eigen": ratio(2, 0.5)}})
        self.assertFalse(any(worker.answers.values()))

    def test_another_result_stops_the_benchmark(self):
        def check(of_decode, of_plain):
            worker = Fake({"result decode": [of_decode], "result plain": [of_plain]})
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


class Peers(unittest.TestCase):
    def said(self, free, installs):
        """What python_with_torch() answers or says with so many bytes free where pip fails or not."""
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(peers, "ENVIRONMENT", pathlib.Path(folder, "build-peers")), \
                mock.patch.object(peers.shutil, "disk_usage", return_value=mock.Mock(free=free)), \
                mock.patch.object(peers.subprocess, "run") as run, mock.patch.object(peers.sys, "stderr"):
            installed = []

            def command(words, **_):
                words = list(map(str, words))
                if "pip" in words:
                    source = "cpu" if "--index-url" in words else "default"
                    installed.extend([source] if source in installs else [])
                    return mock.Mock(returncode=int(source not in installs), stderr=f"first line\nno route to {source}\n")
                return mock.Mock(returncode=0 if "venv" in words or installed else 1)

            run.side_effect = command
            try:
                return str(peers.python_with_torch().relative_to(folder)), installed
            except SystemExit as stop:
                return str(stop), installed

    def test_the_smaller_source_comes_first(self):
        self.assertEqual(self.said(1e12, ["cpu", "default"]), ("build-peers/bin/python", ["cpu"]))
        self.assertEqual(self.said(1e12, ["default"]), ("build-peers/bin/python", ["default"]))

    def test_what_is_missing(self):
        text, installed = self.said(2e9, ["cpu", "default"])
        self.assertEqual(installed, [])
        self.assertEqual(text, "bench: no PyTorch for --peers: from download.pytorch.org it takes 3 GB in build-peers/, 2 GB are free; "
                               "from the default registry it takes 10 GB in build-peers/, 2 GB are free")
        text, installed = self.said(4e9, ["default"])
        self.assertEqual(installed, [])
        self.assertIn("download.pytorch.org: no route to cpu; from the default registry it takes 10 GB", text)
        self.assertNotIn("\n", text)


if __name__ == "__main__":
    unittest.main()
