#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables of the chapters on kernels and on cost, made when the pages are: what the code says is read from the code.

Run: docs/tools/kernel_tables.py     prints all of them
"""
import json
import os
import pathlib
import re
import sys

import decode_speed

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MEASURED = ROOT / "docs" / "time_ladder.json"

RATE = json.loads(MEASURED.read_text(encoding="utf-8"))["read_bytes_per_second"]  # of a kernel that only reads, on an H200
DIM, SIZE = 128, 2  # numbers in a row, and bytes of a number: BF16
HEADS = [(16, 16), (32, 8)]  # query heads, key/value heads
LENGTHS = [("8k", 1 << 13), ("64k", 1 << 16), ("1M", 1 << 20), ("5.12M", 5_120_000)]


def source(name):
    return (ROOT / name).read_text(encoding="utf-8")


def table(*rows):
    head, *rest = rows
    return ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1), *("| " + " | ".join(row) + " |" for row in rest)]


def bytes_of(n):
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return f"{n:.0f} B"


def time_of(n_bytes):
    microseconds = n_bytes / RATE * 1e6
    return f"{microseconds / 1000:.3g} ms" if microseconds >= 1000 else f"{microseconds:.3g} µs"


def cache_bytes(kv_heads, n_keys):
    """Keys and values of one sequence."""
    return kv_heads * n_keys * 2 * DIM * SIZE


def shapes():
    """The cache, and the least time that reading it takes."""
    rows = [["BF16, batch 1, d = 128", *(f"{name} keys" for name, _ in LENGTHS)]]
    for heads, kv_heads in HEADS:
        cells = [cache_bytes(kv_heads, n) for _, n in LENGTHS]
        rows.append([f"{heads} query heads, {kv_heads} key/value heads", *(f"{bytes_of(n)}, {time_of(n)}" for n in cells)])
    return table(*rows)


def tensor_rows(group):
    """Queries that one warp serves on tensor cores: see with_tile() of 07_tensor.cu."""
    return 16 if group > 8 else 8


def steps():
    """(name, keys and values asked for, scores asked for) of every step, as functions of heads, kv_heads and n_keys."""

    def by_query(heads, kv_heads, n):
        return heads / kv_heads * cache_bytes(kv_heads, n)

    def by_tile(heads, kv_heads, n):
        group = heads // kv_heads
        return -(-group // tensor_rows(group)) * cache_bytes(kv_heads, n)

    def by_library(heads, kv_heads, n):
        return by_tile(heads, kv_heads, n) if heads > kv_heads else by_query(heads, kv_heads, n)

    def no_scores(heads, n):
        return 0

    def scores(heads, n):
        # Written once; read once for the maximum, and then by every warp of the threads that have a component.
        return 4 * heads * n * (1 + 1 + DIM // 32)

    kinds = {"naive": (by_query, scores), "tensor": (by_tile, no_scores), "equal-runs": (by_library, no_scores)}
    names = {}
    for path in sorted((ROOT / "gpu" / "ladder").glob("[0-9][0-9]_*.cu")):
        names[int(path.name[:2])] = re.search(r'const LadderStep \w+\{\s*\.name = "([\w-]+)"', path.read_text(encoding="utf-8"))[1]
    return [(number, name, *kinds.get(name, (by_query, no_scores))) for number, name in names.items()]


def step_bytes():
    """What every step asks global memory for, with 64k keys; and how long that would take if all of it came from memory."""
    n = dict(LENGTHS)["64k"]
    rows = [["step", *(f"{h} heads, {kv} key/value heads" for h, kv in HEADS)]]
    for number, name, keys, scores in steps():
        cells = []
        for heads, kv_heads in HEADS:
            asked, extra = keys(heads, kv_heads, n), scores(heads, n)
            times = asked / cache_bytes(kv_heads, n)
            scores_too = f" + {bytes_of(extra)} of scores" if extra else ""
            cells.append(f"{times:.0f} x {bytes_of(cache_bytes(kv_heads, n))}{scores_too}: {time_of(asked + extra)}")
        rows.append([f"{number} {name}", *cells])
    return table(*rows)


def plans():
    """What the steps pick on 132 multiprocessors, and what one block has under way: asked of the code by docs/tools/holders.cpp."""
    holders = os.environ.get("TREE_ATTN_DOCS_HOLDERS", "")
    if not holders:
        return ["*Not asked: this page was made without a build.*"]
    listed = json.loads(pathlib.Path(holders).read_text(encoding="utf-8"))["plans"]
    rows = [["step", "heads", "blocks", "threads", "stages", "shared memory", "under way in a block"]]
    of_group = {1: {}, 4: {}}
    for plan in listed:
        of_group[plan["group"]][plan["step"]] = plan
    for number, name, *_ in steps():
        cells = []
        for group in (1, 4):
            plan = of_group[group].get(name)
            if plan is None:
                raise ValueError(f"holders.json: no plan of {name}")
            under_way = f"{plan['in_flight'] / 1024:.3g} KiB" if plan["in_flight"] else ""
            shared = f"{plan['shared'] / 1024:.3g} KiB" if plan["shared"] else ""
            cells.append([str(plan["blocks"]), str(plan["threads"]), str(plan["stages"] or ""), shared, under_way])
        if cells[0] == cells[1]:
            rows.append([f"{number} {name}", "16/16, 32/8", *cells[0]])
        else:
            rows += [[f"{number} {name}", "16/16", *cells[0]], ["", "32/8", *cells[1]]]
    return table(*rows)


def seeded_bugs():
    """Bugs and the modes that must catch them, from the table that the tests run."""
    text = source("tests/gpu/platform/seeded_bugs/seeded_bugs.hpp")
    bug = re.compile(r'\{Bug::\w+, "([^"]+)",\s+(true|false),\s+([\w |]+)\},')
    enum = re.search(r"enum class Bug \{(.*?)\};", text, re.DOTALL)[1]
    n_bugs = len(re.findall(r"\bk\w+", enum)) - 1
    modes = ["plain", "shadow", "address", "thread"]
    rows, found = [["bug", "kernel", *modes]], bug.findall(text)
    if len(found) != n_bugs:
        raise ValueError(f"seeded_bugs.hpp: {n_bugs} bugs, of which {len(found)} could be read")
    everything = {mode: 0 for mode in modes}
    for name, in_cluster, seen_by in found:
        seen = set(re.findall(r"k(\w+)", seen_by))
        marks = ["yes" if mode.capitalize() in seen or "All" in seen else "" for mode in modes]
        for mode, mark in zip(modes, marks):
            everything[mode] += mark == "yes"
        if "yes" not in marks:
            raise ValueError(f"seeded_bugs.hpp: no mode sees '{name}'")
        name = re.sub(r"\b_*[a-z]+_\w+|__\w+", r"`\g<0>`", name)
        rows.append([name, "cluster" if in_cluster == "true" else "pipeline", *marks])
    # The chapter says so.
    if n_bugs in everything.values():
        raise ValueError("seeded_bugs.hpp: one mode sees all bugs")
    return table(*rows)


def resources():
    """Registers and shared memory of every kernel, where a build with nvcc is at hand."""
    folder = os.environ.get("TREE_ATTN_DOCS_RESOURCES", "")
    reports = sorted(pathlib.Path(folder).rglob("*.resources")) if folder else []
    if not reports:
        return ["*Not counted in this build of the pages: it was shown no build by nvcc (TREE_ATTN_DOCS_RESOURCES).*"]
    sys.path.insert(0, str(ROOT / "tests" / "gpu"))
    import resources as reader

    kernels = [kernel for path in reports for kernel in reader.kernels_of(path.read_text(encoding="utf-8"))]
    names = reader.readable(sorted({kernel["name"] for kernel in kernels}))
    rows = [["kernel", "architecture", "registers", "stack frame, bytes"]]
    for kernel in sorted(kernels, key=lambda k: (names[k["name"]], k["arch"])):
        rows.append([f"`{names[kernel['name']]}`", kernel["arch"], str(kernel["registers"]), str(kernel["stack"])])
    return table(*rows)


def measured():
    """Times on a GPU, from docs/time_ladder.json."""
    report = json.loads(MEASURED.read_text(encoding="utf-8"))
    rows = [["shape", "step", "time, in a graph", "rate", "of a kernel that only reads"]]
    for line in report["lines"]:
        if "note" in line:
            rows.append([line["shape"], line["step"], line["note"], "", ""])
        else:
            seconds = line["graph_seconds"]
            rows.append([line["shape"], line["step"], f"{1e6 * seconds:.4g} µs", f"{line['bytes'] / seconds / 1e12:.3g} TB/s",
                         f"{line['read_seconds'] / seconds:.2f}"])
    ceiling = report["read_bytes_per_second"] / 1e12
    return [f"Measured on {report['device']}, {report['date']}, where a kernel that only reads reached {ceiling:.3g} TB/s in the same run:", "", *table(*rows)]


TABLES = {f.__name__: f for f in (shapes, step_bytes, plans, seeded_bugs, resources, measured)} | {"decode_speed": decode_speed.table}


def main():
    for name, make in TABLES.items():
        print(f"{name}\n", *make(), "", sep="\n")


if __name__ == "__main__":
    main()
