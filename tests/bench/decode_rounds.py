# SPDX-License-Identifier: Apache-2.0
"""Times the decode and its baselines in turns, in one run: what docs/decode_speed.json holds.

Every round runs each contestant once, in a new order. Speeds are compared within a round, and the median over the rounds is
kept, so that a machine that becomes slow for a while disturbs no ratio. Where the pages of a program lie in memory changes
its speed for as long as it runs, so the programs are started several times: a ratio is the median over the starts, and its
range is that from the least to the most.
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
NAMES = ["dtype", "keys", "heads", "kv_heads", "head_dim", "queries", "threads"]
OPERATIONS = ["multiplies", "adds", "conversions", "exponentials"]

# What no decode is faster than: reading the cache; multiplying and adding, each an instruction; both in one instruction.
LIMITS = ["read", "arithmetic", "fused"]

# Several queries have a causal edge. The first case of each type is its largest: the others use the first part of its elements.
CASES = [dict(zip(NAMES, values)) for values in [
    ("F32", 65536, 16, 16, 128, 1, 1),
    ("F32", 65536, 16, 16, 128, 1, 2),
    ("F32", 65536, 16, 4, 128, 1, 1),
    ("F32", 65536, 16, 4, 128, 1, 2),
    ("F32", 65536, 16, 4, 128, 8, 1),
    ("F32", 65536, 16, 16, 64, 1, 1),
    ("F32", 4096, 16, 4, 64, 1, 1),
    ("F32", 4096, 16, 4, 64, 1, 2),
    ("F32", 4096, 4, 4, 64, 1, 1),
    ("F32", 512, 16, 16, 128, 1, 1),
    ("F32", 512, 16, 16, 128, 1, 2),
    ("F32", 2048, 16, 16, 128, 1, 1),
    ("F32", 2048, 16, 16, 128, 1, 2),
    ("BF16", 65536, 16, 16, 128, 1, 1),
    ("BF16", 65536, 16, 16, 128, 1, 2),
    ("BF16", 65536, 16, 4, 128, 1, 1),
    ("BF16", 65536, 16, 4, 128, 1, 2),
    ("BF16", 65536, 16, 4, 128, 8, 1),
    ("BF16", 65536, 16, 16, 64, 1, 1),
    ("BF16", 4096, 16, 4, 64, 1, 1),
    ("BF16", 4096, 16, 4, 64, 1, 2),
    ("BF16", 4096, 4, 4, 64, 1, 1),
    ("BF16", 512, 16, 16, 128, 1, 1),
    ("F16", 65536, 16, 16, 128, 1, 1),
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
    ours = [*LIMITS, "decode"]
    if case["queries"] == 1:
        ours += ["plain", "Eigen"] if case["dtype"] == "F32" else ["plain"]
    names = dict.fromkeys(ours, workers["decode"]) | workers
    if case["dtype"] == "F16":  # it sums values of F16 in F16: after 65536 keys some are wrong by more than check_results() allows
        names.pop("llama.cpp", None)
    return names


def check_results(case, names):
    """All contestants compute attention: their outputs differ by less than any mistake would make them."""
    z = {name: [float(x) for x in worker.ask("result", name).split()] for name, worker in names.items() if name not in LIMITS}
    largest = max(map(abs, z["decode"]))
    for name, values in z.items():
        # The comparison is false for NaN.
        agree = len(values) == len(z["decode"]) and all(abs(a - b) <= 0.05 * largest for a, b in zip(values, z["decode"]))
        if not agree or not 0 < largest < math.inf:
            raise SystemExit(f"bench: {name} and the decode have different results in {case}")


def ratios(starts, over, under):
    """(Time of `over`) / (time of `under`), in CPU time and in wall time: per start the median over its rounds, and of these the median and the range.

    @param starts one {name: [[CPU time, wall time] of a round, ..]} per start
    """
    result = {}
    for clock, i in (("cpu", 0), ("wall", 1)):
        medians = [statistics.median(a[i] / b[i] for a, b in zip(times[over], times[under])) for times in starts]
        result[clock], *result[f"{clock}_range"] = (float(f"{x:.4g}") for x in (statistics.median(medians), min(medians), max(medians)))
    return result


def time_case(case, workers, n_rounds, shuffle):
    """Times of one start: {name: [[CPU time, wall time] of a round, ..]}; notes in the case what each key takes."""
    names = contestants(case, workers)
    of_key = [worker.ask("case", *(case[name] for name in NAMES)) for worker in workers.values()][0]
    case["of_key"] = dict(zip(OPERATIONS, map(float, of_key.split())))
    check_results(case, names)
    times = {name: [] for name in names}
    for _ in range(n_rounds):
        for name in shuffle(list(names)):
            times[name].append([float(seconds) for seconds in names[name].ask("time", name, SECONDS).split()])
    return times


def compare(case, starts):
    """A case and its ratios. @param starts times of each start, see time_case()"""
    others = [name for name in starts[0] if name not in [*LIMITS, "decode"]]
    return case | {f"of_{limit}": {"decode": ratios(starts, limit, "decode")} for limit in LIMITS[1:]} | {"of_read": {name: ratios(starts, "read", name) for name in ["decode", *others]},
                   "times_faster": {name: ratios(starts, name, "decode") for name in others}}


def huge_pages(case, workers):
    """The part of keys and values that lies in pages of 2 MiB, of the worker with the least of it."""
    cache = 2 * case["kv_heads"] * case["keys"] * case["head_dim"] * {"F32": 4, "F16": 2, "BF16": 2}[case["dtype"]]
    return round(min(1, *(worker.huge_bytes() / cache for worker in workers.values())), 3)


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def measure(n_starts, n_rounds, peers):
    """The report. @param peers {name: command of its program}"""
    commands = {"decode": [PROGRAM]} | peers
    random_order = random.Random(1)

    def shuffle(names):
        random_order.shuffle(names)
        return names

    report = {"date": str(datetime.date.today()), "processor": processor(), "cores": os.cpu_count(), "versions": {},
              "starts": n_starts, "rounds": n_rounds, "huge_pages": 1}
    times = [[] for _ in CASES]
    for start in range(n_starts):
        workers = {name: Worker(command) for name, command in commands.items()}
        for worker in workers.values():
            report["versions"] |= json.loads(worker.ask("versions"))
        for case, of_case in zip(CASES, times):
            of_case.append(time_case(case, workers, n_rounds, shuffle))
            if case is CASES[0]:
                report["huge_pages"] = min(report["huge_pages"], huge_pages(case, workers))
        for worker in workers.values():
            worker.close()
        print(f"{start + 1} of {n_starts} starts of the decode", file=sys.stderr)
    return report | {"cases": [compare(case, starts) for case, starts in zip(CASES, times)]}
