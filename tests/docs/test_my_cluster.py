#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/my_cluster.js: its times are those of the C++ (docs/tools/my_cluster.cpp), and the page shows what the model says."""
import html
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "docs" / "tools"), str(ROOT / "tests" / "docs")]
import browser
import live

PAGE = ROOT / "docs" / "my_cluster.js"
FACTS = json.loads((ROOT / "docs" / "my_cluster.json").read_text(encoding="utf-8"))
ALGORITHMS = list(FACTS["cases"][0]["us"])
TIMES = "cases => cases.map(({problem, cluster}) => Object.fromEntries(StepTimes.namesFor(problem).map(name => [name, StepTimes.stepTime(name, problem, cluster)])))"
PROGRAM = sys.argv.pop(sys.argv.index("--program") + 1) if "--program" in sys.argv else None
# Differences below 0.01 us, and below what a time of seconds has for digits in the facts.
MICROSECONDS, RELATIVE = 0.01, 1e-9


def times(cases):
    """The times of the page's script for some cases, by node or by Chromium."""
    if shutil.which("node"):
        script = f"const StepTimes = require(process.argv[1]); console.log(JSON.stringify(({TIMES})(JSON.parse(require('fs').readFileSync(0)))))"
        return json.loads(subprocess.run(["node", "-e", script, str(PAGE)], input=json.dumps(cases), capture_output=True, text=True, check=True).stdout)
    page = f"<body><script src='{PAGE.as_uri()}'></script><script>document.body.textContent = JSON.stringify(({TIMES})({json.dumps(cases)}))</script></body>"
    return json.loads(html.unescape(re.search(r"<body[^>]*>(.*?)</body>", browser.dump(page), re.DOTALL)[1]))


def faults(found, cases):
    """Times that are not those of the facts."""
    for got, want in zip(found, cases, strict=True):
        if got.keys() != want["us"].keys():
            yield f"{sorted(got)}, not {sorted(want['us'])}: {want['problem']}"
            continue
        for name in got:
            if not abs(got[name] - want["us"][name]) <= max(MICROSECONDS, RELATIVE * want["us"][name]):
                yield f"{name}: {got[name]} us, not {want['us'][name]}: {want['problem']}"


class Facts(unittest.TestCase):
    def test_many_clusters(self):
        cases = FACTS["cases"]
        self.assertGreaterEqual(len(cases), 200)
        problems, clusters = [each["problem"] for each in cases], [each["cluster"] for each in cases]
        self.assertGreater(len({each["ranks"] for each in problems}), 20)
        for name in ("dealt", "elementBytes", "radix", "batch", "kvHeads", "headDim", "perNode"):
            self.assertGreater(len({each[name] for each in problems}), 1, name)
        for name in ("overhead", "memoryBytesPerUs", "mergeUs", "storeUs"):
            self.assertGreater(len({each[name] for each in clusters}), 1, name)
        # Rows are cut by the ranks of a node in some, and some nodes are cut off.
        self.assertTrue(any(each["ranks"] % each["perNode"] for each in problems))
        self.assertTrue(any(each["batch"] * each["heads"] * (each["headDim"] + 2) * 4 > 32 * 1024 for each in problems))
        # In some, rows have owners on several nodes; in some, nodes are too large for the kernels.
        self.assertTrue(any(each["ranks"] > each["perNode"] > 1 and each["batch"] * each["heads"] * (each["headDim"] + 2) * 4 > 128 * 1024 for each in problems))
        self.assertTrue(any("one-shot" not in each["us"] for each in cases))


@unittest.skipUnless(shutil.which("node") or browser.CHROMIUM, "there is neither node nor Chromium to run docs/my_cluster.js with")
class Model(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.found = times(FACTS["cases"])

    def test_times_are_those_of_the_library(self):
        self.assertEqual(list(faults(self.found, FACTS["cases"])), [])

    def test_other_times_are_found(self):
        for name in ALGORITHMS:
            wrong = json.loads(json.dumps(self.found))
            wrong[100][name] = wrong[100][name] * 1.01 + 0.02
            self.assertEqual(len(list(faults(wrong, FACTS["cases"]))), 1, name)


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


def page_of(script):
    """The part of the chapter, then a script that changes it, and at the end the rows of the table as JSON."""
    return f"""<!DOCTYPE html><body>{live.snippet('my_cluster', FACTS).replace('src="my_cluster.js"', f'src="{PAGE.as_uri()}"')}
<script>{script}
const rows = () => Object.fromEntries([...document.querySelectorAll("#my_cluster tr[data-algorithm]")].map(row => [row.dataset.algorithm, Number(row.dataset.us)]));
const wait = () => {{
  if (!document.getElementById("my_cluster").dataset.done) return setTimeout(wait, 10);
  const points = [...document.querySelectorAll("#my_cluster path.curve")].map(each => each.getAttribute("d").match(/[ML]/g).length);
  document.body.append(Object.assign(document.createElement("pre"), {{id: "seen", textContent: JSON.stringify({{rows: rows(), points,
    circles: document.querySelectorAll("#my_cluster .paper_point").length, command: document.querySelector("#my_cluster .my_cluster_command").textContent}})}}));
}};
wait();
</script></body>"""


def seen(script=""):
    return json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', browser.dump(page_of(script)), re.DOTALL)[1]))


class Assumption(unittest.TestCase):
    def test_the_latency_of_a_store_is_named_as_assumed(self):
        text, chapter = PAGE.read_text(encoding="utf-8"), (ROOT / "docs" / "IV.5-does-it-pay.md").read_text(encoding="utf-8")
        assumed = re.search(r"kStoreUs = ([\d.]+);", text)[1]
        of_model = re.search(r"double store_us = ([\d.]+);", (ROOT / "distributed" / "plan" / "step_time.hpp").read_text(encoding="utf-8"))[1]
        self.assertEqual(float(assumed), float(of_model))
        self.assertIn('"one-shot, assumed"', text)  # at the end of the curve
        self.assertIn("assume ${kStoreUs} us for a store into another GPU; this has not been measured", text)
        self.assertIn(f"an assumed latency of {assumed} us for a store into another GPU, which has not been measured", chapter)


@unittest.skipUnless(browser.CHROMIUM, "there is no Chromium to show the page with")
class Page(unittest.TestCase):
    def test_the_first_picture_is_the_papers_cluster(self):
        page = seen()
        case = next(each for each in FACTS["cases"] if each["problem"] | {"keys": 0, "ranks": 0} == FACTS["cases"][0]["problem"] | {"keys": 0, "ranks": 0}
                    and each["problem"]["keys"] == 5_120_000 and each["problem"]["ranks"] == 128 and each["cluster"] == FACTS["cases"][0]["cluster"])
        self.assertEqual(list(faults([page["rows"]], [case])), [])
        # Nine curves of fifteen lengths, and the paper's factor.
        self.assertEqual(page["points"], [15] * len(ALGORITHMS))
        self.assertEqual(page["circles"], 1)
        self.assertIn("--seq-len 5120000 ", page["command"])
        self.assertIn("--ranks 128 --ranks-per-node 8 --bandwidth 450,50 --latency 1.5,3", page["command"])

    def test_sliders_change_it(self):
        page = seen("""
const move = (name, value) => { const input = document.querySelector(`#my_cluster [name=${name}]`); input.value = value; input.dispatchEvent(new Event(input.tagName === "SELECT" ? "change" : "input")); };
move("ranks", 5), move("perNode", 2), move("kvHeads", 2), move("headDim", 1), move("dealt", 1), move("axis", "ranks"), move("overhead", 3), move("elementBytes", 4);""")
        problem = {"keys": 5_120_000, "heads": 16, "kvHeads": 4, "headDim": 64, "elementBytes": 4, "batch": 1, "ranks": 8, "perNode": 4, "radix": 0, "dealt": True}
        cluster = FACTS["cases"][0]["cluster"] | {"overhead": 0.3}
        wanted = {"problem": problem, "cluster": cluster, "us": times([{"problem": problem, "cluster": cluster}])[0]}
        self.assertEqual(list(faults([page["rows"]], [wanted])), [])
        # Nine numbers of GPUs, without one-shot in the dealt order; no point of the paper is of this cluster.
        self.assertEqual(page["points"], [9] * (len(ALGORITHMS) - 1))
        self.assertEqual(page["circles"], 0)
        self.assertIn("--kv-heads 4 --head-dim 64 --dtype f32 --order dealt --ranks 8 --ranks-per-node 4", page["command"])


if __name__ == "__main__":
    unittest.main(argv=[word for word in sys.argv if word != "--program"])
