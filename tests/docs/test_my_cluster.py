#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/my_cluster.js: its times are those of the C++ (docs/tools/my_cluster.cpp), and of `tree_attn predict`."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

PAGE = ROOT / "docs" / "my_cluster.js"
FACTS = json.loads((ROOT / "docs" / "my_cluster.json").read_text(encoding="utf-8"))
TIMES = "cases => cases.map(({problem, cluster}) => Object.fromEntries(StepTimes.namesFor(problem).map(name => [name, StepTimes.stepTime(name, problem, cluster)])))"
PROGRAM = sys.argv.pop(sys.argv.index("--program") + 1) if "--program" in sys.argv else None
# Differences below 0.01 us, and below what a time of seconds has for digits in the facts.
MICROSECONDS, RELATIVE = 0.01, 1e-9


def times(cases):
    """The times of the page's script for some cases, by node."""
    script = f"const StepTimes = require(process.argv[1]); console.log(JSON.stringify(({TIMES})(JSON.parse(require('fs').readFileSync(0)))))"
    return json.loads(subprocess.run(["node", "-e", script, str(PAGE)], input=json.dumps(cases), capture_output=True, text=True, check=True).stdout)


def faults(found, cases):
    """Times that are not those of the facts."""
    for got, want in zip(found, cases, strict=True):
        if got.keys() != want["us"].keys():
            yield f"{sorted(got)}, not {sorted(want['us'])}: {want['problem']}"
            continue
        for name in got:
            if not abs(got[name] - want["us"][name]) <= max(MICROSECONDS, RELATIVE * want["us"][name]):
                yield f"{name}: {got[name]} us, not {want['us'][name]}: {want['problem']}"


@unittest.skipUnless(shutil.which("node"), "there is no node to run docs/my_cluster.js with")
class Model(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.found = times(FACTS["cases"])

    def test_times_are_those_of_the_library(self):
        self.assertEqual(list(faults(self.found, FACTS["cases"])), [])


@unittest.skipUnless(PROGRAM, "no program was named with --program")
class Program(unittest.TestCase):
    def test_predict_has_these_times(self):
        for case in FACTS["cases"][::25]:
            problem, cluster = case["problem"], case["cluster"]
            with tempfile.TemporaryDirectory() as folder:
                report = pathlib.Path(folder) / "report.json"
                links = [cluster["inside"], cluster["between"]]
                options = {"seq-len": problem["keys"], "batch": problem["batch"], "heads": problem["heads"], "kv-heads": problem["kvHeads"],
                           "head-dim": problem["headDim"], "dtype": {2: "bf16", 4: "f32"}[problem["elementBytes"]], "ranks": problem["ranks"],
                           "ranks-per-node": problem["perNode"], "order": "dealt" if problem["dealt"] else "contiguous",
                           "bandwidth": ",".join(str(each["bytesPerUs"] / 1000) for each in links), "latency": ",".join(str(each["latency"]) for each in links),
                           "overhead": cluster["overhead"], "memory-bandwidth": cluster["memoryBytesPerUs"] / 1000, "merge-time": cluster["mergeUs"], "store-latency": cluster["storeUs"],
                           "report": report} | ({"radix": problem["radix"]} if problem["radix"] else {})
                subprocess.run([PROGRAM, "predict", *(str(word) for name, value in options.items() for word in (f"--{name}", value))],
                               capture_output=True, text=True, check=True)
                runs = json.loads(report.read_text(encoding="utf-8"))["runs"]
            self.assertEqual(list(faults([{run["algorithm"]: run["predicted"]["step_us"] for run in runs}], [case])), [])


if __name__ == "__main__":
    unittest.main(argv=[word for word in sys.argv if word != "--program"])
