#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables and the figure of the chapter on the network, from what docs/tools/schedules.cpp predicts.

Run: docs/tools/network.py SCHEDULES.json FOLDER    draws schedules.svg
     TREE_ATTN_DOCS_SCHEDULES=SCHEDULES.json docs/tools/network.py    prints the tables
"""
import csv
import json
import math
import os
import pathlib
import sys

from figures import Drawing

PAPER_RESULTS = pathlib.Path(__file__).resolve().parent.parent / "paper_results.csv"
# NCCL's own model of an AllReduce by a tree in its low-latency protocol, in us: src/graph/tuning.cc of NVIDIA/nccl,
# commit 5067397 (June 2026): a constant, a step inside a node (NVLink), a step between nodes.
NCCL_BASE, NCCL_INSIDE, NCCL_BETWEEN = 6.8, 0.6, 5.0
NCCL_RING_BASE, NCCL_RING_INSIDE, NCCL_RING_BETWEEN = 6.6, 0.6, 2.7


def schedules():
    """@returns what schedules.cpp wrote, or None if there is no such file"""
    path = os.environ.get("TREE_ATTN_DOCS_SCHEDULES", "")
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8")) if path else None


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1), *("| " + " | ".join(row) + " |" for row in rows)]


def missing():
    return ["*Predicted when the pages are built.*"]


def radix():
    """Time of two-level by its radix."""
    data = schedules()
    if data is None:
        return missing()
    rows = []
    for overhead in (0, 0.3):
        for ranks in sorted({row["ranks"] for row in data if row["table"] == "radix"}):
            cells = {row["asked"]: row for row in data if row["table"] == "radix" and row["ranks"] == ranks and row["overhead_us"] == overhead}
            rows.append([f"{ranks} GPUs, {overhead:g} µs", *(f"{cells[k]['us']:.2f}" for k in (2, 4, 8, 16)), f"{cells[0]['radix']}: {cells[0]['us']:.2f}"])
    return table(["GPUs, time per message", "k = 2", "4", "8", "16", "default"], rows)


def one_state():
    """Time of all schedules with and without a cost per message, for one state per rank."""
    data = schedules()
    if data is None:
        return missing()
    found = [row for row in data if row["table"] == "one_state"]
    rows = []
    for overhead in (0, 0.3):
        for ranks in sorted({row["ranks"] for row in found}):
            cells = {(row["algorithm"], row["asked"]): row["us"] for row in found if (row["ranks"], row["overhead_us"]) == (ranks, overhead)}
            shown = [("leaders", 0), ("paper", 0), ("fused", 0), ("two-level", 4), ("two-level", 16), ("two-level", 0)]
            rows.append([f"{ranks} GPUs, {overhead:g} µs", *(f"{cells[key]:.2f}" for key in shown)])
    return table(["GPUs, time per message", "`leaders`", "`paper`", "`fused`", "`two-level`, k = 4", "k = 16", "default"], rows)


def cuts():
    """Subtrees of a rank and the longest shard, by the cut."""
    data = schedules()
    if data is None:
        return missing()
    found = {(row["keys"], row["ranks"], row["cut"]): row for row in data if row["table"] == "cuts"}
    rows = []
    for keys, ranks in sorted({key[:2] for key in found}):
        of = {cut: found[keys, ranks, cut] for cut in ("even", "coarse", "dealt")}
        rows.append([f"{keys}, {ranks} GPUs", *(f"{row['subtrees']:.1f} ({row['most']})" for row in of.values()),
                     *(f"{100 * (row['longest'] - 1):.1f} %" for row in of.values())])
    return table(["keys", "subtrees, even", "coarse", "dealt", "longest shard, even", "coarse", "dealt"], rows)


def growth():
    """The longest shard of a sequence that grows, by the cut."""
    data = schedules()
    if data is None:
        return missing()
    found = {(row["ranks"], row["cut"]): row for row in data if row["table"] == "growth"}
    rows = []
    for ranks in sorted({key[0] for key in found}):
        of = [found[ranks, cut] for cut in ("end known", "contiguous", "dealt")]
        rows.append([str(ranks), *(f"{row[when]:.3f}" for row in of for when in ("start", "end")), f"{of[-1]['leaves']:.2f}"])
    return table(["ranks", "end known: start", "end", "tail to the last: start", "end", "dealt: start", "end", "leaves over the mean"], rows)


def payload():
    """Time of schedules by the size of the batch."""
    data = schedules()
    if data is None:
        return missing()
    batches = sorted({row["batch"] for row in data if row["table"] == "batch"})
    rows = []
    for name in ("two-level", "leaders", "fused"):
        cells = {row["batch"]: row["us"] for row in data if row["table"] == "batch" and row["algorithm"] == name}
        rows.append([f"`{name}`", *(f"{cells[batch]:.1f}" for batch in batches)])
    return table(["128 GPUs, in µs", *(f"batch {batch}, {batch * 16 * 130 * 4 / 1000:.1f} kB" for batch in batches)], rows)


def one_node():
    """Time of schedules inside one node by the number of its ranks."""
    data = schedules()
    if data is None:
        return missing()
    ranks = sorted({row["ranks"] for row in data if row["table"] == "flat"})
    rows = []
    for name, words in (("two-level", "one round, `two-level`"), ("fused", "doubling, `fused`"), ("gather", "`gather`"), ("leaders", "up and down, `leaders`")):
        cells = {row["ranks"]: row["us"] for row in data if row["table"] == "flat" and row["algorithm"] == name}
        rows.append([words, *(f"{cells[p]:.1f}" for p in ranks)])
    return table(["0.3 µs per message, in µs", *(f"{p} ranks" for p in ranks)], rows)


def us_text(us):
    return f"{us:.0f} µs" if us < 1000 else f"{us / 1000:.3g} ms"


def lengths():
    """Time of a step at the lengths of Fig. 3."""
    data = schedules()
    if data is None:
        return missing()
    found = [row for row in data if row["table"] == "lengths"]
    n_keys = [80_000, 640_000, 5_120_000]
    rows = []
    for ranks in (8, 64, 128):
        for name, order, words in [("two-level", "dealt", "`two-level`, dealt"), *((name, "contiguous", f"`{name}`") for name in ("two-level", "leaders", "fused", "paper", "gather", "ring-state", "ring"))]:
            cells = {row["keys"]: row["us"] for row in found if (row["ranks"], row["algorithm"], row["order"]) == (ranks, name, order)}
            rows.append([str(ranks), words, *(us_text(cells[n]) for n in n_keys)])
    head = ["GPUs", "algorithm", *("80k keys", "640k", "5.12M")]
    return ["| " + " | ".join(head) + " |", "| ---: | --- | ---: | ---: | ---: |", *("| " + " | ".join(row) + " |" for row in rows)]


def ring_over_tree():
    """Returns how many times as long as Alg. 3 and two-level the ring takes, by the model, and what the paper's factor of 8 would need."""
    data = schedules()
    if data is None:
        return missing()
    times = {(row["ranks"], row["algorithm"]): row["us"] for row in data if row["table"] == "lengths" and row["keys"] == 5_120_000 and row["order"] == "contiguous"}
    rows = []
    for ranks in (8, 64, 128):
        ring, paper, ours = (times[ranks, name] for name in ("ring", "paper", "two-level"))
        rows.append([str(ranks), us_text(ring), us_text(paper), f"{ring / paper:.0f}", f"{ring / ours:.0f}", us_text(ring / 8 - paper)])
    return table(["GPUs, 5.12M keys", "`ring`", "`paper`", "ring / paper", "ring / two-level", "needed for a factor of 8"], rows)


def measured_times():
    """Table 1 and Table 2 of the paper: {(table, hardware): {keys: ((tree, its error), (ring, its error))}}, seconds for the prefill and ten tokens."""
    found = {}
    with PAPER_RESULTS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            of = found.setdefault((row["source"], row["hardware"]), {}).setdefault(int(row["sequence_length"]), {})
            of[row["method"]] = float(row["seconds"]), float(row["plus_minus"])
    return {table: {keys: (of["tree"], of["ring"]) for keys, of in by_keys.items()} for table, by_keys in found.items()}


# Which of these have a model of their links.
HARDWARE = {"table_1": ("Table 1", "H100 NVLink"), "table_2": ("Table 2", "RTX 4090 PCIe")}
# Their models: parameters, layers, query heads, elements of a head. The dense BF16 rates of
# the data sheets, in FLOP/s of all GPUs: 8 H100 SXM, and 2 RTX 4090 with F32 accumulation.
LLAMAS = {"table_1": ("Llama 3.1 8B, 8 H100", 8.0e9, 32, 32, 128, 8 * 989e12, measured_times()[HARDWARE["table_1"]]),
          "table_2": ("Llama 3.2 1B, 2 RTX 4090", 1.24e9, 16, 32, 64, 2 * 165e12, measured_times()[HARDWARE["table_2"]])}


def prefill_seconds(name, keys):
    """The least that the prefill of one of LLAMAS can take.

    Two operations per parameter and token; in the attention of a head four per element and pair of positions, of which a causal mask leaves half.
    """
    _, parameters, n_layers, n_heads, head_dim, rate, _ = LLAMAS[name]
    return (2 * parameters * keys + 2 * keys**2 * n_layers * n_heads * head_dim) / rate


def whole_models():
    """The paper's seconds of a prefill and ten tokens, and what the attention of the ten tokens takes by the model; prefill by arithmetic."""
    data = schedules()
    if data is None:
        return missing()
    rows = []
    for name, (model, _, n_layers, *_, measured) in LLAMAS.items():
        times = {(row["algorithm"], row["keys"]): row["us"] for row in data if row["table"] == name}
        for keys, ((tree, _), (ring, _)) in measured.items():
            ten = [us_text(10 * n_layers * times[algorithm, keys]) for algorithm in ("paper", "two-level", "ring")]
            rows.append([f"{model}, {keys // 1000}k", f"{tree:.2f} s", f"{ring:.2f} s", *ten, f"{prefill_seconds(name, keys):.2f} s"])
    return table(["model, GPUs, keys", "paper: tree", "paper: ring", "ten tokens: `paper`", "`two-level`", "`ring`", "prefill at the peak rate"], rows)


def nccl_tree(n_nodes, per_node):
    return NCCL_BASE + 2 * ((per_node - 1) * NCCL_INSIDE + math.log2(n_nodes) * NCCL_BETWEEN)


def nccl_ring(n_nodes, per_node):
    n_between = 0 if n_nodes == 1 else 2 * (n_nodes - 1)
    return NCCL_RING_BASE + (2 * (n_nodes * per_node - 1) - n_between) * NCCL_RING_INSIDE + n_between * NCCL_RING_BETWEEN


def nccl():
    """Latency of NCCL's AllReduce by its own model, before the time of the bytes."""
    rows = []
    for n_nodes in (1, 8, 16, 128):
        tree, ring = nccl_tree(n_nodes, 8), nccl_ring(n_nodes, 8)
        rows.append([f"{8 * n_nodes}", f"{tree:.1f}", f"{ring:.1f}", f"{3 * min(tree, ring):.0f}"])
    return table(["GPUs, 8 per node", "tree, µs", "ring, µs", "three AllReduces, µs"], rows)


# Times that others measured: exchange of schedules.cpp, machine, what was timed, us from and to, where, and what may explain the ratio.
AISIMULATE = "ai-dynamo/aisimulate/pull/240"
OTHERS = [
    ("lse 2", "2 of 8 B200", "log-sum-exps gathered, 4 kB a rank", 7, 7, AISIMULATE, "a round of NCCL's low-latency protocol in both"),
    ("lse 8", "8 B200", "the same, 16 kB a rank", 25, 25, AISIMULATE, "NCCL's ring has seven steps, the model one round; kernels that start late are part of what was timed"),
    ("q 8", "8 B200", "queries gathered, 590 kB a rank", 32, 32, AISIMULATE,
     "NCCL sends 4.1 MB through each rank of a ring in its low-latency protocol, at 130 GB/s; the model has one round at 900 GB/s"),
    ("step", "8 B200", "three collectives in each of 61 layers (their model, corrected by the rows above)", 5000, 5000, AISIMULATE,
     "the two rows above; their sum has the kernels between collectives too"),
    ("send h100", "2 H100", "send and receive, 1000 B", 3, 3, "NVIDIA/nccl/issues/1487", "the constant is 6.6 µs for a kernel of NCCL; a benchmark that queues many of them hides most of it"),
    ("send h800", "4 H800", "send and receive, 1 kB", 3.7, 3.7, "NVIDIA/nccl/issues/1984", "the same"),
    ("reduce h100", "8 H100", "AllReduce, 4 B to 1 MiB", 20, 25, "marin-community/marin/issues/6736", "three doublings of 64 KiB in the model, as in `fused`; NCCL chooses its own algorithm"),
    ("reduce sparks", "4 DGX Spark", "AllReduce by NCCL, 48 KiB", 54, 64, "local-inference-lab/b12x/pull/295", "two doublings in the model; a ring of NCCL has six steps of 12 KiB"),
    ("stores sparks", "4 DGX Spark", "AllReduce by one-sided stores, 48 KiB", 23, 23, "local-inference-lab/b12x/pull/295",
     "a message alone takes 8.8 µs there and 5 µs by the model; the kernel that adds is not in it"),
]


def others():
    """Predicted exchanges beside times that others measured; the constants are those of programs, and none is fitted."""
    data = schedules()
    if data is None:
        return missing()
    us = {row["name"]: row["us"] for row in data if row["table"] == "others"}
    us["step"] = 61 * (us["q 8"] + us["lse 8"] + us["out 8"])
    rows = []
    for name, machine, what, least, most, where, why in OTHERS:
        ratios = [f"{us[name] / x:.2f}" for x in dict.fromkeys((most, least))]
        inside = least / 2 <= us[name] <= 2 * most
        source = "#".join(part for part in where.replace("/pull/", "/").replace("/issues/", "/").rsplit("/", 1))
        rows.append([f"{machine}: {what} ([{source}](https://github.com/{where}))", f"{least:g} µs" if least == most < 1000 else us_text(least) if least == most else f"{least} to {most} µs",
                     f"{us[name]:.1f} µs" if us[name] < 1000 else us_text(us[name]), " to ".join(ratios) if inside else f"**{' to '.join(ratios)}**", why])
    return ["| machine, exchange | measured | predicted | predicted / measured | what may explain it |", "| --- | ---: | ---: | ---: | --- |", *("| " + " | ".join(row) + " |" for row in rows)]


TABLES = {"others": others, "radix": radix, "one_state": one_state, "cuts": cuts, "growth": growth, "payload": payload, "one_node": one_node, "nccl_latency": nccl, "lengths": lengths, "ring_over_tree": ring_over_tree, "whole_models": whole_models}


def slanted(drawing, x1, y1, x2, y2, style, head):
    """An arrow between any two points."""
    length = math.hypot(x2 - x1, y2 - y1)
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    bx, by = x2 - 8 * ux, y2 - 8 * uy
    drawing.line(x1, y1, bx, by, style)
    drawing.add(f'<path class="{head}" d="M{x2:.1f} {y2:.1f} L{bx - 3.5 * uy:.1f} {by + 3.5 * ux:.1f} L{bx + 3.5 * uy:.1f} {by - 3.5 * ux:.1f} z"/>')


def clock(data):
    """Space and time: the messages of three schedules, rank by rank, on one scale of time."""
    shown = [row for row in data if row["table"] == "clock"]
    dx, unit, top, left, gap = 28, 40, 64, 52, 34
    n = shown[0]["ranks"]
    width, last = dx * n, max(row["us"] for row in shown)
    bottom = top + unit * last
    drawing = Drawing(left + len(shown) * (width + gap) + 4, bottom + 34)
    for us in range(0, math.ceil(last) + 1, 2):
        y = top + unit * us
        if y <= bottom + 2:
            drawing.text(18, y + 4, f"{us} µs", "small")
            drawing.line(left - 12, y, left + len(shown) * (width + gap) - gap, y, "empty")
    for i, row in enumerate(shown):
        x0 = left + i * (width + gap)
        name = row["algorithm"] + (f", k = {row['radix']}" if row["radix"] else "")
        drawing.text(x0 + width / 2, 20, name)
        drawing.text(x0 + width / 2, 38, f"{row['us']:.2f} µs", "small")
        for node in range(n // row["per_node"]):
            drawing.box(x0 + dx * row["per_node"] * node + 2, 46, dx * row["per_node"] - 4, unit * row["us"] + 26, "frame", 6)
        for rank in range(n):
            x = x0 + dx * (rank + 0.5)
            drawing.line(x, top, x, top + unit * row["us"])
        for source, target, leaves, arrives, between, _ in row["messages"]:
            style = "slow" if between else "arrow"
            slanted(drawing, x0 + dx * (source + 0.5), top + unit * leaves, x0 + dx * (target + 0.5), top + unit * arrives, style, "slow_head" if between else "head")
    return drawing.svg()


def main():
    if len(sys.argv) == 3:
        data = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
        folder = pathlib.Path(sys.argv[2])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedules.svg").write_text(clock(data), encoding="utf-8")
        return
    for name, make in TABLES.items():
        print(f"{name}\n", *make(), "", sep="\n")


if __name__ == "__main__":
    main()
