#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The first hour on a cluster, with a program that only pretends: every stage finds the failure that is made up for it; and with the real program.

Run: tests/distributed/on_a_cluster/test_run.py [PROGRAM]     the program decodes on threads, where it is given
"""
import json
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAM = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 and Path(sys.argv[1]).exists() else None
# Launcher and program in one: pretend NODES PER is a launcher, the rest are the words of the program. What FAULT names goes wrong.
PRETENDED = r'''#!/usr/bin/env python3
import json, os, sys, time
nodes, per, *words = sys.argv[1:]
nodes, per, fault = int(nodes), int(per), os.environ.get("FAULT", "")
text = " ".join(words)
def option(name, default):
    return words[words.index(name) + 1] if name in words else default
stage = "facts" if words[-1] == "info" else "outside" if "transformer.py" in text else "failure" if "as-rank" in text else "decode"
def says(line, status=0):
    print(line)
    sys.exit(status)
if fault == "hang " + stage:
    time.sleep(60)
if stage == "facts":
    print("GPU            one, GPU-5f, for ranks 0, 1" if fault == "one GPU" else "")
    says(f"ranks          {nodes * per - (fault == 'a rank is missing')} on {nodes} nodes")
if stage == "outside":
    says("logits abc" if nodes * per == 1 or fault != "other logits" else "logits abd")
if stage == "failure":
    if fault == "left":
        open(os.environ["ON_A_CLUSTER_MEMORY"] + "/left", "w").close()
    says("" if fault == "no rank is named" else "rank 0 waited 3 s for a message of rank 1", 0 if fault == "no rank fails" else 2)
if fault == "a wrong exit":
    says("no NCCL", 2)
runs = []
for algorithm in [option("--algorithm", "two-level"), *option("--compare", "").split(",")]:
    if algorithm:
        bad = fault.partition(": ")[2] in text and nodes * per > 1 and algorithm != "paper"
        counts = {"messages_per_step": 2, "bytes_per_step": 64, "bytes_between_nodes_per_step": 32}
        runs.append({"algorithm": algorithm, "backend": option("--backend", ""), "transport": option("--transport", "mpi"), "order": option("--order", "contiguous"), "seq_len": 64, "dtype": "bf16",
                     "heads": int(option("--heads", 16)), "kv_heads": int(option("--kv-heads", 16)), "head_dim": 128, "steps": int(option("--steps", 1)), "ranks": nodes * per, "nodes": nodes,
                     "latency_us": {"median": 10, "p90": 101 if bad and fault.startswith("slow") else 12}, "combine_us": {"median": 9}, "same_bits_on_all_ranks": not (bad and fault.startswith("ranks")),
                     "passed": not (bad and fault.startswith("bound")), "output_digest": "e" if bad and fault.startswith("digest") else "d", "predicted": counts,
                     **counts, "bytes_between_nodes_per_step": 31 if bad and fault.startswith("bytes") else 32})
if fault != "no report":
    json.dump({"runs": runs}, open(option("--report", "/dev/null"), "w"))
'''
PREDICTS = r'''#!/bin/sh
while [ "$1" != --report ]; do shift; done
echo '{"runs": [{"algorithm": "two-level", "predicted": {"step_us": 5.0}}]}' > "$2"
'''
# A failure, what the run says of it, and in which stages.
FAULTS = {"one GPU": ("for ranks 0, 1", {0}), "a rank is missing": ("info does not have", {0}), "hang facts": ("no end within", {0}), "bound: --verify": ("beyond the bound", {1}), "digest: --transport shared": ("digest e, not d", {1}),
          "digest: --order contiguous --transport mpi": ("digest e, not d", {2}), "digest: --algorithm one-shot": ("digest e, not d", {3}), "slow: --transport nccl --algorithm one-shot": ("a tenth of the steps", {3}),
          "ranks: --order dealt": ("other bits", {4}), "bytes: leaders,gather": ("31, predicted 32", {5}), "no rank is named": ("no line names the rank", {6}), "no rank fails": ("status 0", {6}),
          "hang failure": ("no end within", {6}), "other logits": ("the logits are not", {7}), "a wrong exit": ("status 2", {1, 2, 3, 4, 5}), "no report": ("there is no report", {1, 2, 3, 4, 5}),
          "left": ("left in shared memory: left", {6})}


class Cluster(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name, text in (("launch", PRETENDED), ("program", PREDICTS)):
            (self.folder / name).write_text(text, encoding="utf-8")
            (self.folder / name).chmod(0o755)

    def run_all(self, *options, **environment):
        words = [sys.executable, HERE / "run", "--launch", f"{self.folder}/launch {{nodes}} {{per}}", "--program", self.folder / "program", "--out", self.folder / "out", "--patience", "1", *options]
        ended = subprocess.run(words, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin", "ON_A_CLUSTER_SECONDS": "0", "ON_A_CLUSTER_MEMORY": str(self.folder), **environment})
        with tarfile.open(self.folder / "out" / "on_a_cluster.tar.xz") as archive:
            return ended, [json.loads(line) for line in archive.extractfile("record.jsonl").read().decode().splitlines()]

    def test_all_is_right_and_reported(self):
        ended, lines = self.run_all()
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertEqual([line["of"] for line in lines if line["name"] == "stage"], ["facts", "MPI alone", "one GPU a node", "two GPUs", "GPUs of a node", "between nodes", "failures", "from outside"])
        self.assertEqual([line["wrong"] for line in lines if line.get("wrong")], [])
        self.assertNotIn("PATH=/usr/bin:/bin", [x for line in lines if line["name"] == "environment" for x in line["said"]])
        said = subprocess.run([sys.executable, HERE / "run", "report", self.folder / "out" / "on_a_cluster.tar.xz"], capture_output=True, text=True, check=True).stdout
        self.assertIn("| 2 x 8 | 16/16 | nccl, LL buffers | two-level, contiguous | 10.0 | 5.0 | 2.00 | 9.0 | 64 | 32 |", said)

    def test_each_stage_finds_its_failure(self):
        for fault, (line, numbers) in FAULTS.items():
            with self.subTest(fault):
                (self.folder / "left").unlink(missing_ok=True)
                limits = ("--limits", "0.02") if fault.startswith("hang") else ()
                ended, lines = self.run_all(*limits, "--stages", ",".join(map(str, numbers)), FAULT=fault)
                wrong = [x for x in lines if x.get("wrong")]
                self.assertEqual((ended.returncode, {x["stage"] for x in wrong}), (1, numbers), ended.stdout + ended.stderr)
                self.assertTrue(all(line in " ".join(x["wrong"]) for x in wrong), wrong)
                self.assertTrue(subprocess.run([sys.executable, HERE / "run", "report", self.folder / "out" / "on_a_cluster.tar.xz"], capture_output=True, text=True, check=False).returncode)

    def test_a_program_that_is_missing_costs_only_itself(self):
        ended, lines = self.run_all("--launch", "/no/such/launcher", "--stages", "0,1,6")
        self.assertEqual((ended.returncode, {x["status"] for x in lines if "wrong" in x}), (1, {127}))

    @unittest.skipUnless(PROGRAM, "without the program")
    def test_threads_of_the_program(self):
        ended, lines = self.run_all("--launch", "threads", "--program", PROGRAM, "--backend", "emulated", "--nodes", "2", "--ranks-per-node", "2", "--rehearse", "--limits", "10", "--stages", "0,1,2")
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertGreater(len({run["ranks"] for line in lines for run in line.get("runs", ())}), 2)


if __name__ == "__main__":
    unittest.main()
