#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A predicted time of the library kernel per shape: what a kernel that only reads takes, and the instructions of its start and its ends.

Run: docs/tools/predicted_times.py

The read is measured (docs/card.json). The start, the last pass and the ends are counted (docs/kernel_instructions.json, sm_90a), the ends along the longest chain: a thread joins the states
of its parts, and then those that the other groups of threads have left. A multiprocessor waits for each instruction of a lone chain, and the ends have
a part that no instruction explains: loads that miss the cache, the atomic and barriers. A walk that is slower than the read is not in it.
"""
import json
import math
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CLOCK, CYCLES = 1.98e9, 3.8  # of an H200; of an instruction in a chain, by the model of the compiled code
FIXED = 2.7e-6  # of the ends: what the measured ends of the kernels before this join had left
DIM, THREADS, QUAD, GROUPS = 128, 128, 4, 4
# Type, heads, rows, blocks of a tile, thread groups of a block.
SHAPES = [("BF16", "16/16", 1, 8, 4), ("BF16", "8/8", 1, 16, 4), ("BF16", "32/8", 4, 16, 4), ("F32", "16/16", 1, 8, 8)]


def chain(rows, parts, threads):
    """States that the longest chain of a thread copies and merges, all quads together."""
    quads = rows * DIM // QUAD
    groups = max(1, min(GROUPS, threads // quads))
    return math.ceil(quads / threads) * (math.ceil(parts / groups) + groups - 1)


def seconds(shape, walks, lines):
    dtype, heads, rows, blocks, thread_groups = shape
    tensor = dtype == "BF16"
    walk = next(w for w in walks if w["kernel"] == "equal_runs" and w["architecture"] == "sm_90a" and
                (w["worker"], w["rows"]) == (("MmaTile<BFloat16, 128, 8>", "tensor map") if tensor else ("SubWarp<float, 32, 1>", "bulk")))
    threads = THREADS if tensor else 2 * THREADS
    states = chain(rows, thread_groups, threads) - 1 + chain(rows, blocks, threads) - 1  # one of each is in the ends
    return [(line["shape"], line["read_seconds"], line.get("apart_seconds", line["graph_seconds"]), line["read_seconds"] + FIXED +
             (walk["start"] + walk["pass"] + walk["arrival"] + walk["exit"] + states * walk["state"]) * CYCLES / CLOCK)
            for line in lines if line["step"] == "short-end" and line["shape"].startswith(f"{dtype}, {heads} heads, ") and line["shape"].endswith("k keys") and "sequences" not in line["shape"]]


def table():
    counted, card = (json.loads((ROOT / "docs" / name).read_text(encoding="utf-8")) for name in ("kernel_instructions.json", "card.json"))
    rows = ["| shape | read, measured | library before, measured | library, predicted | part of the read, predicted |", "| --- | ---: | ---: | ---: | ---: |"]
    for shape in SHAPES:
        for name, read, before, predicted in seconds(shape, counted["walks"], card["lines"]):
            rows.append(f"| {name} | {1e6 * read:.1f} µs | {1e6 * before:.1f} µs | {1e6 * predicted:.1f} µs | {read / predicted:.2f} |")
    return rows


if __name__ == "__main__":
    print(*table(), sep="\n")
