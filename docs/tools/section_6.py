#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Section 6 of the paper: its data with the model and the simulation over them, as a figure and as a table.

Run: docs/tools/section_6.py SCHEDULES.json SIMULATED.json FOLDER    draws section_6.svg
     TREE_ATTN_DOCS_SCHEDULES=SCHEDULES.json docs/tools/section_6.py    prints the table

The data are docs/paper_results.csv and what the text of the paper says of its figures. SCHEDULES.json is what docs/tools/schedules.cpp
predicts, SIMULATED.json is docs/simulated_cluster.json.
"""
import json
import math
import pathlib
import sys

import network
import simulated
from figures import Drawing

LONGEST = simulated.LONGEST
FACTOR, FACTOR_RANKS = 8, 128  # Fig. 3(a): ring over tree at the longest sequence
GAPS = {16: 524, 32: 1040}  # Fig. 4: MB that the ring needs more than the tree, by heads of 128: d = 2048 and 4096
POSITIONS = 128_000  # of Fig. 4, which give the gap of eq. (8) and eq. (9)
SERIES = {"paper": "a", "two-level": "c", "ring": "b"}  # classes of book.css
TABLES = {"table_1": "Table 1: Llama 3.1 8B, 8 H100", "table_2": "Table 2: Llama 3.2 1B, 2 RTX 4090"}


class Facts:
    """Times in us by (algorithm, GPUs, keys), of the model and of the simulation."""

    def __init__(self, schedules, rows):
        self.model = {(row["table"], row["algorithm"], row["ranks"], row["keys"]): row["us"] for row in schedules
                      if row["table"] in ("lengths", *TABLES) and row["order"] == "contiguous"}
        self.simulated = {({"fig_3": "lengths"}.get(row["experiment"], row["experiment"]), row["algorithm"], row["ranks"], row["keys"]): row["latency_us"]
                          for row in rows if row["order"] == "contiguous"}
        self.held = {(row["algorithm"], row["heads"]): row["peak_kv_bytes"] for row in rows if row["experiment"] == "fig_4"}

    def series(self, times, table, algorithm, ranks=None, keys=None):
        """[(keys, us)] of these ranks, or [(ranks, us)] of these keys."""
        found = {(k if keys is None else p): us for (t, a, p, k), us in times.items()
                 if (t, a) == (table, algorithm) and ranks in (None, p) and keys in (None, k)}
        return sorted(found.items())

    def ratio(self, times, ranks):
        """[(keys, ring / Alg. 3)]"""
        ring, tree = (dict(self.series(times, "lengths", name, ranks=ranks)) for name in ("ring", "paper"))
        return [(keys, us / tree[keys]) for keys, us in ring.items()]

    def gap(self, heads):
        """MB of keys and values that the ring holds more than the tree, as counted."""
        return (self.held["ring", heads] - self.held["paper", heads]) / 1e6


def gap_of_formulas(heads):
    """Eq. (8) - eq. (9) for two GPUs, in MB of BF16."""
    d, t = 128 * heads, POSITIONS // 2
    return 2 * ((4 * t * d + 2 * d) - (2 * t * d + 2 * d + 2 * heads)) / 1e6


def ten_tokens(table, series):
    """Seconds of the attention of ten tokens in all layers."""
    return [(x, us * 10 * network.LLAMAS[table][2] / 1e6) for x, us in series]


class Panel:
    """Two logarithmic axes."""

    def __init__(self, drawing, x, y, title, unit, xs, ys, x_ticks, width=240, height=200):
        self.drawing, self.x, self.y, self.width, self.height, self.xs, self.ys = drawing, x, y, width, height, xs, ys
        drawing.text(x + width / 2, y - 26, title)
        drawing.text(x - 6, y - 10, unit, "small")
        drawing.box(x, y, width, height, "frame", 2)
        for value, words in x_ticks:
            drawing.text(self.at(value, ys[0])[0], y + height + 15, words, "small")
        for exponent in range(math.ceil(math.log10(ys[0])), math.floor(math.log10(ys[1])) + 1):
            height_of_tick = self.at(xs[0], 10**exponent)[1]
            drawing.line(x, height_of_tick, x + width, height_of_tick, "frame")
            drawing.text(x - 24, height_of_tick + 4, f"{10**exponent:g}", "small")

    def at(self, x, y):
        def part(value, ends):
            return math.log(value / ends[0]) / math.log(ends[1] / ends[0])

        return self.x + self.width * part(x, self.xs), self.y + self.height * (1 - part(y, self.ys))

    def curve(self, points, style):
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in (self.at(*point) for point in points))
        self.drawing.add(f'<path class="{style} curve" d="M{path}"/>')

    def dots(self, points, style):
        for x, y in (self.at(*point) for point in points):
            self.drawing.add(f'<circle class="{style} full" cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>')

    def measured(self, x, y, style, plus_minus=0):
        if plus_minus:
            (at, low), (_, high) = self.at(x, y - plus_minus), self.at(x, y + plus_minus)
            self.drawing.line(at, low, at, high, f"{style} curve")
        at, height = self.at(x, y)
        self.drawing.box(at - 4, height - 4, 8, 8, style, 0)


def figure(facts):
    drawing = Drawing(960, 600)
    keys_ticks = [(80_000, "80k"), (640_000, "640k"), (LONGEST, "5.12M keys")]
    left, top, dx, dy = 52, 64, 320, 296

    factor = Panel(drawing, left, top, "Fig. 3(a): ring / tree", "", (60_000, 9e6), (1, 20_000), keys_ticks)
    for ranks in (8, 64, 128):
        line = facts.ratio(facts.model, ranks)
        factor.curve(line, "a")
        factor.dots(facts.ratio(facts.simulated, ranks), "a")
        x, y = factor.at(*line[-2])
        drawing.text(x, y + (18 if ranks == 64 else -9), f"{ranks} GPUs", "small")
    factor.measured(LONGEST, FACTOR, "a")

    nodes = Panel(drawing, left + dx, top, f"Fig. 3(b): {simulated.keys_text(LONGEST)} keys", "ms", (6, 170), (0.05, 2000), [(p, f"{p // 8}" + " nodes" * (p == 128)) for p in (8, 16, 32, 64, 128)])
    for name, style in SERIES.items():
        model, dots = ([(ranks, us / 1000) for ranks, us in facts.series(times, "lengths", name, keys=LONGEST)] for times in (facts.model, facts.simulated))
        nodes.curve(model, style)
        nodes.dots(dots, style)

    memory = Panel(drawing, left + 2 * dx, top, "Fig. 4: memory, ring - tree", "MB", (1700, 4900), (90, 2000), [(2048, "2048"), (4096, "d = 4096")])
    memory.curve([(128 * heads, gap_of_formulas(heads)) for heads in GAPS], "b")
    memory.dots([(128 * heads, facts.gap(heads)) for heads in GAPS], "b")
    for heads, gap in GAPS.items():
        memory.measured(128 * heads, gap, "b")

    for i, (table, title) in enumerate(TABLES.items()):
        measured = network.LLAMAS[table][-1]
        keys = sorted(measured)
        panel = Panel(drawing, left + i * dx, top + dy, title, "s", (keys[0] / 1.4, keys[-1] * 1.4), (1e-3, 30), [(n, simulated.keys_text(n) + " keys" * (n == keys[-1])) for n in keys if n != 20_000])
        panel.curve([(n, network.prefill_seconds(table, n)) for n in keys], "empty")
        for name, style in SERIES.items():
            panel.curve(ten_tokens(table, facts.series(facts.model, table, name)), style)
            panel.dots(ten_tokens(table, facts.series(facts.simulated, table, name)), style)
        for n, seconds in measured.items():
            for (value, plus_minus), style in zip(seconds, "ab"):
                panel.measured(n, value, style, plus_minus)

    x, y = left + 2 * dx - 10, top + dy + 14
    for i, (mark, style, words) in enumerate([("box", "node", "the paper, with its error"), ("line", "line", "the model, step_time()"), ("dot", "node", "simulated"),
                                              ("line", "a", "tree: Alg. 3, paper"), ("line", "c", "tree: two-level"), ("line", "b", "ring"),
                                              ("line", "empty", "prefill at the peak rate")]):
        height = y + 26 * i
        if mark == "box":
            drawing.box(x + 10, height - 4, 8, 8, style, 0)
        elif mark == "dot":
            drawing.add(f'<circle class="dot" cx="{x + 14}" cy="{height}" r="3.2"/>')
        else:
            drawing.line(x, height, x + 28, height, f"{style} curve")
        drawing.text(x + 40, height + 4, words, "left")
    return drawing.svg()


def table():
    """Tabulates what the paper measured, what the model says, and what was simulated."""
    data = network.schedules()
    if data is None:
        return network.missing()
    facts = Facts(data, simulated.read()["rows"])

    def more_for_ten_tokens(times, name, keys):
        ring, tree = (dict(ten_tokens(name, facts.series(times, name, algorithm))) for algorithm in ("ring", "paper"))
        return ring[keys] - tree[keys]

    def at_longest(times):
        return f"{dict(facts.ratio(times, FACTOR_RANKS))[LONGEST]:.0f}"

    rows = [[f"Fig. 3(a): ring / tree, {FACTOR_RANKS} GPUs, {simulated.keys_text(LONGEST)} keys", f"about {FACTOR}", at_longest(facts.model), at_longest(facts.simulated)]]
    for heads, gap in GAPS.items():
        rows.append([f"Fig. 4: ring - tree, d = {128 * heads}", f"{gap} MB", f"{gap_of_formulas(heads):.0f} MB", f"{facts.gap(heads):.0f} MB"])
    names = {hardware: name for name, hardware in network.HARDWARE.items()}
    for (source, hardware), measured in network.measured_times().items():
        name = names.get((source, hardware))
        for n, ((tree, _), (ring, _)) in measured.items():
            cells = [f"{more_for_ten_tokens(times, name, n):.2f} s" if name else "" for times in (facts.model, facts.simulated)]
            rows.append([f"{source}, {hardware}: ring - tree, {simulated.keys_text(n)} keys", f"{ring - tree:.2f} s", *cells])
    return network.table(["section 6", "paper", "model", "simulated"], rows)


def main():
    if len(sys.argv) != 4:
        print("\n".join(table()))
        return
    schedules = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    pathlib.Path(sys.argv[3], "section_6.svg").write_text(figure(Facts(schedules, simulated.read(sys.argv[2])["rows"])), encoding="utf-8")


if __name__ == "__main__":
    main()
