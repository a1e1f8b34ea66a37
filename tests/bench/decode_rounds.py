# SPDX-License-Identifier: Apache-2.0
"""Times the decode and its baselines in turns, in one run: what docs/decode_speed.json holds.

Every round runs each contestant once, in a new order. Speeds are compared within a round, and the median over the rounds is
kept, so that a machine that becomes slow for a while disturbs no ratio.
"""
import datetime
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PROGRAM = FOLDER.parent.parent / "build-bench" / "bench_decode"
SECONDS = 0.02  # of one turn, at least
NAMES = ["dtype", "keys", "heads", "kv_heads", "head_dim", "threads"]

# The first case of each type is its largest: the others use the first part of its elements.
CASES = [dict(zip(NAMES, values)) for values in [
    ("F32", 65536, 16, 16, 128, 1),
    ("F32", 65536, 16, 16, 128, 2),
    ("F32", 65536, 16, 4, 128, 1),
    ("F32", 65536, 16, 16, 64, 1),
    ("F32", 4096, 16, 4, 64, 1),
    ("F32", 4096, 4, 4, 64, 1),
    ("F32", 512, 16, 16, 128, 1),
    ("F32", 512, 16, 16, 128, 2),
    ("BF16", 65536, 16, 16, 128, 1),
    ("BF16", 65536, 16, 16, 128, 2),
    ("BF16", 65536, 16, 4, 128, 1),
    ("BF16", 65536, 16, 16, 64, 1),
    ("BF16", 4096, 16, 4, 64, 1),
    ("BF16", 4096, 4, 4, 64, 1),
    ("BF16", 512, 16, 16, 128, 1),
    ("F16", 65536, 16, 16, 128, 1),
]]


class Worker:
    """A program that answers requests, one line each: see bench_decode.cpp."""

    def __init__(self, command):
        self.command = command
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def ask(self, *words):
        request = " ".join(map(str, words))
        try:
            self.process.stdin.write(request + "\n")
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise SystemExit(f"bench: {Path(self.command[-1]).name} ended at '{request}'")
        return answer

    def huge_bytes(self):
        """Bytes of its memory in pages of 2 MiB."""
        for line in Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("AnonHugePages:"):
                return 1024 * int(line.split()[1])
        return 0

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def contestants(case, workers):
    """{name: worker} of all that take part in a case."""
    names = {"read": workers[0], "decode": workers[0], "plain": workers[0]}
    if case["dtype"] == "F32":
        names["Eigen"] = workers[0]
    if len(workers) > 1:
        names["PyTorch"] = workers[1]
    return names


def check_results(case, names):
    """All contestants compute attention: their outputs differ by less than any mistake would make them."""
    z = {name: [float(x) for x in worker.ask("result", name).split()] for name, worker in names.items() if name != "read"}
    largest = max(map(abs, z["decode"]))
    for name, values in z.items():
        # The comparison is false for NaN.
        agree = len(values) == len(z["decode"]) and all(abs(a - b) <= 0.05 * largest for a, b in zip(values, z["decode"]))
        if not agree or not 0 < largest < math.inf:
            raise SystemExit(f"bench: {name} and the decode have different results in {case}")


def ratios(times, over, under):
    """Median over the rounds of (time of `over`) / (time of `under`), in CPU time and in wall time."""
    medians = [statistics.median(a[clock] / b[clock] for a, b in zip(times[over], times[under])) for clock in (0, 1)]
    return {clock: float(f"{median:.4g}") for clock, median in zip(("cpu", "wall"), medians)}


def measure_case(case, workers, n_rounds, shuffle):
    names = contestants(case, workers)
    for worker in workers:
        worker.ask("case", *(case[name] for name in NAMES))
    check_results(case, names)
    times = {name: [] for name in names}
    for _ in range(n_rounds):
        for name in shuffle(list(names)):
            times[name].append([float(seconds) for seconds in names[name].ask("time", name, SECONDS).split()])
    others = [name for name in names if name not in ("read", "decode")]
    return case | {"of_read": {name: ratios(times, "read", name) for name in ["decode", *others]},
                   "times_faster": {name: ratios(times, name, "decode") for name in others}}


def huge_pages(case, workers):
    """The part of keys and values that lies in pages of 2 MiB, of the worker with the least of it."""
    cache = 2 * case["kv_heads"] * case["keys"] * case["head_dim"] * {"F32": 4, "F16": 2, "BF16": 2}[case["dtype"]]
    return round(min(1, *(worker.huge_bytes() / cache for worker in workers)), 3)


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def measure(n_rounds, torch_python=None):
    """The report. @param torch_python an interpreter that imports torch, or None"""
    workers = [Worker([PROGRAM])]
    if torch_python:
        workers.append(Worker([torch_python, FOLDER / "baseline_torch.py"]))
    random_order = random.Random(1)

    def shuffle(names):
        random_order.shuffle(names)
        return names

    report = {"date": str(datetime.date.today()), "processor": processor(), "cores": os.cpu_count(), "versions": {},
              "rounds": n_rounds, "huge_pages": 0, "cases": []}
    for worker in workers:
        report["versions"] |= json.loads(worker.ask("versions"))
    for case in CASES:
        report["cases"].append(measure_case(case, workers, n_rounds, shuffle))
        if case is CASES[0]:
            report["huge_pages"] = huge_pages(case, workers)
        print(f"{len(report['cases'])} of {len(CASES)} cases of the decode", file=sys.stderr)
    for worker in workers:
        worker.close()
    return report
