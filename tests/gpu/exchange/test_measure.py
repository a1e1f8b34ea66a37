#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The experiments of `./run bench --nccl` with a program that is made up: right answers, wrong ones, and what is not there."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
FOLDER = Path(__file__).resolve().parent
loader = importlib.machinery.SourceFileLoader("measure", str(FOLDER / "measure"))
measure = importlib.util.module_from_spec(importlib.util.spec_from_loader("measure", loader))
sys.modules["measure"] = measure
loader.exec_module(measure)

# A tree_attn: every algorithm of the command line gets a report; WRONG is one whose digest is another on several ranks. With GPUS, ranks that are
# threads need one each.
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
if "--devices" in words and ranks > int(os.environ.get("GPUS", ranks)):
    sys.exit("tree_attn: --backend cuda: no GPU for rank 1 on a: its machine has 1")
if "--repeat" in words and value("--repeat") == "1000000":
    print("tree_attn: " + os.environ.get("LINE", "rank 1 has not answered for 3 s"), file=sys.stderr)
    sys.exit(int(os.environ.get("STATUS", "2")))
names = [value("--algorithm")] + [name for name in value("--compare").split(",") if name]
runs = [{"algorithm": name, "output_digest": "other" if ranks > 1 and name == os.environ.get("WRONG") else "same",
         "same_bits_on_all_ranks": ranks == 1 or name != os.environ.get("TORN"),
         "latency_us": {"median": 31 if name == "one-shot" else 30}, "combine_us": {"median": 0 if name == "one-shot" else 4},
         "launches_per_step": int(os.environ.get("LAUNCHES", "1")), "windows": os.environ.get("WINDOWS", "nccl") if name == "one-shot" else None} for name in names]
with open(value("--report"), "w") as report:
    report.write(json.dumps({"runs": runs, "machine": {"gpus": ["a GPU"]}}))
"""
MPIRUN = """#!/bin/sh
if [ "$1" = --version ]; then echo "mpirun (Open MPI) 0"; exit; fi
while [ "$1" != -n ]; do shift; done
RANKS=$2
export RANKS
shift 2
exec "$@"
"""
# What prints the lines in a variable: exchange_on_parts and time_ladder. ERROR is on standard error.
LINES = """#!/bin/sh
printf '%s\\n' "$LINES"
if [ "$ERROR" ]; then echo "$ERROR" >&2; exit 1; fi
"""
# What prints the lines in another: exchange_over_nccl.
GATHER = LINES.replace("$LINES", "$GATHER").replace("$ERROR", "$GATHER_ERROR")


def lines(*each):
    return "\n".join(map(json.dumps, each))


def on_parts(n, beyond=1.0, wrong=0, disordered=0, line="rank 0, step 6: no states from rank {}, row 0, for 3 s", seconds=3.5):
    """What exchange_on_parts prints for n parts."""
    times = {"one-shot": 40 + beyond, "one-shot of each": 40.5, "decode": 40, "decode, merge": 46, "empty graph": 5}
    return [{"part": "parts", "parts": n, "device": "a GPU", "n_multiprocessors": 16},
            {"part": "alone", "parts": n, "steps": 3, "first_us": 812000, "last_us": 41},
            {"part": "bits", "parts": n, "windows": "device", "steps": 2000, "before_wrap": 1000, "wrong": wrong},
            *({"part": "time", "parts": n, "what": what, "median_us": us, "p10_us": us, "p90_us": us} for what, us in times.items()),
            {"part": "stamps", "parts": n, "steps": 2000, "wrong": 0, "disordered": disordered, "sent_us": 0.4, "first_us": -0.25, "last_us": 1.1, "merged_us": 1.9},
            {"part": "missing", "parts": n, "seconds": seconds, "limit": 3, "line": line.format(n - 1)}]


# The program that is made up, started without a process: hundreds of them would take most of the time of this test.
START_PROCESS, MADE_UP = measure.run, compile(PROGRAM, "tree_attn", "exec")


def start(words, limit=600, environment=None):
    words = list(map(str, words))
    variables = dict(environment or {})
    if Path(words[0]).name == "mpirun":
        at = words.index("-n")
        variables["RANKS"], words = words[at + 1], words[at + 2:]
    if Path(words[0]).name != "tree_attn":
        return START_PROCESS(words, limit, environment)
    out, status, error = io.StringIO(), 0, ""
    with mock.patch.dict(os.environ, variables), mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(out):
        try:
            exec(MADE_UP, {"__name__": "__main__"})
        except SystemExit as exit:
            status, error = (exit.code or 0, "") if not isinstance(exit.code, str) else (1, exit.code + "\n")
    return subprocess.CompletedProcess(words, status, out.getvalue(), error)


class Experiments(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        without_processes = mock.patch.object(measure, "run", start)
        without_processes.start()
        self.addCleanup(without_processes.stop)
        for name, text in (("tree_attn", PROGRAM), ("mpirun", MPIRUN), ("on_parts", LINES), ("over_nccl", GATHER), ("time_ladder", LINES), ("stand_in.so", "")):
            (Path(self.folder.name) / name).write_text(text)
            (Path(self.folder.name) / name).chmod(0o755)

    def program(self, backend="emulated"):
        return measure.Program(*(Path(self.folder.name) / "tree_attn", backend, str(Path(self.folder.name) / "mpirun")),
                               *(Path(self.folder.name) / name for name in ("on_parts", "time_ladder", "stand_in.so", "over_nccl")))

    def answers(self, experiment, backend="emulated", **variables):
        before = dict(os.environ)
        os.environ.update(variables)
        try:
            return list(experiment(self.program(backend), True))
        finally:
            os.environ.clear()
            os.environ.update(before)

    def good(self, experiment, backend="emulated", **variables):
        return [answer.good for answer in self.answers(experiment, backend, **variables)]

    def test_bits_that_differ_are_found(self):
        self.assertEqual([(answer.good, answer.found) for answer in self.answers(measure.bits)], [(True, "0 of 5 differ")] * 3)
        self.assertEqual([(answer.good, answer.found) for answer in self.answers(measure.bits, WRONG="ring")], [(False, "differ: ring")] * 3)
        self.assertEqual([answer.good for answer in self.answers(measure.bits, TORN="gather")], [False] * 3)
        self.assertEqual([answer.good for answer in self.answers(measure.long_run)], [True])
        self.assertEqual([answer.good for answer in self.answers(measure.long_run, WRONG="two-level")], [False])

    def test_one_shot_runs_where_it_is_built_in_and_has_gpus(self):
        self.assertEqual([answer.good for answer in self.answers(measure.bits, MORE="one-shot")], [True] * 7)
        self.assertEqual([answer.good for answer in self.answers(measure.bits, MORE="one-shot", WRONG="one-shot")], [True, *[True, False, False] * 2])
        self.assertEqual([answer.good for answer in self.answers(measure.long_run, MORE="one-shot", WRONG="one-shot")], [True, False, False])
        self.assertEqual(self.answers(measure.host_windows), [])
        self.assertEqual([answer.good for answer in self.answers(measure.host_windows, MORE="one-shot")], [True, True])
        self.assertEqual([answer.good for answer in self.answers(measure.host_windows, MORE="one-shot", WRONG="one-shot")], [False, False])
        program = self.program("cuda")
        program.help = "  one-shot: one launch"
        os.environ["REFUSED"] = "--backend cuda: no GPU for rank 1 on a: its machine has 1"
        try:
            self.assertEqual([answer.good for answer in measure.one_shot(program, "bits", "2 ranks", 2, [], "same")], [None, None])
            os.environ["REFUSED"] = "something else"
            with self.assertRaisesRegex(measure.Wrong, "something else"):
                list(measure.one_shot(program, "bits", "2 ranks", 2, [], "same"))
        finally:
            del os.environ["REFUSED"]

    def test_ranks_on_green_contexts(self):
        found = self.answers(measure.green_contexts, "cuda", LINES=lines(*on_parts(2), *on_parts(8)))
        self.assertEqual([answer.good for answer in found], [None, None, True, True, True, None, None, True, True, True, None, True])
        self.assertEqual((found[1].case, found[1].found), ("2 ranks, 3 steps of each alone", "the first 812.0 ms, the last 0.041 ms"))
        self.assertEqual([found[-1].values[name] for name in ("beyond_decode", "beyond_one_without_peers")], [1, 0.5])
        self.assertEqual((found[3].case, found[3].found), ("2 ranks, stamps of 2000 steps since the last rank has joined", "0 outputs differ, 0 stamps are out of order, "
                                                           "sent after 0.4 us, first after -0.2 us, last after 1.1 us, merged after 1.9 us"))
        self.assertEqual(found[3].values, {"sent_us": 0.4, "first_us": -0.25, "last_us": 1.1, "merged_us": 1.9})
        for wrong, place in ((dict(wrong=1), 2), (dict(disordered=1), 3), (dict(line="no error"), 4), (dict(line="no states from rank 1, row 0"), 4), (dict(seconds=5.5), 4),
                             (dict(beyond=2.5), 5)):
            good = self.good(measure.green_contexts, "cuda", LINES=lines(*on_parts(8, **wrong)))
            self.assertEqual(good, [None, None, *(place != i for i in (2, 3, 4, 5))], wrong)
        # A driver without green contexts is no error; a program that ends early is one, after what it had found.
        refused = lines({"part": "parts", "parts": 2, "note": "this driver has no cuGreenCtxCreate"}, *on_parts(4))
        self.assertEqual(self.good(measure.green_contexts, "cuda", LINES=refused), [None, None, None, True, True, True, None])
        with self.assertRaisesRegex(measure.Wrong, "rank 0: cudaMalloc"):
            self.answers(measure.green_contexts, "cuda", LINES=lines(*on_parts(2)), ERROR="exchange_on_parts: rank 0: cudaMalloc")
        rehearsed = self.answers(measure.green_contexts, LINES=lines(*on_parts(8, seconds=10, beyond=99)))
        self.assertEqual([answer.good for answer in rehearsed], [None, None, True, True, True])
        # A rehearsal has no times.
        self.assertEqual((rehearsed[3].found, rehearsed[3].values), ("0 outputs differ, 0 stamps are out of order", {}))
        (Path(self.folder.name) / "on_parts").unlink()
        with self.assertRaises(measure.NotHere):
            self.answers(measure.green_contexts)

    def test_nccl_is_right_wrong_or_not_there(self):
        for backend in ("emulated", "cuda"):
            self.assertEqual(self.good(measure.nccl, backend), [True] * 8)
            self.assertEqual(self.good(measure.nccl, backend, MORE="one-shot"), [True] * 9)
            self.assertEqual(self.good(measure.nccl, backend, WRONG="gather"), [True, False] + [True] * 6)
            self.assertEqual(self.good(measure.nccl, backend, MORE="one-shot", WRONG="one-shot"), [True] * 8 + [False])
            self.assertEqual(self.good(measure.nccl, backend, REFUSED="ncclSend: unhandled"), [False] * 8)
        # Before 2.29 NCCL has no windows for kernels; the stand-in has.
        self.assertEqual(self.good(measure.nccl, "cuda", MORE="one-shot", WINDOWS="ipc"), [True] * 9)
        self.assertEqual(self.good(measure.nccl, MORE="one-shot", WINDOWS="ipc"), [True] * 8 + [False])
        for line in ("--transport nccl: ranks 0 and 1 on a share GPU-5f0c00; start one rank per GPU, or use NCCL 2.30.3 or later (found 2.28.9)",
                     "--transport nccl: libnccl.so.2 was not found; pip install nvidia-nccl-cu13", "--transport nccl: libnccl.so.2 is NCCL 2.12.0, older than 2.14.3"):
            self.assertEqual(self.good(measure.nccl, "cuda", REFUSED=line), [None])
        self.assertEqual(self.good(measure.nccl, REFUSED="--transport nccl: libnccl.so.2 was not found"), [False] * 8)
        (Path(self.folder.name) / "stand_in.so").unlink()
        with self.assertRaises(measure.NotHere):
            self.answers(measure.nccl)

    def test_an_experiment_that_fails_is_an_answer_and_the_others_run(self):
        found = self.answers(measure.answers, REFUSED="rank 1: no")
        self.assertIn(("bits", "rank 1: no", False), [(answer.experiment, answer.found, answer.good) for answer in found])
        self.assertIn(("one-shot", None), [(answer.experiment, answer.good) for answer in found])
        # The launcher is made up: no rank can be stopped.
        self.assertIn(("missing rank", False), [(answer.experiment, answer.good) for answer in found])

    def test_the_status_is_that_of_the_answers(self):
        def status(*options, **variables):
            folder = Path(self.folder.name)
            words = [sys.executable, FOLDER / "measure", "--backend", "emulated", "--nccl", "--quick", "--program", folder / "tree_attn",
                     "--on-parts", folder / "on_parts", "--over-nccl", folder / "over_nccl", "--stand-in", folder / "stand_in.so", "--mpirun", folder / "mpirun", "--record", folder / "record.json", *options]
            return subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True, check=False)

        wrong = status(WRONG="ring")
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("| bits | 2 ranks, bf16, 4 queries per kv head, dealt, 3 steps | differ: ring | NO |", wrong.stdout)
        few = status("--only", "cost,long-run", WRONG="ring")
        self.assertEqual(few.returncode, 0)
        self.assertEqual([line.split(" | ")[0] for line in few.stdout.splitlines()[2:]], ["| cost"] * 5 + ["| long run", "| one-shot"])
        self.assertIn("no experiment is named bit", status("--only", "bit").stderr)
        (Path(self.folder.name) / "mpirun").write_text("#!/bin/sh\necho HYDRA\n")
        threads = status("--only", "bits,missing-rank")
        self.assertEqual(threads.returncode, 0)
        self.assertIn("mpirun is not Open MPI's", threads.stdout + threads.stderr)

    def test_shards(self):
        self.assertEqual(measure.uneven(1024, 1), "1024")
        self.assertEqual(measure.uneven(1024, 2), "0,1024")
        self.assertEqual(measure.uneven(1024, 4), "0,64,64,896")


if __name__ == "__main__":
    unittest.main()
