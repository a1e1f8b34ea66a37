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
import network
import recall
import section_6

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MEASURED = ROOT / "docs" / "time_ladder.json"

RECORD = json.loads(MEASURED.read_text(encoding="utf-8"))
# A record per card, by tests/bench/on_a_card; this one is the page's, and the others change none of its tables.
CARD = json.loads((ROOT / "docs" / "cards" / "h200.json").read_text(encoding="utf-8"))
RATE = CARD["read_bytes_per_second"]  # of a kernel that only reads
DIM, SIZE = 128, 2  # elements of a row, and bytes of an element: BF16
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
    """The cache, and the time of its bytes at the highest rate of a read."""
    rows = [["BF16, batch 1, d = 128", *(f"{name} keys" for name, _ in LENGTHS)]]
    for heads, kv_heads in HEADS:
        cells = [cache_bytes(kv_heads, n) for _, n in LENGTHS]
        rows.append([f"{heads} query heads, {kv_heads} key/value heads", *(f"{bytes_of(n)}, {time_of(n)}" for n in cells)])
    return table(*rows)


# Queries that one warp serves on tensor cores in BF16: see with_tile() of gpu/engine/pipelines.cuh.
TILE_ROWS = 8


def steps():
    """(number, name, keys and values asked for, scores asked for) of every step and of the library kernels, as functions of heads, kv_heads and
    n_keys."""

    def by_query(heads, kv_heads, n):
        return heads / kv_heads * cache_bytes(kv_heads, n)

    def by_tile(heads, kv_heads, n):
        return -(-heads // kv_heads // TILE_ROWS) * cache_bytes(kv_heads, n)

    def no_scores(heads, n):
        return 0

    def scores(heads, n):
        # Written once; read once for the maximum, and then by every warp of the threads that have a component.
        return 4 * heads * n * (1 + 1 + DIM // 32)

    kinds = {"naive": (by_query, scores), "tensor": (by_tile, no_scores), "units": (by_tile, no_scores), "equal-runs": (by_tile, no_scores)}
    names = {}
    for path in sorted((ROOT / "gpu" / "ladder").glob("[0-9][0-9]_*.cu")):
        names[str(int(path.name[:2]))] = re.search(r'const LadderStep \w+[^;]*?\{\s*\.name = "([\w-]+)"', path.read_text(encoding="utf-8"))[1]
    library = re.findall(r'const DecodeKernel \w+\{\.name = "([\w-]+)"', source("gpu/ladder/ladder.cu"))
    return [(number, name, *kinds.get(name, (by_query, no_scores))) for number, name in [*names.items(), *(("library:", name) for name in library)]]


def step_bytes():
    """Returns what every step asks global memory for, with 64k keys; and how long that would take if all of it came from memory."""
    n = dict(LENGTHS)["64k"]
    rows = [["rung", *(f"{h} heads, {kv} key/value heads" for h, kv in HEADS)]]
    for number, name, keys, scores in steps():
        cells = []
        for heads, kv_heads in HEADS:
            asked, extra = keys(heads, kv_heads, n), scores(heads, n)
            times = asked / cache_bytes(kv_heads, n)
            scores_too = f" + {bytes_of(extra)} of scores" if extra else ""
            cells.append(f"{times:.0f} x {bytes_of(cache_bytes(kv_heads, n))}{scores_too}: {time_of(asked + extra)}")
        rows.append([f"{number} {name}", *cells])
    return table(*rows)


def not_asked():
    return ["*Not asked: this page was made without a build.*"]


def plans():
    """Returns what the steps pick on 132 multiprocessors, and what one block has in flight: asked of the code by docs/tools/holders.cpp."""
    holders = os.environ.get("TREE_ATTN_DOCS_HOLDERS", "")
    if not holders:
        return not_asked()
    listed = json.loads(pathlib.Path(holders).read_text(encoding="utf-8"))["plans"]
    rows = [["rung", "heads", "blocks", "threads", "stages", "shared memory", "in flight per block"]]
    of_group = {1: {}, 4: {}}
    for plan in listed:
        of_group[plan["group"]][plan["step"]] = plan
    for number, name, *_ in steps():
        cells = []
        for group in (1, 4):
            plan = of_group[group].get(name)
            if plan is None:
                raise ValueError(f"holders.json: no plan of {name}")
            in_flight = f"{plan['in_flight'] / 1024:.3g} KiB" if plan["in_flight"] else ""
            shared = f"{plan['shared'] / 1024:.3g} KiB" if plan["shared"] else ""
            cells.append([str(plan["blocks"]), str(plan["threads"]), str(plan["stages"] or ""), shared, in_flight])
        if cells[0] == cells[1]:
            rows.append([f"{number} {name}", "16/16, 32/8", *cells[0]])
        else:
            rows += [[f"{number} {name}", "16/16", *cells[0]], ["", "32/8", *cells[1]]]
    return table(*rows)


# Microseconds from the last walk to the output that the launch that combines is expected to take.
COMBINING = 3


def expected_of_units(shape):
    """A step on the card, with COMBINING in place of its ends, which at 1M keys are those of 64k; of many rows by warpgroups half as much again
    as their bound."""
    if "latent" in shape:
        return "up to " + micro(1.5 * latent_bound(int(shape.split("/")[0])))
    if shape == "32/8 heads, 64k keys, l = 8":
        return "up to " + micro(1.5 * rows_bound(32, 8 << 10)[2])
    line = on_card(f"BF16, {shape}", CARD["library"])
    ends = {(one["shape"], one["step"]): one["end_seconds"] for one in CARD["stamps"]}
    end = ends.get((f"BF16, {shape}", CARD["library"])) or ends.get((f"BF16, {shape.replace('1M', '64k')}", "equal-runs"))
    return micro(apart(line) - end + 1e-6 * COMBINING) if line and end else "–"


def units():
    """The units of shapes on 132 multiprocessors, asked of the code by docs/tools/holders.cpp."""
    holders = os.environ.get("TREE_ATTN_DOCS_HOLDERS", "")
    if not holders:
        return not_asked()
    rows = [["BF16", "units of a sequence", "work items", "states", "part of the cache", "workspace", "floor", "expected"]]
    for line in json.loads(pathlib.Path(holders).read_text(encoding="utf-8"))["shapes"]:
        part = 100 * line["states"] / line["cache"]
        rows.append([line["shape"], f"{line['units']:,}", f"{line['items']:,}", bytes_of(line["states"]), f"{part:.1f} %" if part >= 0.1 else f"{part:.2f} %",
                     bytes_of(line["workspace"]), time_of(line["cache"]), expected_of_units(line["shape"])])
    return table(*rows)


def seeded_bugs():
    """Bugs and the modes that must catch them, from the table that the tests run."""
    text = source("tests/gpu/emulator/seeded_bugs/seeded_bugs.hpp")
    bug = re.compile(r'\{Bug::\w+, "([^"]+)",\s+(\w+)_is_right,\s+([\w |]+)\},')
    enum = re.search(r"enum class Bug \{(.*?)\};", text, re.DOTALL)[1]
    n_bugs = len(re.findall(r"\bk\w+", enum)) - 1
    modes = ["plain", "shadow", "address", "thread"]
    rows, found = [["bug", "kernel", *modes]], bug.findall(text)
    if len(found) != n_bugs:
        raise ValueError(f"seeded_bugs.hpp: {n_bugs} bugs, of which {len(found)} could be read")
    everything = {mode: 0 for mode in modes}
    for name, kernel, seen_by in found:
        seen = set(re.findall(r"k(\w+)", seen_by))
        marks = ["yes" if mode.capitalize() in seen or "All" in seen else "" for mode in modes]
        for mode, mark in zip(modes, marks):
            everything[mode] += mark == "yes"
        if "yes" not in marks:
            raise ValueError(f"seeded_bugs.hpp: no mode sees '{name}'")
        name = re.sub(r"\b_*[a-z]+_\w+|__\w+", r"`\g<0>`", name)
        rows.append([name, kernel.replace("_", " "), *marks])
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


def micro(seconds):
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


def recorded(step, keys, record=None):
    """Lines of the record for BF16 and a number of keys: {"16/16": line, "32/8": line}."""
    lines = {}
    for line in (record or RECORD)["lines"]:
        dtype, heads, length = line["shape"].split(", ", 2)
        if dtype == "BF16" and length == f"{keys} keys" and line["step"] == step and "graph_seconds" in line:
            # Launches that do not overlap, as those of the read: so both are compared.
            lines[heads.removesuffix(" heads")] = line | {"graph_seconds": line.get("apart_seconds", line["graph_seconds"])}
    return lines


def times_the_read(line):
    """A measured time, and how many times as long a kernel took that only reads the cache, in the same run."""
    times = line["graph_seconds"] / line["read_seconds"]
    return f"{micro(line['graph_seconds'])}, {times:.{0 if times >= 10 else 2}f} times the read"


# What a step changes, and what that was expected to do.
LADDER = {
    "naive": ("nothing: the definition", "a correct result"),
    "fused": ("a running state instead of scores", "no scores in memory: fewer bytes"),
    "vectors": ("16 bytes per lane, eight keys at a time, a leaf of 64 keys as one chain", "eight rows in flight per warp: 2 ms"),
    "split": ("warps share the keys of a query, the last one merges", "work for all multiprocessors, in need of more bytes in flight: 85 µs"),
    "copies": ("copies in flight, in a ring of stages", "enough bytes in flight while it computes: 40 µs"),
    "tensor": ("16 bits on tensor cores, queries that share keys together", "a quarter of the bytes for 32 heads on 8; here those of rung 5 and its joins: 40 µs"),
    "units": ("rings of tensor maps, units for all warps, a second launch that combines them", "the read, and what stands before and after it: 22 µs"),
    "equal-runs": ("equal parts of all the work", "an equal time on all multiprocessors, whatever the batch"),
}


def floor(step, line):
    """Seconds of the bytes that a step of steps() requests for the shape of a measured line, at the highest rate of a read."""
    dtype, heads, keys = line["shape"].split(", ")
    (n_heads, kv_heads), n = map(int, heads.removesuffix(" heads").split("/")), dict(LENGTHS)[keys.removesuffix(" keys")]
    _, _, cache, scores = step
    return (cache(n_heads, kv_heads, n) * {"BF16": 1, "F32": 2}[dtype] + scores(n_heads, n)) / RATE


def line_of(name, heads=16, kv_heads=16):
    """Returns what a card says of a step with 8k keys; the shape alone of one that it has not run."""
    return measured_on_card(name, heads, kv_heads) or (None if measured_on_card(name) else {"shape": f"BF16, {heads}/{kv_heads} heads, 8k keys"})


def ladder():
    """One line per step: what changes, what is expected, and for 16 heads on 16 and 8k keys its floor and what was measured."""
    rows = [["rung", "what changes", "expected", "type", "floor", "measured", "part of the read"]]
    names = [name for _, name, *_ in steps()]
    if names != list(LADDER):
        raise ValueError(f"kernel_tables.py: LADDER lists {list(LADDER)}, gpu/ladder has {names}")
    for step in steps():
        number, name, *_ = step
        line = line_of(name)
        cells = [micro(apart(line)), f"{line['read_seconds'] / apart(line):.2g}"] if "graph_seconds" in line else ["not yet", "–"]
        rows.append([f"{number} {name}", *LADDER[name], line["shape"].split(",")[0], micro(floor(step, line)).replace(" ", "&nbsp;"), *cells])
    return [line if i != 1 else "| --- |" + " --- |" * 3 + " ---: |" * 3 for i, line in enumerate(table(*rows))]


# Instructions per 8 KiB of the kernels before walks of whole leaves, counted by hand in the hot path of the version that
# docs/time_ladder.json of 2026-11-20 has measured: by worker, as Worker in tests/gpu/instructions.py names it.
PER_8_KIB_BEFORE = {"SubWarp<BFloat16, 16, 1>": 1152, "ScalarWarp<float, 128>": 768, "MmaTile<BFloat16>": 801}


def instructions():
    """Instructions of the walks with d = 128, as tests/gpu/instructions.py has counted them: in a build with nvcc where one is at
    hand, else those of docs/kernel_instructions.json."""
    folder = os.environ.get("TREE_ATTN_DOCS_RESOURCES", "")
    counted = pathlib.Path(folder) / "tests" / "gpu" / "kernel_instructions.json"
    if not folder or not counted.exists():
        counted = ROOT / "docs" / "kernel_instructions.json"
    report = json.loads(counted.read_text(encoding="utf-8"))
    rows = [["worker", "rows by", "for", "before the first copy", "a leaf of 64 keys", "to the exit", "8 KiB", "8 KiB, before", "hot code", "kernel", "registers"]]
    for walk in report["walks"]:
        worker = walk["worker"]
        before = PER_8_KIB_BEFORE.get(re.sub(r"^MmaTile<(\w+), 128, .*", r"MmaTile<\1>", worker), "")
        if walk["kernel"] == "decode_units" and (before or worker in ("MmaTile<Half, 128, 8>", "ScalarWarp<BFloat16, 128>")):
            before = before if walk["architecture"] == "sm_90a" else ""
            rows.append([f"`{worker}`", walk["rows"], walk["architecture"], str(walk.get("start") or ""),
                         str(walk["leaf"]), str(walk.get("exit") or ""), str(walk["per_8_kib"]), str(before),
                         f"{walk['hot_bytes'] / 1024:.1f} KiB", f"{walk['kernel_bytes'] / 1024:.0f} KiB", str(walk["registers"])])
    lines = [f"Counted in the code of {report['compiler']}, d = 128:", "", *table(*rows), "", "And of what combines their states, in the shortest way for a row of one unit, and for eight units more:", ""]
    combines = [["kernel", "replaces by", "for", "one unit", "eight more", "kernel", "registers"]]
    combines += [[f"`{one['kernel']}`", f"`{one['worker']}`" if one["worker"] else "", one["architecture"], str(one["least"]), str(one["group"]),
                  f"{one['kernel_bytes'] / 1024:.0f} KiB", str(one["registers"])]
                 for one in report["combines"] if one["worker"] in ("", "MmaTile<BFloat16, 64, 8>")]
    lines += [*table(*combines), ""]
    for architecture in sorted({walk["architecture"] for walk in report["walks"]}):
        walks = [walk for walk in report["walks"] if walk["architecture"] == architecture]
        most, n_large = max(walks, key=lambda walk: walk["hot_bytes"]), sum(walk["hot_bytes"] > 42 * 1024 for walk in walks)
        lines.append(f"* {architecture}: {len(walks)} walks of all kernels, {n_large or 'none'} with more than 42 KiB of hot code. The largest has {most['hot_bytes'] / 1024:.1f} KiB: `{most['kernel']}` with `{most['worker']}`, rows by {most['rows']}.")
    return lines


# Of a multiprocessor of an H100 or H200: bytes of shared memory and products of elements of BF16 in a cycle, cycles of a second, with which the products
# of all are the 989 TFLOPS of the data sheet, and schedulers that issue an instruction a cycle.
SHARED_BYTES, PRODUCTS, CYCLES, SCHEDULERS, MULTIPROCESSORS = 128, 2048, 1.83e9, 4, 132


def latent_leaf(heads):
    """A leaf of latent rows in BF16, 576 elements and values of 512, by a block of four warpgroups: its queries, how its first warpgroup and the others
    walk, and its cycles as each part of a multiprocessor bounds them."""
    keys, elements, values, parts, step = 64, 576, 512, 3, 16
    walks = {(walk["worker"], walk["rows"]): walk for walk in
             json.loads((ROOT / "docs" / "kernel_instructions.json").read_text(encoding="utf-8"))["walks"] if walk["kernel"] == "decode_units"}
    n = min(heads, 32)
    products = elements // step + keys // step * parts * values // 64
    first, others = (walks[f"LatentTile<BFloat16, {n}>", kind] for kind in ("multiplies keys", "tensor map"))
    blocks = 2 if heads > n else 1  # of a cluster, each of which copies its part to all
    return n, first, others, [products * 64 * n * step / PRODUCTS, products * (64 + n) * step * 2 / SHARED_BYTES,
                              (4 * first["leaf"] + 12 * others["leaf"]) / SCHEDULERS, keys * elements * 2 / blocks / (RATE / MULTIPROCESSORS) * CYCLES]


def latent_bound(heads):
    """Seconds of 64k keys on all multiprocessors, the last ones with as many leaves as any."""
    n, _, _, cycles = latent_leaf(heads)
    return -(-(1 << 16) // 64 * (heads // n) // MULTIPROCESSORS) * max(cycles) / CYCLES


def latent():
    """Returns what bounds a leaf of latent rows, and 64k keys on all multiprocessors."""
    rows = [["heads", "queries of a block", "instructions of a leaf, first warpgroup and others", "registers", "tensor cores", "shared memory", "issue",
             "memory or L2", "bound of 64k keys", "measured before"]]
    for heads in (16, 128):
        n, first, others, cycles = latent_leaf(heads)
        before = on_card(f"BF16, {heads}/1 heads, 64k keys, latent", CARD["library"])
        rows.append([str(heads), str(n), f"{first['leaf']}, {others['leaf']}", str(first["registers"]), *(f"{one:,.0f}" for one in cycles), micro(latent_bound(heads)),
                     micro(apart(before))])
    return [f"Cycles of a leaf at {CYCLES / 1e9:.3g} GHz, each bound by itself; a leaf from memory at the rate of the read, and where heads share it half a leaf from L2 at best:", "", *table(*rows), "",
            "*Expected:* up to half as much again as the largest of them, for no products are made while the weights of a leaf are. *Not measured*: these walks have been on no card."]


def rows_bound(n, leaves):
    """The walk of a warpgroup for up to n queries in BF16, d 128: the cycles of a leaf, each bound by itself, and a bound of so many leaves on all multiprocessors."""
    keys, d, parts = 64, 128, 3
    walk, = (walk for walk in json.loads((ROOT / "docs" / "kernel_instructions.json").read_text(encoding="utf-8"))["walks"]
             if (walk["kernel"], walk["worker"], walk["rows"]) == ("decode_units", "WgmmaTile<BFloat16, 128>", f"tensor map{', 32 queries' if n <= 32 else ''}"))
    # Products have 64 rows, whether queries or zeros. Of shared memory the scores take queries and keys, 16 by 16 elements, the sums only values.
    cycles = [(1 + parts) * 64 * keys * d / PRODUCTS, (64 + keys + parts * keys) * d * 2 / SHARED_BYTES, 4 * walk["leaf"] / SCHEDULERS,
              2 * keys * d * 2 / (RATE / MULTIPROCESSORS) * CYCLES]
    return walk, cycles, -(-leaves // MULTIPROCESSORS) * max(cycles) / CYCLES


def many_rows():
    """Bounds of a leaf of 32 and 64 queries in BF16, d 128, by a warpgroup and by warps of eight queries each, and two shapes on all multiprocessors."""
    of_warp, = (walk["leaf"] for walk in json.loads((ROOT / "docs" / "kernel_instructions.json").read_text(encoding="utf-8"))["walks"]
                if (walk["kernel"], walk["worker"], walk["rows"]) == ("decode_units", "MmaTile<BFloat16, 128, 8>", "tensor map"))
    rows = [["queries", "instructions of a leaf, of all warps", "by eight queries a warp", "registers", "tensor cores", "shared memory", "issue", "memory",
             "shape", "bound", "measured before"]]
    for n, leaves, shape in ((32, 8 << 10, "32/8 heads, 64k keys, l = 8"), (64, 8 << 7, "8 kv heads, 8k keys, 64 queries each")):
        walk, cycles, bound = rows_bound(n, leaves)
        before = on_card(f"BF16, {shape}", CARD["library"])
        rows.append([str(n), f"{4 * walk['leaf']:,}", f"{n // 8 * of_warp:,}", str(walk["registers"]), *(f"{one:,.0f}" for one in cycles), shape, micro(bound),
                     micro(apart(before)) if before else ""])
    return [f"Cycles of a leaf in BF16, d 128, at {CYCLES / 1e9:.3g} GHz, each bound by itself:", "", *table(*rows), "",
            "*Expected:* less than half as much again as the largest. While one warpgroup makes weights, the other multiplies. "
            "*Not measured*: these walks have been on no card."]


def measured():
    """The record of docs/time_ladder.json: one line per step, as a part of the rate of a kernel that only reads."""
    lengths = ("8k", "64k", "1M")
    rows = [["rung of that version", *(f"{heads}, {keys}" for heads in ("16/16", "32/8") for keys in lengths)]]
    for step in dict.fromkeys(line["step"] for line in RECORD["lines"]):
        cells = []
        for heads in ("16/16", "32/8"):
            for keys in lengths:
                line = recorded(step, keys).get(heads)
                cells.append(f"{line['read_seconds'] / line['graph_seconds']:.2g}" if line else "")
        rows.append([step, *cells])
    version = f", by {RECORD['version']}" if "version" in RECORD else ""
    return [f"Measured on {RECORD['device']}, {RECORD['date']}{version}, where a kernel that only reads reached "
            f"up to {RECORD['read_bytes_per_second'] / 1e12:.3g} TB/s in the same run:", "", *table(*rows)]


def on_card(shape, step):
    return next((line for line in CARD["lines"] if (line["shape"], line["step"]) == (shape, step)), None)


def measured_on_card(step, heads=16, kv_heads=16):
    """Heads of 128 and 8k keys: BF16, or F32 where that is all that the step takes."""
    return on_card(f"BF16, {heads}/{kv_heads} heads, 8k keys", step) or on_card(f"F32, {heads}/{kv_heads} heads, 8k keys", step)


def card_steps():
    """The steps for scalar cores on a card, and the library kernel beside them."""
    shape = "F32, 16/16 heads, 8k keys"
    rows = [["F32, 16 heads of 128, 8k keys", "time", "times the read"]]
    for name in ("naive", "fused", "vectors", "split", "copies", CARD["library"]):
        line = on_card(shape, name)
        rows.append([f"`{name}`", seconds(apart(line)), f"{apart(line) / line['read_seconds']:.3g}"])
    return table(*rows)


def seconds(time):
    return f"{1000 * time:.3g} ms" if time >= 1e-3 else f"{1e6 * time:.3g} µs"


def apart(line):
    return line.get("apart_seconds", line["graph_seconds"])


# Parts of the read that the kernel engineer's count of the compiled code expected before the card.
EXPECTED_ON_CARD = {("16/16", "512"): 0.2, ("16/16", "8k"): 0.65, ("16/16", "64k"): 0.93, ("16/16", "1M"): 0.97,
                    ("32/8", "8k"): 0.41, ("32/8", "64k"): 0.81, ("32/8", "1M"): 0.97}


def stamps_of(shape):
    """Returns those of the kernel that the library has for a shape: that of clusters, where it takes clusters; None without stamps."""
    found = {line["step"]: line for line in CARD["stamps"] if line["shape"] == shape}
    return found.get(CARD["library"]) or found.get("equal-runs")


def card():
    """The library kernel on a card: how much of the rate of a kernel that only reads, and where the time goes."""
    rows = [["shape", "read", "library", "part of the read", "expected", "overlapped", "after the last walk", "PyTorch"]]
    for dtype, heads in (("BF16", "16/16"), ("BF16", "32/8"), ("F32", "16/16")):
        for keys in ("512", "8k", "64k", "1M"):
            shape = f"{dtype}, {heads} heads, {keys} keys"
            line, stamps = on_card(shape, CARD["library"]), stamps_of(shape)
            end = f"{1e6 * stamps['end_seconds']:.1f} µs" if stamps else "–"
            expected = EXPECTED_ON_CARD.get((heads, keys)) if dtype == "BF16" else None
            rows.append([shape, seconds(line["read_seconds"]), seconds(apart(line)), f"{line['read_seconds'] / apart(line):.2f}", f"{expected:.2f}" if expected else "–",
                         f"{line['read_seconds'] / line['graph_seconds']:.2f}", end, peer(shape)])
    return table(*rows)


def peer(shape):
    """The fastest attention of PyTorch in the same run."""
    found = min((line for line in CARD["peers"] if line["shape"] == shape and line["peer"].startswith("PyTorch, ")), key=lambda line: line["graph_seconds"], default=None)
    return f"{seconds(found['graph_seconds'])}, {found['peer'].removeprefix('PyTorch, ')}" if found else "–"


def card_rows():
    """Steps with many rows for each key: eight queries at once, and latent rows."""
    rows = [["shape, BF16", "rows for each key", "read", "library", "part of the read", "after the last walk"]]
    for line in CARD["lines"]:
        shape = line["shape"]
        if line["step"] == CARD["library"] and shape.endswith(("l = 8", "latent")):
            stamps = stamps_of(shape)
            heads, kv_heads = map(int, re.search(r"(\d+)/(\d+) heads", shape).groups())
            rows.append([shape.removeprefix("BF16, "), str(heads // kv_heads * (8 if shape.endswith("l = 8") else 1)), seconds(line["read_seconds"]), seconds(apart(line)),
                         f"{line['read_seconds'] / apart(line):.2f}", f"{1e6 * stamps['end_seconds']:.1f} µs"])
    return table(*rows)


TABLES = {f.__name__: f for f in (shapes, card, card_rows, card_steps, ladder, step_bytes, plans, units, seeded_bugs, resources, instructions, latent, many_rows, measured)} | {"decode_speed": decode_speed.table, "section_6": section_6.table} | network.TABLES | recall.TABLES


def main():
    for name, make in TABLES.items():
        print(f"{name}\n", *make(), "", sep="\n")


if __name__ == "__main__":
    main()
