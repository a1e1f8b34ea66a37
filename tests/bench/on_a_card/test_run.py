#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The minutes on a card, with programs that only pretend: whatever happens to an experiment, the run goes on and says so.

Run: tests/bench/on_a_card/test_run.py
"""
import json
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]
sys.dont_write_bytecode = True
import experiments
import verdicts

BUILDS = ["v0", "v1", "wide"]
PROGRAMS = sorted({word for each in experiments.experiments(BUILDS, 1) for word in each.words if word.startswith(("time_", "test_", "exchange_"))})
# What a program of each name says if all is well.
WELL = {"test_gpu_cuda": '[ "$1" = --list-test-cases ] && printf "[doctest] listing\\none\\ntwo\\n" || echo "[doctest] test cases: 1 | 1 passed"',
        "time_primitives": 'echo \'{"part": "primitive", "ns": 1}\'', "time_rings": 'echo \'{"part": "rings"}\'',
        "time_step_cuda": 'echo \'{"part": "host step"}\'', "time_copies": 'echo \'{"part": "copies"}\'', "time_walks": 'echo \'{"part": "walk"}\'',
        "time_stamps": 'echo \'{"part": "stamps"}\'; echo \'{"part": "raw stamps"}\'', "exchange_on_parts_cuda": 'echo \'{"part": "bits", "wrong": 0}\'',
        "time_flashinfer": 'echo \'{"part": "peer", "shape": "b"}\'', "time_xqa": 'echo \'{"part": "peer", "shape": "d"}\'', "time_flashmla": 'echo \'{"part": "peer", "shape": "c"}\'',
        "time_ladder": """echo '{"part": "shape", "shape": "a", "dtype": "BF16", "lengths": [512], "n_queries": 1, "dim": 128, "value_dim": 128}'; echo '{"part": "step"}'
echo '{"part": "variant", "shape": "a", "step": "equal-runs", "digest": "1", "graph_seconds": 2, "apart_seconds": 3, "read_seconds": 1}'"""}
FAULTS = {"a wrong exit": "exit 3", "a hang": "sleep 60 & wait", "a line that is no JSON": 'echo \'{"part": "primitive", "ns": \'', "nothing said": "exit 0",
          "a wrong result": 'echo \'{"part": "step", "note": "WRONG: not finite"}\'', "a signal": "kill -SEGV $$", "many bits wrong": 'echo \'{"part": "bits", "wrong": 7}\''}


def script(path, body):
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for build in BUILDS:
            (self.folder / build).mkdir()
            for name in PROGRAMS:
                script(self.folder / build / name, WELL[name])

    def run_all(self, *options, tools=HERE / "stand_ins"):
        ended = subprocess.run([sys.executable, HERE / "run", "--programs", self.folder, "--out", self.folder / "out", "--tools", tools, *options], capture_output=True, text=True, check=False)
        return ended, verdicts.lines_of([self.folder / "out" / "record.jsonl"])

    def ends_of(self, lines):
        return {line["name"]: line for line in lines if line["part"] == "experiment"}

    def names(self):
        return {each.name for each in experiments.experiments(BUILDS, 2)}

    def test_all_is_recorded_and_nothing_is_repeated(self):
        ended, lines = self.run_all()
        self.assertEqual((ended.returncode, self.names()), (0, set(self.ends_of(lines))), ended.stdout)
        self.assertTrue(all(line["well"] for line in self.ends_of(lines).values()))
        self.assertEqual({line["build"] for line in lines if line["part"] == "variant"}, set(BUILDS))
        # ncu's counters are numbers, and other libraries were given the shape that was timed.
        self.assertEqual([line["smsp__inst_executed.sum"] for line in lines if line["part"] == "counters"], [1234567.0] * len(experiments.STALLED))
        self.assertEqual([line["shape"] for line in lines if line["part"] == "peer"], ["a", "b", "d", "c"])
        again, more = self.run_all()
        self.assertEqual((again.returncode, len(more)), (0, len(lines)))
        # So is what ended well in a record of another machine.
        (self.folder / "out" / "record.jsonl").rename(self.folder / "before.jsonl")
        self.assertEqual(self.run_all("--done", self.folder / "before.jsonl")[1], [])

    def test_whatever_fails_the_run_goes_on_and_says_so(self):
        for fault, body in FAULTS.items():
            with self.subTest(fault):
                (self.folder / "out").exists() and (self.folder / "out" / "record.jsonl").unlink()
                tools = self.folder / "tools"
                tools.mkdir(exist_ok=True)
                for path in [*(self.folder / build / name for build in BUILDS for name in PROGRAMS), *(tools / path.name for path in (HERE / "stand_ins").iterdir())]:
                    listing = f'[ "$1" = --list-test-cases ] && {{ {WELL["test_gpu_cuda"]}; exit; }}\n' if path.name == "test_gpu_cuda" else ""
                    script(path, listing + body)
                ended, lines = self.run_all(*(["--patience", "0.001"] if fault == "a hang" else []), tools=tools)
                ends = self.ends_of(lines)
                self.assertEqual((ended.returncode, set(ends)), (1, self.names()), ended.stderr)
                self.assertEqual([line for line in ends.values() if line["well"] or line["status"] == 0], [])
                if fault == "a hang":
                    self.assertEqual({str(line["status"]).split(" within")[0] for line in ends.values()}, {"no end"})

    def test_one_that_fails_is_repeated_alone(self):
        script(self.folder / "v1" / "time_ladder", "exit 3")
        ended, lines = self.run_all("--parts", "right,variants,stamps")
        bad = {name for name, line in self.ends_of(lines).items() if not line["well"]}
        self.assertEqual((ended.returncode, bad), (1, {f"v1: {group}" for group in experiments.SHAPES}))
        script(self.folder / "v1" / "time_ladder", WELL["time_ladder"])
        again, more = self.run_all("--parts", "right,variants,stamps")
        self.assertEqual((again.returncode, {line["name"] for line in more[len(lines):] if line["part"] == "experiment"}), (0, bad))

    def test_programs_that_are_missing_and_time_that_is_spent_are_said(self):
        for name in ("time_rings", "time_flashmla"):
            (self.folder / "v0" / name).unlink()
        ended, lines = self.run_all("--parts", "copies")
        self.assertEqual((ended.returncode, "No such file" in self.ends_of(lines)["rings"]["status"]), (1, True))
        # Another library need not have been there to be built.
        ended, lines = self.run_all("--parts", "variants,peers")
        self.assertEqual((ended.returncode, "flashinfer" in self.ends_of(lines), "flashmla" in self.ends_of(lines)), (0, True, False))
        ended, lines = self.run_all("--parts", "stamps", "--seconds", "0")
        self.assertEqual(self.ends_of(lines)["raw stamps"]["status"], "left out: no time")


class Order(unittest.TestCase):
    def test_what_decides_comes_first_and_fits_one_call(self):
        parts = list(dict.fromkeys(each.part for each in experiments.experiments(BUILDS, 3)))
        self.assertEqual(parts, ["right", "primitives", "variants", "stamps", "copies", "step", "peers", "stalls", "record"])
        deciding = [each for each in experiments.deciding(experiments.BUILDS) if not each.beside]
        self.assertLessEqual(sum(each.seconds for each in deciding), 540)

    def test_the_first_build_runs_first_and_last(self):
        for group in experiments.SHAPES:
            self.assertEqual([each.build for each in experiments.deciding(["a", "b"]) if each.name.endswith(f": {group}")], ["a", "b", "a"])

    def test_a_build_with_bits_of_its_own_is_not_held_against_the_ladder(self):
        asked = [each.build for each in experiments.deciding(experiments.BUILDS) if each.part == "right" and each.beside]
        self.assertEqual({build: asked.count(build) for build in experiments.BUILDS},
                         {build: 0 if build in experiments.OTHER_BITS else len(experiments.CASES) for build in experiments.BUILDS})

    def test_no_two_have_one_name(self):
        names = [each.name for each in experiments.experiments(BUILDS, 99)]
        self.assertEqual(len(names), len(set(names)))


class Variants(unittest.TestCase):
    def test_each_applies_to_these_sources(self):
        self.assertLessEqual(experiments.OTHER_BITS, set(experiments.VARIANTS))
        for build, path in experiments.VARIANTS.items():
            checked = subprocess.run(["git", "apply", "--check", "-C1", path], cwd=HERE.parent.parent.parent, capture_output=True, text=True, check=False)
            self.assertEqual((checked.returncode, checked.stderr), (0, ""), build)


class Verdicts(unittest.TestCase):
    def lines(self, **times):
        return [{"part": "variant", "shape": "a", "step": "s", "build": build, "graph_seconds": 0.5, "apart_seconds": time, "read_seconds": 1, "digest": "7" if build != "v2" else "8"}
                for build, of in times.items() for time in of]

    def test_less_than_the_first_build_differs_from_itself_does_not_count(self):
        (ratios, spread, other_bits), = verdicts.compared(self.lines(v0=[1.0, 1.1], v1=[1.0], v2=[0.9]), ["v0", "v1", "v2"]).values()
        self.assertAlmostEqual(spread, 0.1 / 1.05)
        self.assertEqual([verdicts.word_of(ratio, spread) for ratio in ratios.values()], ["no difference", "faster"])
        self.assertEqual(other_bits, ["v2"])
        self.assertIn("OTHER BITS", verdicts.table(self.lines(v0=[1, 1], v2=[1]), ["v0", "v2"])[-1])

    def test_without_the_first_build_at_both_ends_there_is_no_verdict(self):
        self.assertEqual(verdicts.compared(self.lines(v0=[1.0], v1=[0.5]), ["v0", "v1"]), {})

    def test_a_line_that_was_cut_off_is_left_out(self):
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "record.jsonl"
            path.write_text('{"part": "a"}\n{"part": "b', encoding="utf-8")
            self.assertEqual(verdicts.lines_of([path]), [{"part": "a"}])


class Lateness(unittest.TestCase):
    def raw(self, by_multiprocessor, n_warps=8):
        """Twelve launches of 16 blocks on 20 multiprocessors, held ones from the fourth multiprocessor on; some are slow by their name, all by chance."""
        chance = random.Random(7)
        for launch in range(12):
            held = 4 * (launch % 2)
            smid = [(block + held) % 20 for block in range(16)]
            late = [(500 if (smid[block] if by_multiprocessor else block) % 5 == 0 else 0) + chance.randrange(100) for block in range(16)]
            yield {"part": "raw stamps", "shape": "a", "step": "s", "held": held, "smid": smid, "walked": [1000 + end - warp if warp < 4 else -1 for end in late for warp in range(n_warps)]}

    def test_what_ends_late_each_time_is_told_from_where_it_ran(self):
        for by_multiprocessor, name, other in ((False, "blocks", "multiprocessors"), (True, "multiprocessors", "blocks")):
            for n_warps in (8, 16):
                found, = verdicts.lateness(self.raw(by_multiprocessor, n_warps)).values()
                self.assertGreater(min(found["again"], found[name]), 0.9)
                self.assertLess(found[other], 0.5)

    def test_without_held_multiprocessors_nothing_is_told(self):
        found, = verdicts.lateness([line for line in self.raw(True) if not line["held"]]).values()
        self.assertEqual((found["blocks"], found["multiprocessors"]), (None, None))


class Record(unittest.TestCase):
    DEVICE = {"part": "device", "device": "NVIDIA H200", "library": "equal-runs", "read_bytes_per_second": 4.6e12, "build": "v0"}
    STEP = {"part": "step", "shape": "a", "step": "equal-runs", "graph_seconds": 2, "build": "v0"}

    def test_the_last_time_of_a_step_is_kept_and_builds_are_told_apart(self):
        variants = Verdicts.lines(self, v0=[1.0, 2.0], v1=[3.0])
        record = verdicts.record_of([self.DEVICE, self.STEP, self.STEP | {"graph_seconds": 3}, self.STEP | {"step": "naive", "note": "not timed", "graph_seconds": 0} , *variants], "2026-12-01", "abc")
        self.assertEqual([(line["step"], line["graph_seconds"]) for line in record["lines"]], [("equal-runs", 3), ("naive", 0)])
        self.assertEqual([(line["build"], line["apart_seconds"]) for line in record["variants"]], [("v0", 2.0), ("v1", 3.0)])
        self.assertEqual({key for line in record["lines"] for key in line} & {"part", "build"}, set())

    def test_a_record_is_of_one_card(self):
        for devices in ([], [self.DEVICE, self.DEVICE | {"device": "NVIDIA H100"}]):
            with self.assertRaisesRegex(ValueError, "a record is of one"):
                verdicts.record_of(devices, "2026-12-01", "abc")


if __name__ == "__main__":
    unittest.main()
