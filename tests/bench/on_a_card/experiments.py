# SPDX-License-Identifier: Apache-2.0
"""Experiments on a card, in the order of their value: what decides between builds first, what completes the record of a card last.

The builds of a comparison take turns: the first of them runs first and last, and what differs less than these two does not count.
"""
import sys
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "time_ladder")]
import report

VARIANTS = {path.stem: path for path in sorted((Path(__file__).resolve().parent / "variants").glob("*.diff"))}
BUILDS = ["v0", *VARIANTS]
# Builds whose bits are not those of the ladder: only their results are compared, with sums in double.
OTHER_BITS = {"approximate-exponential"}


class Experiment(NamedTuple):
    name: str
    words: tuple  # a program of a build or a tool, and its options
    seconds: float  # at most
    decides: str
    wants: str  # a pattern that its output has if all is well
    part: str = "record"
    build: str = BUILDS[0]
    small: tuple = ()  # options in a rehearsal, after the others
    given: str = ""  # what it reads: "shapes" are those that the experiments before it have timed
    beside: bool = False  # whether it may run beside others: nothing is timed
    if_built: bool = False  # whether it is left out where its program was not built


# One case each of plain bits, copies, rows that share a ring, values that are not finite, latent rows, and windows.
CASES = ["plain kernels: the library kernels have their bits for every N*", "tensor: copies by tensor maps*", "row tiles: a row has the bits*",
         "row tiles: what is not finite*", "latent rows: the bits of step 6*", "seen on a device: random rules*1"]
# Where they are timed, by what they have in common; on a GPU in software, the shape in place of them.
SHAPES = {
    "short": (["BF16, 16/16 heads, 512 keys", "BF16, 16/16 heads, 8k keys", "BF16, 32/8 heads, 8k keys", "BF16, 32/8 heads, 8k keys, capped"], 7,
              "BF16, 16/16 heads, 512 keys;BF16, 4/4 heads, 256 keys, capped"),
    "long": (["BF16, 16/16 heads, 64k keys", "BF16, 32/8 heads, 64k keys", "BF16, 16/16 heads, 1M keys", "F8_E4M3, 32/8 heads, 64k keys"], 12, "F8_E4M3, 4/4 heads, 256 keys"),
    "many rows": (["BF16, 32/8 heads, 8k keys, l = 8", "BF16, 32/8 heads, 64k keys, l = 8", "BF16, 16/1 heads, 64k keys, latent", "BF16, 128/1 heads, 64k keys, latent"], 9,
                  "BF16, 4/4 heads, 128 keys, l = 8"),
    "ragged": (["BF16, 16/16 heads, 64 sequences of 1k to 32k keys", "BF16, 32/8 heads, 64 sequences of 1k to 32k keys"], 8, "BF16, 16/1 heads, 128 keys, latent")}
RAW = ["BF16, 16/16 heads, 64k keys", "BF16, 32/8 heads, 64k keys", "BF16, 16/16 heads, 1M keys", "BF16, 16/16 heads, 64 sequences of 1k to 32k keys"]
STALLED = ["BF16, 16/16 heads, 512 keys", "BF16, 16/16 heads, 64k keys", "BF16, 32/8 heads, 64k keys, l = 8", "BF16, 16/1 heads, 64k keys, latent"]
STEPS = ["equal-runs", "units", "tensor", "copies", "split", "vectors", "fused", "naive"]
# One case each of scalar cores, copies by tensor maps, units and lists of leaves.
SANITIZED = ["lengths: warps without*", "tensor: copies by tensor maps*", "units:*", "dealt on a device: the states of a rank*"]


def names():
    """All shapes that are asked for by their names."""
    return {shape for shapes, _, _ in SHAPES.values() for shape in shapes} | {*RAW, *STALLED}


def line(part):
    return f'"part": "{part}"'


def deciding(builds, rehearses=False):
    """@param rehearses whether the programs of one build stand for all"""
    yield Experiment("machine", ("nvidia-smi",), 10, "which card, clocks and driver", "Driver", "right")
    for build in builds:
        for case in [] if build in OTHER_BITS else CASES if build == builds[0] or not rehearses else CASES[1:2]:
            yield Experiment(f"{build}: {case}", ("test_gpu_cuda", f"--test-case={case}"), 30, "whether the bits of a build are right", r"test cases: +[1-9]", "right", build, beside=True)
    yield Experiment("one digest", ("test_gpu_cuda", "--test-case=one digest:*"), 60, "whether a card has the bits of the CPU: F32, and every type with --portable, 200 random cases of both", r"test cases: +[1-9]", "primitives", beside=True)
    yield Experiment("models", ("test_gpu_cuda", "--test-case=tensor bits: digests*,products: *"), 60, "whether its tensor cores add by the model: decodes as emulated, a million tiles, and those of warpgroups as those of warps", r"test cases: +[1-9]", "primitives", beside=True)
    yield Experiment("primitives", ("time_primitives",), 12, "what a launch, a message, a fence and an atomic cost; states by st.async", line("primitive"), "primitives")
    for group, (shapes, seconds, small) in SHAPES.items():
        for i, build in enumerate([*builds, builds[0]]):
            yield Experiment(f"{build}{' again' if i == len(builds) else ''}: {group}", ("time_ladder", "--lean", "--steps", "equal-runs", "--shape", ";".join(shapes)), seconds,
                             "which build is faster", line("variant"), "variants", build, ("--shape", small))
    yield Experiment("raw stamps", ("time_stamps", "--raw", "20", "--shape", ";".join(RAW)), 30, "why blocks end apart: multiprocessors, addresses or chance", line("raw stamps"), "stamps",
                     small=("--shape", "BF16, 16/16 heads, 512 keys"))
    yield Experiment("rings", ("time_rings",), 45, "whether the copies of the engine are the cause: rings, hint, order of leaves", line("rings"), "copies")
    yield Experiment("step of a host", ("time_step_cuda",), 20, "where a step spends what its kernel does not", line("host step"), "step", small=("--keys", "256", "--timed", "2"))
    yield Experiment("peers", ("python3", "peers.py"), 45, "what the same steps take that promise nothing", line("peer"), "peers", given="shapes")
    for name in ("flashinfer", "xqa", "flashmla"):
        yield Experiment(name, (f"time_{name}",), 15, "likewise, of a library that is compiled from its sources", line("peer"), "peers", if_built=True)
    for shape in STALLED:
        yield Experiment(f"stalls: {shape}", ("ncu", "--csv", "--clock-control", "none", "--kernel-name", "regex:^decode_units", "--launch-count", "1", "--kill", "yes", "--metrics", ",".join(report.COUNTERS),
                                              "time_ladder", "--lean", "--steps", "equal-runs", "--shape", shape), 10, "what warps wait for", "inst_executed", "stalls")


def completing(n_cases, rehearses=False):
    """@param n_cases of test_gpu_cuda, by number: a name may hold what a filter takes for itself; a rehearsal has few of them"""
    for number in range(1, n_cases + 1, 24 if rehearses else 1):
        yield Experiment(f"case {number}", ("test_gpu_cuda", f"--first={number}", f"--last={number}"), 90, "whether all is right", r"test cases: +[1-9]", beside=True)
    for case in SANITIZED:
        for tool in ("memcheck", "synccheck"):
            yield Experiment(f"{tool}: {case}", ("compute-sanitizer", "--error-exitcode", "9", "--tool", tool, "test_gpu_cuda", f"--test-case={case}"), 90, "whether memory is right",
                             r"test cases: +[1-9]", beside=True)
    yield Experiment("copies", ("time_copies",), 60, "the table of copies", line("copies"))
    yield Experiment("walks", ("time_walks",), 20, "the rate of one block alone", line("walk"))
    yield Experiment("stamps", ("time_stamps",), 60, "the table of ends", line("stamps"))
    for step in STEPS:
        yield Experiment(f"ladder: {step}", ("time_ladder", "--steps", step), 120, "the table of the ladder", line("step"))
    small = ("--steps", "8", "--timed", "1", "--keys", "512", "--timeout", "30")
    yield Experiment("two parts", ("exchange_on_parts_cuda", "--parts", "2", "--steps", "2000"), 90, "the bits of an exchange, and where its time goes", line("bits"), small=small)
    yield Experiment("more parts", ("exchange_on_parts_cuda", "--parts", "4,8", "--steps", "2000"), 120, "the same of more ranks", line("bits"), small=small)


def experiments(builds, n_cases=0, rehearses=False):
    """All, in order."""
    return [*deciding(builds, rehearses), *completing(n_cases, rehearses)]
