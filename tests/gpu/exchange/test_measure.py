#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The experiments of `./run bench --nccl` with a program that is made up: right answers, wrong ones, and what is not there."""
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
FOLDER = Path(__file__).resolve().parent
loader = importlib.machinery.SourceFileLoader("measure", str(FOLDER / "measure"))
measure = importlib.util.module_from_spec(importlib.util.spec_from_loader("measure", loader))
sys.modules["measure"] = measure
loader.exec_module(measure)

# A tree_attn: every algorithm of the command line gets a report; WRONG is one whose digest is another on several ranks.
PROGRAM = """#!/usr/bin/env python3
import json, os, sys, time
words = sys.argv[1:]
def value(name, otherwise=""):
    return words[words.index(name) + 1] if name in words else otherwise
if "--help" in words:
    for name in "two-level gather leaders ring ring-state paper packed fused".split() + os.environ.get("MORE", "").split():
        print(f"                              {name}: of its kind")
    sys.exit(0)
if words[0] == "info":
    sys.exit(0)
ranks = int(os.environ.get("RANKS", "1"))
if "--devices" in words:
    ranks = int(value("--devices").partition("-")[2]) + 1
if os.environ.get("REFUSED") and ranks > 1:
    sys.exit("tree_attn: " + os.environ["REFUSED"])
if "--timeout" in words:
    print("tree_attn: " + os.environ.get("LINE", "rank 1 has not answered for 3 s"), file=sys.stderr)
    sys.exit(int(os.environ.get("STATUS", "2")))
names = [value("--algorithm")] + [name for name in value("--compare").split(",") if name]
runs = [{"algorithm": name, "output_digest": "other" if ranks > 1 and name == os.environ.get("WRONG") else "same",
         "same_bits_on_all_ranks": ranks == 1 or name != os.environ.get("TORN"), "latency_us": {"median": 30}, "combine_us": {"median": 4}} for name in names]
open(value("--report"), "w").write(json.dumps({"runs": runs}))
"""
MPIRUN = """#!/bin/sh
if [ "$1" = --version ]; then echo "mpirun (Open MPI) 0"; exit; fi
while [ "$1" != -n ]; do shift; done
RANKS=$2
export RANKS
shift 2
exec "$@"
"""


class Experiments(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        for name, text in (("tree_attn", PROGRAM), ("mpirun", MPIRUN)):
            (Path(self.folder.name) / name).write_text(text)
            (Path(self.folder.name) / name).chmod(0o755)

    def answers(self, experiment, backend="emulated", **variables):
        os.environ.update(variables)
        try:
            folder = Path(self.folder.name)
            return list(experiment(measure.Program(folder / "tree_attn", backend, str(folder / "mpirun")), True))
        finally:
            for name in variables:
                del os.environ[name]

    def test_bits_that_differ_are_found(self):
        self.assertEqual([(answer.good, answer.found) for answer in self.answers(measure.bits)], [(True, "5 algorithms, 0 differ")] * 3)
        self.assertEqual([(answer.good, answer.found) for answer in self.answers(measure.bits, WRONG="ring")], [(False, "differ: ring")] * 3)
        self.assertEqual([answer.good for answer in self.answers(measure.bits, TORN="gather")], [False] * 3)
        self.assertEqual([answer.good for answer in self.answers(measure.long_run)], [True])
        self.assertEqual([answer.good for answer in self.answers(measure.long_run, WRONG="two-level")], [False])

    def test_one_shot_runs_where_it_is_built_in_and_has_gpus(self):
        self.assertEqual([answer.good for answer in self.answers(measure.bits, MORE="one-shot")], [True] * 9)
        self.assertEqual([answer.good for answer in self.answers(measure.bits, MORE="one-shot", WRONG="one-shot")], [True, False, False] * 3)
        self.assertEqual([answer.good for answer in self.answers(measure.long_run, MORE="one-shot", WRONG="one-shot")], [True, False, False])
        self.assertEqual(self.answers(measure.host_windows), [])
        self.assertEqual([answer.good for answer in self.answers(measure.host_windows, MORE="one-shot")], [True, True])
        self.assertEqual([answer.good for answer in self.answers(measure.host_windows, MORE="one-shot", WRONG="one-shot")], [False, False])
        program = measure.Program(Path(self.folder.name) / "tree_attn", "cuda", str(Path(self.folder.name) / "mpirun"))
        program.help = "  one-shot: one launch"
        os.environ["REFUSED"] = "--backend cuda: no GPU for rank 1 on a: its machine has 1"
        try:
            self.assertEqual([answer.good for answer in measure.one_shot(program, "bits", "2 ranks", 2, [], "same")], [None, None])
            os.environ["REFUSED"] = "something else"
            with self.assertRaisesRegex(measure.Wrong, "something else"):
                list(measure.one_shot(program, "bits", "2 ranks", 2, [], "same"))
        finally:
            del os.environ["REFUSED"]

    def test_times_are_of_a_gpu_alone(self):
        self.assertTrue(all(answer.values == {} and answer.found == "ran" for answer in self.answers(measure.cost)))
        timed = self.answers(measure.cost, backend="cuda")
        self.assertEqual({(answer.found, answer.good) for answer in timed}, {("step 30.0 us, combine 4.0 us", None)})

    def test_nccl_is_right_wrong_or_not_there(self):
        self.assertEqual([answer.good for answer in self.answers(measure.nccl)], [None])
        self.assertEqual([answer.good for answer in self.answers(measure.nccl, backend="cuda")], [True] * 7)
        wrong = self.answers(measure.nccl, backend="cuda", WRONG="gather")
        self.assertEqual([answer.good for answer in wrong], [True, False] + [True] * 5)
        refused = self.answers(measure.nccl, backend="cuda", REFUSED="--transport nccl: not supported by this version; use mpi")
        self.assertEqual([answer.good for answer in refused], [None])
        self.assertEqual([answer.good for answer in self.answers(measure.nccl, backend="cuda", REFUSED="ncclSend: unhandled")], [False] * 7)

    def test_an_experiment_that_fails_is_an_answer_and_the_others_run(self):
        found = self.answers(measure.answers, REFUSED="rank 1: no")
        self.assertIn(("bits", "rank 1: no", False), [(answer.experiment, answer.found, answer.good) for answer in found])
        self.assertIn(("one-shot", None), [(answer.experiment, answer.good) for answer in found])
        # The launcher is made up: no rank can be stopped.
        self.assertIn(("missing rank", False), [(answer.experiment, answer.good) for answer in found])
        self.assertEqual([answer.good for answer in found][-len(measure.NOT_PREPARED):], [None] * len(measure.NOT_PREPARED))

    def test_the_status_is_that_of_the_answers(self):
        def status(**variables):
            folder = Path(self.folder.name)
            words = [sys.executable, FOLDER / "measure", "--backend", "emulated", "--nccl", "--quick", "--program", folder / "tree_attn",
                     "--mpirun", folder / "mpirun", "--record", folder / "record.json"]
            return subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, check=False)

        wrong = status(WRONG="ring")
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("| bits | 2 ranks, bf16, 4 queries per kv head, dealt, 3 steps | differ: ring | NO |", wrong.stdout)
        (Path(self.folder.name) / "mpirun").write_text("#!/bin/sh\necho HYDRA\n")
        self.assertEqual(status().returncode, 77)

    def test_shards(self):
        self.assertEqual(measure.uneven(1024, 1), "1024")
        self.assertEqual(measure.uneven(1024, 2), "0,1024")
        self.assertEqual(measure.uneven(1024, 4), "0,64,64,896")


if __name__ == "__main__":
    unittest.main()
