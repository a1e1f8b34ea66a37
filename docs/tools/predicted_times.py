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
FIXED = 2.7e-6  # of the ends, of thread groups and of blocks: what the measured ends of the kernels before this join had left
DIM, THREADS, GROUPS = 128, 128, 4
# Of multi-head latent attention: elements of a row and of a value, rows that share a ring, bytes a second of a read, and how much longer two warps of a
# scheduler take than one, by the same model.
LATENT_KEY, LATENT_VALUE, LATENT_ROWS, READ, TWO_WARPS = 576, 512, 16, 4.68e12, 1.23
ELEMENTS = {"BF16": 8, "F32": 4}  # that a thread merges: eight in tiles of rows
LEAF, MULTIPROCESSORS = 64, 132
# Type, heads, rows, blocks of a tile, thread groups of a block.
SHAPES = [("BF16", "16/16", 1, 8, 4), ("BF16", "8/8", 1, 16, 4), ("BF16", "32/8", 4, 16, 4), ("F32", "16/16", 1, 8, 8)]


def chain(rows, parts, threads, elements, dim=DIM):
    """States that the longest chain of a thread copies and merges, all of its slices together, of so many elements each."""
    slices = rows * dim // elements
    groups = max(1, min(GROUPS, threads // slices))
    return math.ceil(slices / threads) * (math.ceil(parts / groups) + groups - 1)


def seconds(shape, walks, lines):
    dtype, heads, rows, blocks, thread_groups = shape
    tensor = dtype == "BF16"
    walk = next(w for w in walks if w["kernel"] == "equal_runs" and w["architecture"] == "sm_90a" and
                (w["worker"], w["rows"]) == (("MmaTile<BFloat16, 128, 8>", "tensor map") if tensor else ("SubWarp<float, 32, 1>", "bulk")))
    threads = THREADS if tensor else 2 * THREADS
    states = sum(chain(rows, parts, threads, ELEMENTS[dtype]) - 1 for parts in (thread_groups, blocks))  # one of each is in the ends
    return [(line["shape"], line["read_seconds"], line.get("apart_seconds", line["graph_seconds"]), line["read_seconds"] + FIXED +
             (walk["start"] + walk["pass"] + walk["arrival"] + walk["exit"] + states * walk["state"]) * CYCLES / CLOCK)
            for line in lines if line["step"] == "short-end" and line["shape"].startswith(f"{dtype}, {heads} heads, ") and line["shape"].endswith("k keys") and "sequences" not in line["shape"]]


def step(walk, kv_heads, rows, keys, read):
    """Seconds of a step with so many rows for each key/value head: the read or the walk, whichever is longer, and the ends. A query tile is up to four
    tiles of rows that read the same keys on tensor cores, and one row on CUDA cores; every query tile reads them again."""
    of_tile, n_warps = (8, THREADS // 32) if walk["worker"].startswith("MmaTile") else (1, 2 * THREADS // 32)
    tiles = math.ceil(rows / of_tile)
    teams = min(n_warps, 1 << (tiles - 1).bit_length()) if of_tile > 1 else 1  # of a query tile
    passes = math.ceil(tiles / teams)
    blocks = max(1, MULTIPROCESSORS // (kv_heads * passes)) * kv_heads * passes
    walked = kv_heads * passes * keys / LEAF / blocks / (n_warps // teams) * walk["leaf"] * CYCLES / CLOCK
    own = [min(of_tile, rows - of_tile * t) for t in range(min(tiles, teams))]
    states = sum(chain(n, parts, 32 * n_warps, ELEMENTS["BF16" if of_tile > 1 else "F32"]) for n in own for parts in (n_warps // teams, blocks // (kv_heads * passes))) - 2
    return max(passes * read, walked) + FIXED + (walk["start"] + walk["pass"] + walk["arrival"] + walk["exit"] + states * walk["state"]) * CYCLES / CLOCK


def factors(walks, lines):
    """(type, query heads for each key/value head, keys, rows, l = 8 by l = 1) where every query head has eight queries instead of one."""
    for dtype, worker, copied in (("BF16", "MmaTile<BFloat16, 128, 8>", "tensor map"), ("F32", "SubWarp<float, 32, 1>", "bulk")):
        walk = next(w for w in walks if (w["kernel"], w["architecture"], w["worker"], w["rows"]) == ("equal_runs", "sm_90a", worker, copied))
        for name, keys in (("8k", 8192), ("64k", 65536)):
            read = next(line["read_seconds"] for line in lines if line["step"] == "short-end" and line["shape"] == f"{dtype}, 16/16 heads, {name} keys")
            for group in (1, 2, 4):
                yield dtype, group, name, 8 * group, step(walk, 16, 8 * group, keys, read) / step(walk, 16, group, keys, read)


def latent(walk, heads, keys):
    """(seconds of a kernel that only reads the rows, of the walk, of the step) for so many query heads on one key/value head, values in the keys."""
    groups, two = math.ceil(heads / LATENT_ROWS), heads > 8
    blocks = max(1, min(MULTIPROCESSORS // groups, int((keys / LEAF * 8 / 3) ** (2 / 3))))  # of a tile: choose_blocks()
    walked = math.ceil(keys / LEAF / blocks) * walk["leaf"] * CYCLES * (TWO_WARPS if two else 1) / CLOCK
    team = 8 if blocks <= 8 else next(1 << log for log in range(2, 9) if 2 << 2 * log >= blocks)  # log_team()
    levels = [min(team, blocks)] + ([math.ceil(blocks / team)] if blocks > team else [])
    states = sum(chain(min(8, heads - first), parts, 256 if two else 128, 8, LATENT_VALUE) for first in range(0, min(heads, LATENT_ROWS), 8) for parts in levels)
    read = 2.55e-6 + keys * LATENT_KEY * 2 / READ
    return read, walked, max(read, walked) + FIXED * (1 + len(levels)) / 2 + (walk["start"] + walk["pass"] + walk["arrival"] + walk["exit"] + states * walk["state"]) * CYCLES / CLOCK


def latent_table():
    walks = json.loads((ROOT / "docs" / "kernel_instructions.json").read_text(encoding="utf-8"))["walks"]
    walk = next(w for w in walks if (w["kernel"], w["architecture"], w["worker"], w["rows"]) == ("equal_runs", "sm_90a", "MmaTile<BFloat16, 512, 8, 4>", "tensor map"))
    lines = ["| latent rows of 576, values of 512, BF16 | read | walk, predicted | step, predicted |", "| --- | ---: | ---: | ---: |"]
    for heads in (16, 128):
        for name, keys in (("8k", 8192), ("64k", 65536), ("1M", 1 << 20)):
            lines.append(f"| {heads} heads, {name} keys | " + " | ".join(f"{1e6 * s:.1f} µs" for s in latent(walk, heads, keys)) + " |")
    return lines


def verify_table():
    counted, card = (json.loads((ROOT / "docs" / name).read_text(encoding="utf-8")) for name in ("kernel_instructions.json", "card.json"))
    found = list(factors(counted["walks"], card["lines"]))
    return ["| query heads for each of 16 | rows at l = 8 | BF16, 8k keys | BF16, 64k | F32, 8k | F32, 64k |", "| ---: | ---: |" + " ---: |" * 4] + [
        f"| {group} | {8 * group} |" + "".join(f" {next(f[4] for f in found if f[:3] == (dtype, group, keys)):.2f} |" for dtype in ("BF16", "F32") for keys in ("8k", "64k"))
        for group in (1, 2, 4)]


def table():
    counted, card = (json.loads((ROOT / "docs" / name).read_text(encoding="utf-8")) for name in ("kernel_instructions.json", "card.json"))
    rows = ["| shape | read, measured | library before, measured | library, predicted | part of the read, predicted |", "| --- | ---: | ---: | ---: | ---: |"]
    for shape in SHAPES:
        for name, read, before, predicted in seconds(shape, counted["walks"], card["lines"]):
            rows.append(f"| {name} | {1e6 * read:.1f} µs | {1e6 * before:.1f} µs | {1e6 * predicted:.1f} µs | {read / predicted:.2f} |")
    return rows


if __name__ == "__main__":
    print(*table(), "", *verify_table(), "", *latent_table(), sep="\n")
