#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The times of simulated clusters as tables, from what `./run simulate` measured.

Run: docs/tools/simulated.py             prints the tables of docs/simulated_cluster.json
     docs/tools/simulated.py --check     whether docs/IV.3-cost.md has these tables: exit status 1 if not
"""
import json
import math
import pathlib
import re
import subprocess
import sys

DOCS = pathlib.Path(__file__).resolve().parent.parent
SIMULATED, CHAPTER = DOCS / "simulated_cluster.json", DOCS / "IV.3-cost.md"
BEGIN, END = "<!-- simulated: begin (./run simulate --update) -->", "<!-- simulated: end -->"
# The order of the tables; others follow.
FIRST = ["two-level", "leaders", "fused", "packed", "paper", "gather", "ring-state", "ring"]
# The longest sequence of section 6.
LONGEST = 5_120_000
ORDERS = ["contiguous", "dealt"]
# The constants of the rows, as in tests/bench/simulated/clusters.cpp.
MODEL = {"memory_bytes_per_second": 3e12, "dtype": "bf16", "merge_us": 0,
         "h100": {"inside_us": 1.5, "inside_bytes_per_second": 450e9, "between_us": 3, "between_bytes_per_second": 50e9},
         "rtx4090": {"inside_us": 10, "inside_bytes_per_second": 25e9, "memory_bytes_per_second": 1008e9}}
# What tells one row from another, and what was counted and timed.
SETTING = {"experiment": str, "cluster": str, "ranks": int, "keys": int, "batch": int, "heads": int, "kv_heads": int, "head_dim": int,
           "order": str, "message_us": float, "algorithm": str}
FIELDS = SETTING | {"computed": bool, "latency_us": float, "combine_us": float, "messages": int, "bytes": int, "bytes_between_nodes": int,
                    "merge_steps": int, "peak_kv_bytes": int}


def in_order(names):
    return sorted(set(names), key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))


def algorithms(program):
    """Returns those of the simulated program, given as words: it answers an unknown one with a list. One kernel is in it, which needs a GPU."""
    text = subprocess.run([*program, "--algorithms", "unknown"], capture_output=True, text=True, check=False).stderr
    return [name for name in re.search(r"use one of ((?:[a-z-]+, )+[a-z-]+)", text)[1].split(", ") if name != "one-shot"]


def check(report):
    """@throws ValueError that names what is missing or wrong"""
    if not report.get("rows") or not report.get("model"):
        raise ValueError("there are no rows, or no model")
    seen = set()
    for row in report["rows"]:
        for key, kind in FIELDS.items():
            value = row.get(key)
            if type(value) not in ((int, float) if kind is float else (kind,)) or (kind is not str and not 0 <= value < math.inf):
                raise ValueError(f"'{key}' of a row is {value}")
        key = tuple(row[name] for name in SETTING)
        if row["order"] not in ORDERS or key in seen:
            raise ValueError(f"{key}: unknown, or simulated twice")
        seen.add(key)
    return report


def read(path=SIMULATED):
    """The report in a file. @throws ValueError if it is broken"""
    try:
        return check(json.loads(pathlib.Path(path).read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{pathlib.Path(path).name}: {error}") from error


def read_if_there():
    return read() if SIMULATED.exists() else {"rows": []}


def keys_text(n):
    """80k, 5.12M, or a power of two."""
    if n % 1000 == 0:
        return f"{n // 1000}k" if n < 1_000_000 else f"{n / 1e6:g}M"
    return f"2^{n.bit_length() - 1}" if n & (n - 1) == 0 else str(n)


def time_text(us):
    """Microseconds with one digit after the point; milliseconds from 10 ms on, seconds from 10 s on."""
    return f"{us:.1f}" if us < 10_000 else f"{us / 1000:.1f} ms" if us < 10_000_000 else f"{us / 1e6:.1f} s"


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1), *("| " + " | ".join(row) + " |" for row in rows), ""]


def by_algorithm(rows, column, value):
    """Columns, and lines of a table: algorithms down, values of a column across."""
    across = sorted({row[column] for row in rows})
    cells = {(row["algorithm"], row["order"], row[column]): value(row) + (" computed" if row["computed"] else "") for row in rows}
    kinds = [(name, order) for name in in_order(row["algorithm"] for row in rows) for order in ORDERS if any((name, order, each) in cells for each in across)]
    return across, [[f"`{name}`" + (", dealt" if order == "dealt" else ""), *(cells.get((name, order, each), "") for each in across)] for name, order in kinds]


def volumes(rows):
    """Bytes that were counted in simulations of `ring` and `paper`, beside the volumes of the paper for the same shape."""
    lines = []
    for ring in sorted((row for row in rows if row["algorithm"] == "ring"), key=lambda row: row["ranks"]):
        p, d = ring["ranks"], ring["heads"] * ring["head_dim"]
        tree = next(row for row in rows if row["algorithm"] == "paper" and row["ranks"] == p)
        shard = 2 * ring["batch"] * ring["keys"] * d / p  # eq. (11)
        numel = ring["batch"] * (d + 2 * ring["heads"])  # eq. (13)
        volume = 2 * (p - 1) / p * numel  # eq. (14)
        hop, per_gpu = ring["bytes"] / (p - 1) / 2, tree["bytes"] / p / 4
        lines.append([f"{p}", *(f"{n:.0f}" for n in (hop, shard * p, hop / p, shard, per_gpu, volume)), f"{per_gpu / volume:.2f}",
                      f"{p * math.log2(p) / (2 * (p - 1)):.2f}"])
    return table(["GPUs", "`ring`, one hop", "eq. (10)", "of these per GPU", "eq. (11)", "`paper`, per GPU", "eq. (14)", "factor", "p log2 p / (2 (p - 1))"], lines)


def tables(report=None):
    """Lines of Markdown."""
    report = report or read()

    def rows_of(experiment, **fixed):
        return [row for row in report["rows"] if row["experiment"] == experiment and all(row[key] == value for key, value in fixed.items())]

    def gpus(across):
        return ["algorithm", *(f"{n} GPUs" for n in across)]

    def combine(row):
        return f"{row['combine_us']:.2f}"

    lines = []
    for cluster, batch, message_us, title in (("h100", 1, 0, "nodes of 8 H100, one subtree of 32768 keys per GPU"),
                                              ("fat-tree", 1, 0, "the same nodes and subtrees in a fat tree of three levels"),
                                              ("h100", 1, 0.3, "nodes of 8 H100, and 0.3 µs per message at its sender and at its receiver"),
                                              ("h100", 64, 0, "nodes of 8 H100, a batch of 64: 532 kB per subtree")):
        if rows := rows_of("schedules", cluster=cluster, batch=batch, message_us=message_us):
            across, cells = by_algorithm(rows, "ranks", combine)
            lines += [f"Communication alone in microseconds, {title}:", ""] + table(gpus(across), cells)
    for ranks in sorted({row["ranks"] for row in rows_of("fig_3")}):
        across, cells = by_algorithm(rows_of("fig_3", ranks=ranks), "keys", lambda row: time_text(row["latency_us"]))
        if len(across) > 1:
            lines += [f"Fig. 3(a): a decode step on {ranks} H100 in microseconds:", ""] + table(["algorithm", *map(keys_text, across)], cells)
    if longest := rows_of("fig_3", keys=LONGEST):
        across, cells = by_algorithm(longest, "ranks", lambda row: time_text(row["latency_us"]))
        lines += [f"Fig. 3(b): a decode step over {keys_text(LONGEST)} keys in microseconds, by nodes of 8 H100:", ""]
        lines += table(["algorithm", *(f"{n // 8} node" + "s" * (n > 8) for n in across)], cells)
        lines += [f"Eq. (10) to eq. (14), in elements: what was counted in the steps over {keys_text(LONGEST)} keys, and the paper's volumes. By "
                  "eq. (13) a state has $bd + 2bn_h$ elements:", ""] + volumes(longest)
    if large := rows_of("large"):
        for cluster in sorted({row["cluster"] for row in large}):
            across, cells = by_algorithm([row for row in large if row["cluster"] == cluster], "ranks", lambda row: time_text(row["latency_us"]))
            lines += [f"A decode step over 2^30 keys in microseconds, `{cluster}`:", ""] + table(gpus(across), cells)
    if memory := rows_of("fig_4"):
        across, cells = by_algorithm(memory, "heads", lambda row: f"{row['peak_kv_bytes'] / 1e6:.0f}")
        lines += ["Fig. 4: most keys and values that a GPU holds in MB, two RTX 4090, 128 000 keys:", ""]
        lines += table(["algorithm", *(f"d = {128 * n}" for n in across)], cells)
    if ring := rows_of("example", algorithm="ring"):
        decode = min(row["latency_us"] - row["combine_us"] for row in rows_of("example") if row["algorithm"] != "ring")
        hop = (ring[0]["latency_us"] - decode) / (ring[0]["ranks"] - 1)
        lines += [f"The example of section 6.3, {keys_text(ring[0]['keys'])} keys on {ring[0]['ranks']} H100: a GPU reads its keys and values in "
                  f"{decode:.0f} µs, and the ring moves them to a neighbour in {hop:.0f} µs.", ""]
    return lines[:-1]


def with_tables(text, lines):
    """The chapter with these lines between its markers. @throws ValueError unless it has each marker once, in order"""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{CHAPTER.name}: not one '{BEGIN}' before one '{END}'")
    return text.split(BEGIN)[0] + "\n".join([BEGIN, "", *lines, "", END]) + text.split(END)[1]


def write(report):
    """The report and the tables of the chapter."""
    rows = ",\n    ".join(json.dumps(row) for row in report["rows"])
    head = json.dumps(report | {"rows": []}, indent=2).replace('"rows": []', f'"rows": [\n    {rows}\n  ]')
    SIMULATED.write_text(head + "\n", encoding="utf-8")
    CHAPTER.write_text(with_tables(CHAPTER.read_text(encoding="utf-8"), tables(report)), encoding="utf-8")


def main():
    text = CHAPTER.read_text(encoding="utf-8")
    if "--check" not in sys.argv[1:]:
        print("\n".join(tables()))
    elif text != with_tables(text, tables()):
        print(f"{CHAPTER.name} has other tables than {SIMULATED.name}; ./run simulate --update writes both")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
