#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The experiments of `./run bench --nccl` with a program that is made up: right answers, wrong ones, and what is not there."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import re
import shutil
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
# A compute-sanitizer that finds an error in one-shot if it is ERROR, or in on_parts, which otherwise says WAITS or NOTE.
SANITIZER = """#!/bin/sh
case "$*" in
  *"$2 --error-exitcode 9 "*"--algorithm $ERROR"* | *"$2 --error-exitcode 9 "*"/$ERROR --parts 2 --steps 8 "*) echo "ERROR SUMMARY: 1 error"; exit 9;;
  *on_parts*) echo "$NOTE"; if [ "$WAITS" ]; then echo "exchange_on_parts: $WAITS" >&2; exit 1; fi;;
esac
"""


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


def over_nccl(n, us=47, wrong=0, seconds=3.5, line="rank 0 waited 3 s for ncclAllGather and gave up"):
    """What exchange_over_nccl prints for n ranks."""
    times = {"decode, ncclAllGather, merge": us, "one-shot": 42, "decode": 40}
    return [{"part": "ranks", "ranks": n, "devices": n}, {"part": "bits", "ranks": n, "what": "ncclAllGather", "steps": 14, "wrong": wrong},
            *({"part": "time", "ranks": n, "what": what, "median_us": us, "p10_us": us, "p90_us": us} for what, us in times.items()),
            {"part": "missing", "ranks": n, "seconds": seconds, "limit": 3, "line": line}]


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
        for name, text in (("tree_attn", PROGRAM), ("mpirun", MPIRUN), ("on_parts", LINES), ("over_nccl", GATHER), ("time_ladder", LINES), ("stand_in.so", ""),
                           ("compute-sanitizer", SANITIZER)):
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
        self.assertEqual([answer.good for answer in self.answers(measure.bits, MORE="one-shot")], [True] * 9)
        self.assertEqual([answer.good for answer in self.answers(measure.bits, MORE="one-shot", WRONG="one-shot")], [True, False, False] * 3)
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

    def test_times_are_of_a_gpu_alone(self):
        self.assertTrue(all(answer.values == {} and answer.found == "ran" for answer in self.answers(measure.cost)))
        timed = self.answers(measure.cost, backend="cuda")
        self.assertEqual({(answer.found, answer.good) for answer in timed}, {("step 30.0 us, combine 4.0 us", None)})
        self.assertIn("gather, 2 ranks, in turns on a GPU, 65536 keys", [answer.case for answer in timed])
        # The decode alone is the 30 us of gather without its 4 us.
        with_one_shot = self.answers(measure.cost, backend="cuda", MORE="one-shot")
        self.assertEqual(with_one_shot[-1].found, "step 31.0 us, 5.0 us beyond the decode alone")
        self.assertEqual(with_one_shot[-1].values, {"latency": 31, "beyond_decode": 5})
        self.assertEqual(len(with_one_shot), len(timed) + 1)

    def test_one_shot_stands_beside_an_all_gather_of_nccl(self):
        def baseline(backend="cuda", **variables):
            return [answer for answer in self.answers(measure.cost, backend, **variables) if answer.experiment == "cost" and answer.case.startswith("ncclAllGather")]

        right = baseline(GATHER=lines(*over_nccl(2)))
        self.assertEqual([answer.good for answer in right], [True, None])
        self.assertEqual(right[1].found, "decode, ncclAllGather, merge 47.0 us, one-shot 42.0 us, decode 40.0 us, "
                                         "decode, ncclAllGather, merge, beyond the decode 7.0 us, one-shot, beyond the decode 2.0 us")
        self.assertEqual([answer.good for answer in baseline(GATHER=lines(*over_nccl(2, wrong=1)))], [False, None])
        self.assertEqual([(answer.good, answer.found, answer.values) for answer in baseline("emulated", GATHER=lines(*over_nccl(2)))][1], (None, "ran", {}))
        few = lines({"part": "ranks", "ranks": 4, "note": "there are GPUs for 1"})
        self.assertEqual([(answer.good, answer.found) for answer in baseline(GATHER=few)], [(None, "there are GPUs for 1")])
        # A library that is not there is no error on a GPU, and one of the stand-in; a peer that is gone always is.
        missing = "exchange_over_nccl: --transport nccl: libnccl.so.2 was not found; pip install nvidia-nccl-cu13"
        self.assertEqual([answer.good for answer in baseline(GATHER_ERROR=missing)], [None])
        self.assertEqual([answer.good for answer in baseline("emulated", GATHER_ERROR=missing)], [False])
        gone = baseline(GATHER=lines(*over_nccl(2)), GATHER_ERROR="exchange_over_nccl: rank 1 waited 10 s for ncclAllGather and gave up")
        self.assertEqual((gone[-1].good, gone[-1].found), (False, "rank 1 waited 10 s for ncclAllGather and gave up"))
        for ended, good in ((dict(seconds=5.5), False), (dict(line="no error"), False), ({}, True)):
            found = self.answers(measure.cost, "cuda", GATHER=lines(*over_nccl(2, **ended)))
            self.assertEqual([answer.good for answer in found if answer.experiment == "missing rank"], [good])
        (Path(self.folder.name) / "over_nccl").unlink()
        self.assertEqual([answer.good for answer in baseline()], [None])

    def test_a_step_takes_at_most_a_tenth_longer_than_its_kernel(self):
        def ladder(seconds, **more):
            return lines({"part": "device", "library": "equal-runs", "read_bytes_per_second": 4e12}, {"part": "step", "step": "naive", "graph_seconds": 1},
                         {"part": "step", "step": "equal-runs", "bytes": 60_000_000, "graph_seconds": seconds} | more)

        self.assertEqual([(answer.good, answer.found) for answer in self.answers(measure.steps, "cuda", LINES=ladder(28e-6))],
                         [(True, "30.0 us, 1.07 times the kernel alone, 0.50 of the read rate, 1 launches")] * 2)
        self.assertEqual(self.good(measure.steps, "cuda", LINES=ladder(27e-6)), [False] * 2)
        # one-shot is one launch; what else a step launches is its own affair.
        self.assertEqual(self.good(measure.steps, "cuda", LINES=ladder(30e-6), MORE="one-shot"), [True] * 4)
        self.assertEqual(self.good(measure.steps, "cuda", LINES=ladder(30e-6), MORE="one-shot", LAUNCHES="2"), [True, False] * 2)
        self.assertEqual(self.good(measure.steps, MORE="one-shot", LAUNCHES="2"), [True, False] * 2)
        with self.assertRaisesRegex(measure.Wrong, "WRONG: off by 1"):
            self.answers(measure.steps, "cuda", LINES=lines({"part": "device", "library": "a"}, {"part": "step", "step": "a", "note": "WRONG: off by 1"}))
        (Path(self.folder.name) / "time_ladder").unlink()
        self.assertEqual(self.good(measure.steps, "cuda"), [None] * 3)

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

    def test_without_mpi_ranks_are_threads(self):
        (Path(self.folder.name) / "mpirun").unlink()
        self.assertEqual(self.good(measure.bits, MORE="one-shot"), [True, True, None] * 3)
        self.assertEqual(self.good(measure.bits, "cuda", MORE="one-shot", GPUS="1"), [None] * 9)
        self.assertEqual(self.good(measure.cost, "cuda", GPUS="1"), [None])
        with self.assertRaisesRegex(measure.NotHere, "no ranks as processes: there is no .*mpirun"):
            self.answers(measure.missing_rank)
        # One rank is there, and wrong where it fails.
        with self.assertRaises(measure.Wrong) as raised:
            self.answers(measure.bits, "cuda", GPUS="0")
        self.assertNotIsInstance(raised.exception, measure.NotHere)

    def test_the_sanitizer_sees_one_shot_too(self):
        path = f"{self.folder.name}:{os.environ['PATH']}"
        self.assertEqual(self.good(measure.sanitizer, "cuda", PATH=path, ERROR="none"), [True] * 4)
        self.assertEqual(self.good(measure.sanitizer, "cuda", PATH=path, ERROR="none", MORE="one-shot"), [True] * 8)
        self.assertEqual(self.good(measure.sanitizer, "cuda", PATH=path, ERROR="one-shot", MORE="one-shot"), [True] * 2 + [True, False, False] * 2)
        self.assertEqual(self.good(measure.sanitizer, "cuda", PATH=path, ERROR="on_parts"), [False] * 2 + [True] * 2)
        # The tool may run one kernel after the other, and a driver may have no green contexts.
        self.assertEqual(self.good(measure.sanitizer, "cuda", PATH=path, ERROR="none", WAITS="no states from rank 1, row 0")[:2], [None] * 2)
        self.assertEqual(self.good(measure.sanitizer, "cuda", PATH=path, ERROR="none", WAITS="out of memory")[:2], [False] * 2)
        note = lines({"part": "parts", "parts": 2, "note": "this driver has no cuGreenCtxCreate"})
        self.assertEqual(self.good(measure.sanitizer, "cuda", PATH=path, ERROR="none", NOTE=note)[:2], [None] * 2)
        (Path(self.folder.name) / "mpirun").unlink()
        self.assertEqual(self.good(measure.sanitizer, "cuda", PATH=path, ERROR="none", MORE="one-shot"), [True] * 2 + [True, True, None] * 2)
        (Path(self.folder.name) / "tree_attn").unlink()
        self.assertEqual(self.good(measure.sanitizer, "cuda", PATH=path, ERROR="none"), [True] * 2)
        with self.assertRaises(measure.NotHere):
            self.answers(measure.sanitizer)

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

    def test_without_the_program_the_ranks_on_one_card_are_still_there(self):
        (Path(self.folder.name) / "tree_attn").unlink()
        found = self.answers(measure.answers, "cuda", LINES=lines(*on_parts(8)))
        self.assertEqual({answer.experiment for answer in found if answer.good is not None}, {"green contexts"})
        self.assertEqual(len(found), 6 + len(measure.EXPERIMENTS) - 1)

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

    def test_where_nothing_can_be_installed_what_needs_no_mpi_is_built_and_run(self):
        folder = Path(self.folder.name) / "there"
        for name, text in (("tests/gpu/time_ladder/measure", "exit 0"), ("tests/gpu/exchange/measure", 'echo "measured $*"'), ("bin/dpkg-query", "exit 1"),
                           ("bin/sudo", "exit 1"), ("bin/apt-get", "exit 100"), ("bin/cmake", 'echo "$*" >> built; echo "--   program: $MPI"')):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
        shutil.copy(measure.ROOT / "run", folder / "run")

        def targets(mpi):
            (folder / "built").unlink(missing_ok=True)
            ended = subprocess.run([folder / "run", "bench", "--backend", "cuda", "--nccl", "--quick"], capture_output=True, text=True, check=False,
                                   env={**os.environ, "MPI": mpi, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"})
            self.assertEqual((ended.returncode, ended.stdout), (0, "measured --backend cuda --nccl --quick\n"), ended.stderr)
            return re.findall(r"--target (\S+)", (folder / "built").read_text())

        few = ["exchange_on_parts_cuda", "exchange_over_nccl_cuda", "time_ladder"]
        self.assertEqual(targets("skipped, MPI::MPI_CXX not found"), few)
        self.assertEqual(targets("built"), [*few, "tree_attn"])

    def test_shards(self):
        self.assertEqual(measure.uneven(1024, 1), "1024")
        self.assertEqual(measure.uneven(1024, 2), "0,1024")
        self.assertEqual(measure.uneven(1024, 4), "0,64,64,896")


if __name__ == "__main__":
    unittest.main()
