#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the figures of the chapter on kernels from what the kernels' own functions say (docs/tools/holders.cpp).

Run: docs/tools/kernel_figures.py HOLDERS.json TIME_LADDER.json FOLDER
"""
import json
import math
import pathlib
import sys

import kernel_tables
from figures import RANKS, Drawing


def down(drawing, x, y1, y2, style="arrow"):
    """A vertical arrow."""
    head = "head" if style == "arrow" else f"{style}_head"
    drawing.line(x, y1, x, y2 - 9, style)
    drawing.add(f'<path class="{head}" d="M{x:g} {y2:g} l-5 -9 h10 z"/>')


def cells(drawing, x, y, labels, style, width, height=24):
    """Boxes in a row, side by side."""
    for i, label in enumerate(labels):
        drawing.box(x + width * i, y, width - 2, height, style, 3)
        drawing.text(x + width * i + width / 2 - 1, y + height / 2 + 4, label, "small")


def first_steps(_):
    """Rungs 1 and 2: scores in memory, and a chain in registers."""
    drawing = Drawing(880, 300)
    drawing.box(4, 4, 424, 292, "frame", 10)
    drawing.box(452, 4, 424, 292, "frame", 10)
    drawing.text(216, 28, "rung 1: scores in global memory")
    drawing.text(664, 28, "rung 2: scores in registers")
    drawing.text(216, 54, "first kernel: thread a reads the row of key a", "small")
    cells(drawing, 24, 62, [f"k{i}" for i in range(8)], "a", 48)
    cells(drawing, 24, 128, [f"s{i}" for i in range(8)], "c", 48)
    for i in range(8):
        down(drawing, 47 + 48 * i, 88, 126)
    drawing.text(216, 176, "second kernel: thread j reads all scores, and component j of every value", "small")
    cells(drawing, 24, 214, [f"n{i}" for i in range(4)], "b", 96)
    for i in range(4):
        down(drawing, 71 + 96 * i, 184, 212)
    drawing.text(216, 266, "written once, read by every thread that has a component", "small")
    drawing.text(664, 54, "32 lanes read one row: lane i has the elements i, i + 32, ...", "small")
    cells(drawing, 474, 62, ["0", "1", "2", "3", "4", "...", "30", "31"], "a", 48)
    drawing.text(664, 110, "5 exchanges: every lane has the score", "small")
    drawing.text(664, 160, "merge, key after key: a chain", "small")
    for i in range(6):
        x = 500 + 64 * i
        drawing.add(f'<circle class="a" cx="{x}" cy="228" r="15"/>')
        drawing.text(x, 232, f"k{i}", "small")
        if i:
            drawing.arrow(x - 49, x - 16, 228)
    drawing.text(664, 276, "the next row is requested when this one has been used", "small")
    return drawing.svg()


def warp_leaf(data):
    """Draws how the 64 keys of a leaf go through a warp in rung 3: loads, exchanges and sums, as one lane made them."""
    run, n_lanes, n_keys, w, h = data["warp_leaf"], 32, 8, 8, 11
    lane, first, held = run["lane"], run["first"], run["held"]
    for begin in range(0, 64, n_keys):
        rows = range(begin, begin + n_keys)
        expected = [*(["K", a] for a in rows), *(["x", a] for a in rows for _ in held), *(["V", a] for a in rows), *(["+", a] for a in rows)]
        if run["events"][8 * begin:][:8 * n_keys] != expected:
            raise ValueError(f"this figure is drawn for eight keys, five exchanges each, eight values and one chain, not for the keys from {begin} on")
    if len(run["events"]) != 8 * 64:
        raise ValueError(f"this figure is drawn for {8 * 64} events, not for {len(run['events'])}")
    drawing = Drawing(880, 330)

    def grid(left, top, letter):
        for row in range(n_keys):
            drawing.text(left - 14, top + 9 + h * row, f"{letter}{row}", "small")
            for i in range(n_lanes):
                drawing.box(left + w * i, top + h * row, w - 1, h - 1, "b" if i == lane else "a", 1)

    for left, words, more in ((150, "1: eight rows of keys are requested", "lane i: 16 bytes of each row"),
                              (446, "2: five exchanges add the products", f"lanes whose products lane {lane} has"),
                              (742, "3: eight rows of values, one chain", "a weight is one number in every lane")):
        drawing.text(left, 18, words)
        drawing.text(left, 36, more, "small")
    grid(34, 48, "k")
    drawing.text(150, 48 + h * n_keys + 18, f"lane {lane}: elements {first[lane]} to {first[lane + 1] - 1}", "small")
    for i, mask in enumerate([1 << lane, *held]):
        y = 48 + 15 * i
        drawing.text(322, y + 10, f"bit {i - 1}" if i else "own", "small")
        for other in range(n_lanes):
            drawing.box(342 + w * other, y, w - 1, 13, "b" if mask >> other & 1 else "empty", 1)
    drawing.text(446, 48 + h * n_keys + 18, "for each of the eight keys; then every lane has eight scores", "small")
    grid(626, 48, "v")
    y = 174
    drawing.text(626, y + 4, "n of a lane:", "small left")
    drawing.text(712, y + 4, "f n", "small")
    for i in range(n_keys):
        x = 744 + 17 * i
        drawing.add(f'<circle class="c" cx="{x}" cy="{y}" r="7"/>')
        drawing.text(x, y + 4, i, "small")
    drawing.line(722, y, 735, y)
    drawing.text(34, 188, "e' = the largest of the old shift and the eight new ones, f = 2^(e - e'); an exponential per key", "small left")
    for i in range(8):
        x = 34 + 92 * i
        drawing.box(x, 222, 76, 40, "c" if i == 0 else "node", 5)
        drawing.text(x + 38, 246, f"{8 * i} to {8 * i + 7}")
        drawing.arrow(x + 76, x + 91, 242)
    drawing.box(770, 222, 100, 40, "a", 5)
    drawing.text(820, 246, "the leaf")
    drawing.text(34, 286, f"The leaf: eight times 1 to 3, in this order. From box to box go e, D and n, {len(held) * 64} exchanges and 64 fused multiply-adds for each element of a value.", "small left")
    drawing.text(34, 308, "Scores, e, D and weights are in every lane; a component of n is in one.", "small left")
    return drawing.svg()


def parts(data):
    """The units of one query on the warps of three blocks, and what the second launch merges at once."""
    runs, of_block, at_once = data["units"], 2, 8
    units = [unit for run in runs for unit in run]
    n, scale, left = units[-1][1], 0.51, 112
    nodes = [units[i:i + at_once] for i in range(0, len(units), at_once)]
    if [end - begin for begin, end in units] != [128] * (len(units) - 1) + [64] or len(nodes) != 2:
        raise ValueError("this figure is drawn for units of two leaves, a last one of one leaf, and two nodes of eight units at most")
    drawing = Drawing(left + n * scale + 16, 304)

    def box(y, begin, end, style):
        drawing.box(left + begin * scale + 1, y, (end - begin) * scale - 2, 26, style, 3)
        drawing.text(left + (begin + end) / 2 * scale, y + 17, end - begin, "small")

    for y, words in ((53, "warps"), (165, "second launch"), (249, "the query")):
        drawing.text(4, y, words, "left")
    for y, words in ((110, "one state a unit,"), (126, "through memory")):
        drawing.text(4, y, words, "small left")
    for block in range(len(runs) // of_block):
        taken = runs[of_block * block:of_block * (block + 1)]
        begin, end = taken[0][0][0], taken[-1][-1][1]
        drawing.box(left + begin * scale, 10, (end - begin) * scale - 1, 74, "frame", 6)
        drawing.text(left + (begin + end) / 2 * scale, 26, f"block {block}: positions {begin} to {end - 1}", "small")
        for run in taken:
            for unit in run:
                box(36, *unit, RANKS[block])
                down(drawing, left + (unit[0] + unit[1]) / 2 * scale, 88, 140)
            drawing.line(left + run[0][0] * scale + 4, 72, left + run[-1][1] * scale - 5, 72)
    for node in nodes:
        box(148, node[0][0], node[-1][1], "node")
        down(drawing, left + (node[0][0] + node[-1][1]) / 2 * scale, 178, 226)
    box(232, 0, n, "node")
    drawing.text(left + n / 2 * scale, 288, "thin line: the run of a warp; the second launch merges eight states at once, as the tree has them")
    return drawing.svg()


def ends(_):
    """Two ways to merge what blocks leave: the last block of rung 4, and a second launch that waits in place."""
    drawing = Drawing(880, 236)
    lengths = (128, 150, 112)
    for panel, name in enumerate(("rung 4: the last block", "library: a second launch")):
        x = 4 + 444 * panel
        drawing.box(x, 4, 428, 228, "frame", 10)
        drawing.text(x + 214, 26, name)
        for block, length in enumerate(lengths):
            y = 46 + 40 * block
            drawing.text(x + 32, y + 17, f"block {block}", "small")
            drawing.box(x + 60, y, length, 26, RANKS[block], 3)
            drawing.text(x + 60 + length / 2, y + 17, ("its split", "its units")[panel], "small")
            if panel == 0:
                drawing.add(f'<circle class="node" cx="{x + 74 + length}" cy="{y + 13}" r="9"/>')
                drawing.text(x + 74 + length, y + 17, sorted(lengths).index(length) + 1, "small")
            else:
                drawing.box(x + 64 + length, y, 232 - length, 26, "empty", 3)
                if block == 1:
                    drawing.text(x + 180 + length / 2, y + 17, "waits", "small")
                drawing.box(x + 304, y, 96, 26, "node", 3)
                drawing.text(x + 352, y + 17, f"rows of block {block}", "small")
        if panel == 0:
            drawing.box(x + 240, 86, 160, 26, "node", 3)
            drawing.text(x + 320, 103, "joins all splits", "small")
            drawing.text(x + 214, 180, "circles: the order of arrival at a counter; the last one goes on", "small")
            drawing.text(x + 214, 218, "forests of splits: through global memory", "small")
        else:
            drawing.line(x + 300, 40, x + 300, 158, "slow")
            drawing.text(x + 214, 180, "dashed: blocks of the second launch, in place before the first has ended", "small")
            drawing.text(x + 214, 198, "orange: the first launch has ended", "small")
            drawing.text(x + 214, 218, "one state of each unit: through global memory", "small")
    return drawing.svg()


def rings(data):
    """Draws what a warp waits for in rung 3 and rung 5."""
    n_stages = next(plan["stages"] for plan in data["plans"] if plan["step"] == "copies")
    if n_stages != 4:
        raise ValueError("this figure is drawn for a ring of four stages")
    unit, left, drawing = 62, 116, Drawing(880, 252)

    def bar(y, start, length, words, style, height=22):
        drawing.box(left + unit * start + 1, y, unit * length - 2, height, style, 3)
        drawing.text(left + unit * (start + length / 2), y + height / 2 + 4, words, "small")

    drawing.text(4, 22, "rung 3: registers", "left")
    for i in range(4):
        bar(34, 3 * i, 1, f"k{i}", "empty")
        bar(34, 3 * i + 1, 0.5, f"q·k{i}", "a")
        bar(34, 3 * i + 1.5, 1, f"v{i}", "empty")
        bar(34, 3 * i + 2.5, 0.5, f"p·v{i}", "a")
    # Step s is used from time s + 1.5 on. With n stages a lane starts step s + n - 1 before it waits for step s.
    drawing.text(4, 94, "rung 5: every lane copies what it will read itself", "left")
    for stage in range(n_stages):
        y = 106 + 26 * stage
        drawing.text(4, y + 15, f"stage {stage}", "left")
        for step in range(stage, 10, n_stages):
            start = max(0, step - 2)
            bar(y, start, step + 1.5 - start, f"k{step}, v{step}", "empty")
            bar(y, step + 1.5, 0.5, step, "a")
    drawing.text(4, 222, "Dashed: eight rows in flight. Blue: the warp computes. k0: keys 0 to 7.", "small left")
    drawing.text(4, 242, "The order of events, not to scale.", "small left")
    return drawing.svg()


def tile(data):
    """Draws which lane holds which weight before and after transpose_matrices(), and which element of the output of a tile."""
    weights = {element: lane for lane in range(32) for element in (2 * lane, 2 * lane + 1)}
    operand = {element: lane for lane, pair in enumerate(data["transposed"]) for element in pair}
    if any(operand[8 * key + query] != 4 * query + key // 2 for key in range(8) for query in range(8)):
        raise ValueError("this figure is drawn for weights that are transposed between lanes")
    dx, dy, top = 29, 22, 70
    drawing = Drawing(880, dy * 16 + top + 34)

    def grid(left, titles, rows, row_name, lane_of):
        for i, title in enumerate(titles):
            drawing.text(left + 4 * dx, 18 + 18 * i, title, "small" if i else "")
        for query in range(8):
            drawing.text(left + dx * query + dx / 2 - 1, top - 8, f"q{query}", "small")
        for row in range(rows):
            drawing.text(left - 6 - 4 * len(row_name(row)), top + 15 + dy * row, row_name(row), "small")
            for query in range(8):
                lane = lane_of(row, query)
                drawing.box(left + dx * query, top + dy * row, dx - 2, dy - 2, ["a", "b", "c", "node"][lane % 4], 3)
                drawing.text(left + dx * query + dx / 2 - 1, top + 14 + dy * row, lane, "small")

    output = {(component, query): lane for lane, query, component in data["tile"]}
    grid(30, ("weights of eight keys", "as the first product leaves them"), 8, lambda key: f"k{key}", lambda key, query: weights[8 * key + query])
    grid(330, ("the same weights", "as the second product takes them"), 8, lambda key: f"k{key}", lambda key, query: operand[8 * key + query])
    grid(640, ("output", "16 components"), 16, lambda component: f"{component}", lambda component, query: output[component, query])
    drawing.arrow(270, 298, top + 4 * dy - 1)
    for i, words in enumerate(("A cell names the lane that holds the element. Colours: the lane modulo four.",
                               "Left: a lane has two queries of one key. Middle: two keys of one query. In between, one",
                               "instruction transposes each matrix of 8 x 8.",
                               "Right: one of the eight tiles of a row of 128 elements. Over all eight, a lane holds",
                               "16 components of each of two states.")):
        drawing.text(30, top + 8 * dy + 40 + 22 * i, words, "small left")
    return drawing.svg()


def equal_runs(data):
    """A batch of unequal lengths on six multiprocessors, by splits and by equal runs."""
    scale, left, dy = 0.24, 44, 30
    drawing = Drawing(880, 292)
    style = ["a", "b", "node", "c"]

    def bar(x, y, n_keys, entry, words):
        drawing.box(x + 1, y, max(3, n_keys * scale) - 2, 22, style[entry], 3)
        if n_keys * scale > 62:
            drawing.text(x + n_keys * scale / 2, y + 15, words, "small")

    for panel, name in enumerate(("one block per split", "equal runs")):
        x0 = 6 + 440 * panel
        drawing.box(x0, 4, 428, 236, "frame", 10)
        drawing.text(x0 + 214, 26, name)
        for sm in range(6):
            drawing.text(x0 + 22, 56 + dy * sm, f"SM {sm}", "small")
    busy = [0] * 6
    for row, begin, end in data["splits"]:
        sm = busy.index(min(busy))
        bar(6 + left + busy[sm] * scale, 41 + dy * sm, end - begin, row // 2, f"{row // 2}, head {row % 2}")
        busy[sm] += max(end - begin, 12)
    for sm, segments in enumerate(data["equal_runs"]):
        x = 446 + left
        for line, begin, end, _ in segments:
            bar(x, 41 + dy * sm, end - begin, line // 2, f"{line // 2}: {begin}–{end}")
            x += max(3, (end - begin) * scale)
    drawing.text(440, 262, "to the right: keys read")
    lengths = ", ".join(f"{i}: {n}" for i, n in enumerate(data["lengths"]))
    drawing.text(440, 282, f"keys of the four sequences: {lengths}; two heads each", "small")
    return drawing.svg()


def steps():
    """Every step of the ladder at 8k keys: its floor, the time of its bytes at the read rate, and the time on a card."""
    rows, row, top, left, decade = kernel_tables.steps(), 40, 58, 152, 110
    drawing = Drawing(900, top + row * len(rows) + 40)

    def bar(y, seconds, style, height):
        length = decade * math.log10(seconds / 1e-6)
        drawing.box(left, y, length, height, style, 2)
        return left + length + 6

    drawing.text(left + 240, 22, "8k keys: time of a step, logarithmic scale")
    for power, words in ((1e-6, "1 µs"), (1e-5, "10 µs"), (1e-4, "100 µs"), (1e-3, "1 ms"), (1e-2, "10 ms")):
        x = left + decade * math.log10(power / 1e-6)
        drawing.line(x, top - 8, x, top + row * len(rows), "frame")
        drawing.text(x, top - 16, words, "small")
    for i, step in enumerate(rows):
        number, name, *_ = step
        drawing.text(4, top + row * i + 20, f"{number} {name}", "left")
        for j, heads in enumerate(kernel_tables.HEADS):
            line = kernel_tables.line_of(name, *heads)
            if not line:
                continue
            # The floor lies on the measured time. Rungs for scalar cores have one bar, in the middle of their line.
            in_f32 = line["shape"].startswith("F32")
            y, floor, words = top + row * i + (8 if in_f32 else 17 * j), kernel_tables.floor(step, line), "not measured yet"
            x = left
            if "graph_seconds" in line:
                seconds = kernel_tables.apart(line)
                x, words = bar(y, seconds, RANKS[j], 15), kernel_tables.times_the_read(line | {"graph_seconds": seconds})
            x = max(x, bar(y + 4, floor, f"{RANKS[j]} full", 7))
            words += f"; floor {kernel_tables.micro(floor)}"
            drawing.text(x, y + 12, words + (", in F32" if in_f32 else ""), "small left")
    y = top + row * len(rows) + 24
    for x, style, words in ((200, "a", "16 query and 16 key/value heads"), (460, "b", "32 query and 8 key/value heads")):
        drawing.box(x, y - 10, 14, 14, style, 2)
        drawing.text(x + 22, y + 2, words, "small left")
    return drawing.svg()


def measured(record):
    """The measured record: the time of every step at 8k keys, and the part of the read rate at 64k keys."""
    shapes = ("16/16", "32/8")
    times = {}  # [keys][step][shape]: (seconds, seconds of a kernel that only reads)
    for line in record["lines"]:
        dtype, heads, keys = line["shape"].split(", ", 2)
        if dtype == "BF16" and "graph_seconds" in line:
            of_step = times.setdefault(keys.removesuffix(" keys"), {}).setdefault(line["step"], {})
            of_step[heads.removesuffix(" heads")] = (line.get("apart_seconds", line["graph_seconds"]), line["read_seconds"])
    steps, row, top = list(times["8k"]), 38, 58
    drawing = Drawing(900, top + row * len(steps) + 44)
    for i, step in enumerate(steps):
        drawing.text(4, top + row * i + 21, f"{i + 1} {step}", "left")

    def micro(seconds):
        return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"

    # Time at 8k keys, on a logarithmic scale.
    left, decade = 104, 84
    drawing.text(left + 150, 22, "8k keys: time, logarithmic scale")
    for power, words in ((1e-5, "10 µs"), (1e-4, "100 µs"), (1e-3, "1 ms"), (1e-2, "10 ms")):
        x = left + decade * math.log10(power / 1e-5)
        drawing.line(x, top - 8, x, top + row * len(steps), "frame")
        drawing.text(x, top - 16, words, "small")
    for i, step in enumerate(steps):
        for j, shape in enumerate(shapes):
            seconds = times["8k"][step][shape][0]
            length, y = decade * math.log10(seconds / 1e-5), top + row * i + 16 * j
            drawing.box(left, y, length, 14, RANKS[j], 2)
            drawing.text(left + length + 5, y + 11, micro(seconds), "small left")
    # Part of the read rate at 64k keys.
    left, width = 520, 320
    drawing.text(left + width / 2, 22, "64k keys: part of the rate of a kernel that only reads")
    for part in (0, 0.25, 0.5, 0.75, 1):
        drawing.line(left + width * part, top - 8, left + width * part, top + row * len(steps), "frame")
        drawing.text(left + width * part, top - 16, f"{part:g}", "small")
    for i, step in enumerate(steps):
        for j, shape in enumerate(shapes):
            y = top + row * i + 16 * j
            if shape not in times["64k"].get(step, {}):
                if j == 0:
                    drawing.text(left + 6, y + 19, "not measured at this length", "small left")
                continue
            seconds, read = times["64k"][step][shape]
            drawing.box(left, y, width * read / seconds, 14, RANKS[j], 2)
            drawing.text(left + width * read / seconds + 5, y + 11, f"{read / seconds:.2f}", "small left")
    y = top + row * len(steps) + 26
    for x, style, words in ((240, "a", "16 query and 16 key/value heads"), (500, "b", "32 query and 8 key/value heads")):
        drawing.box(x, y - 10, 14, 14, style, 2)
        drawing.text(x + 22, y + 2, words, "small left")
    return drawing.svg()


def fibers(data):
    """Draws which of eight fibers runs when, up to a shuffle, up to a barrier and after it, for three seeds."""
    n_threads, w, h, left, drawing = 8, 26, 15, 74, Drawing(790, 456)
    for panel, (seed, order) in enumerate(data["fibers"].items()):
        top = 40 + 140 * panel
        if sorted(order[:n_threads]) != [[thread, 0] for thread in range(n_threads)] or any(order[i][1] > order[i + 1][1] for i in range(len(order) - 1)):
            raise ValueError("this figure is drawn for fibers that all stop at the same places")
        drawing.text(4, top - 6, f"seed {seed}", "left")
        for thread in range(n_threads):
            drawing.text(left - 12, top + 11 + h * thread, thread, "small")
            drawing.line(left, top + 7 + h * thread, left + w * len(order), top + 7 + h * thread, "frame")
        for time, (thread, part) in enumerate(order):
            drawing.box(left + w * time + 1, top + h * thread, w - 2, h - 2, RANKS[part], 2)
        for place, words in ((1, "the last to arrive at the shuffle hands out the values"), (2, "the last at the barrier")):
            x = left + w * n_threads * place
            drawing.line(x, top - 4, x, top + h * n_threads + 2, "slow")
            if panel == 0:
                drawing.text(x, 16, words, "small")
    drawing.text(left, 450, "to the right: time on one host thread. One fiber runs at a time; the line is where all are parked, or have arrived.", "small left")
    return drawing.svg()


def main():
    data, record = (json.loads(pathlib.Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:3])
    folder = pathlib.Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    for figure in (first_steps, warp_leaf, parts, ends, rings, tile, equal_runs, fibers):
        (folder / f"kernel_{figure.__name__}.svg").write_text(figure(data), encoding="utf-8")
    (folder / "kernel_measured.svg").write_text(measured(record), encoding="utf-8")
    (folder / "kernel_steps.svg").write_text(steps(), encoding="utf-8")


if __name__ == "__main__":
    main()
