#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the figures of the chapter on kernels from what the kernels' own functions say (docs/tools/holders.cpp).

Run: docs/tools/kernel_figures.py HOLDERS.json FOLDER
"""
import json
import pathlib
import sys

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
    """Steps 1 and 2: scores in memory, and a chain in registers."""
    drawing = Drawing(880, 300)
    drawing.box(4, 4, 424, 292, "frame", 10)
    drawing.box(452, 4, 424, 292, "frame", 10)
    drawing.text(216, 28, "step 1: scores in global memory")
    drawing.text(664, 28, "step 2: scores in registers")
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
    drawing.text(664, 54, "32 lanes read one row: lane i has the numbers i, i + 32, ...", "small")
    cells(drawing, 474, 62, ["0", "1", "2", "3", "4", "...", "30", "31"], "a", 48)
    drawing.text(664, 110, "5 exchanges: every lane has the score", "small")
    drawing.text(664, 160, "merge, key after key: a chain", "small")
    for i in range(6):
        x = 500 + 64 * i
        drawing.add(f'<circle class="a" cx="{x}" cy="228" r="15"/>')
        drawing.text(x, 232, f"k{i}", "small")
        if i:
            drawing.arrow(x - 49, x - 16, 228)
    drawing.text(664, 276, "the next row is asked for when this one is done with", "small")
    return drawing.svg()


def sub_warp(data):
    """Step 3: a warp is two sub-warps, a lane 16 bytes of eight rows."""
    dx, dy, left = 25, 20, 62
    drawing = Drawing(left + 32 * dx + 16, 300)
    for lane in range(32):
        drawing.text(left + dx * lane + 12, 44, lane, "small")
    drawing.text(left - 8 - 22, 44, "lane", "small")
    for half, words in enumerate(("first sub-warp: its own range of positions", "second sub-warp: another range")):
        drawing.text(left + dx * (8 + 16 * half), 22, words)
        for key in range(8):
            for i in range(16):
                drawing.box(left + dx * (16 * half + i), 54 + dy * key, dx - 3, dy - 3, RANKS[half], 3)
    for key in range(8):
        drawing.text(left - 30, 68 + dy * key, f"key {key}", "small")
    y = 54 + 8 * dy + 12
    for i, (first, last) in enumerate(data["sub-warp"]):
        drawing.text(left + dx * i + 12, y + 6 + (i % 2) * 16, f"{first}–{last}", "small")
    drawing.text(left + dx * 24, y + 14, "components that a lane holds: 16 bytes, eight numbers of BF16", "small")
    drawing.text(left + dx * 16, y + 52, "eight loads of 16 bytes a lane are under way before the first is used")
    return drawing.svg()


def exchange(data):
    """The sums of eight keys over sixteen lanes, exchange by exchange."""
    n_lanes, n_keys, w, h = 16, 8, 15, 17
    drawing = Drawing(5 * 158 + 70, h * n_lanes + 88)
    received = data["exchanges"]  # [key][exchange][lane]: set of the lanes whose products came
    held = [{key: 1 << lane for key in range(n_keys)} for lane in range(n_lanes)]
    titles = ["own products", "4 exchanges", "2 exchanges", "1 exchange", "1 exchange"]
    calls = [[], range(0, 4), range(4, 6), range(6, 7), range(7, 8)]
    for phase, title in enumerate(titles):
        for lane in range(n_lanes):
            for key in list(held[lane]):
                came = 0
                for call in calls[phase]:
                    came |= received[key][call][lane]
                if phase and came == 0:
                    del held[lane][key]
                elif phase:
                    held[lane][key] |= came
        x = 62 + 158 * phase
        drawing.text(x + 60, 20, title)
        drawing.text(x + 60, 38, "sums of " + str(bin(next(iter(held[0].values()))).count("1")) + " lanes" if phase else "of eight keys", "small")
        for lane in range(n_lanes):
            y = 48 + h * lane
            if phase == 0:
                drawing.text(30, y + 12, f"lane {lane}", "small")
            for key in range(n_keys):
                mask = held[lane].get(key)
                drawing.box(x + w * key, y, w - 2, h - 3, "a" if mask else "empty", 2)
                if mask:
                    drawing.text(x + w * key + w / 2 - 1, y + 11, key, "small")
    if any(mask != 0xFFFF for lane in held for mask in lane.values()):
        raise ValueError("holders.json: a score that is not the sum of all lanes")
    drawing.text(452, h * n_lanes + 74, "now every lane has one key to weigh, and tells the others")
    return drawing.svg()


def lane_forest(data):
    """The counter: what waits in registers, what in memory."""
    steps, first, dx, dy = data["lane_forest"], 8, 26, 46
    n, top = len(steps), 7
    drawing = Drawing(dx * n + 60, dy * 5 + 84)
    waits = {tuple(node) for step in steps for node in step}
    final = {tuple(node) for node in steps[-1]}

    def place(level, index):
        return 40 + dx * (((index + 0.5) * 2 ** (level - 3)) - first), 30 + dy * (top - level)

    nodes = [(level, i) for level in range(3, top + 1) for i in range((first + n) >> (level - 3)) if i << (level - 3) >= first]
    for level, i in nodes:
        if level > 3:
            for child in (2 * i, 2 * i + 1):
                drawing.line(*place(level, i), *place(level - 1, child))
    for level, i in nodes:
        x, y = place(level, i)
        style = ("b" if level >= 6 else "a") if (level, i) in waits else "node"
        drawing.add(f'<circle class="node" style="stroke:none" cx="{x:g}" cy="{y:g}" r="9"/>')
        drawing.add(f'<circle class="{style}" cx="{x:g}" cy="{y:g}" r="9" stroke-width="{3.4 if (level, i) in final else 1.4}"/>')
    for level in range(3, top + 1):
        drawing.text(14, place(level, 0)[1] + 4, 2**level, "small")
    y = 30 + dy * (top - 3)
    for leaf in range(1, 5):
        drawing.box(40 + dx * (8 * leaf - first) + 2, y + 18, 8 * dx - 4, 24, "frame", 4)
        drawing.text(40 + dx * (8 * leaf - first + 4), y + 34, f"leaf: positions {64 * leaf} to {64 * leaf + 63}", "small")
    y += 66
    for x, style, words in ((60, "a", "waits in registers"), (250, "b", "waits in memory"), (430, "node", "merged as it comes")):
        drawing.add(f'<circle class="{style}" cx="{x}" cy="{y}" r="8"/>')
        drawing.text(x + 16, y + 4, words, "small left")
    drawing.text(620, y + 4, "heavy: the forest of the range", "small left")
    return drawing.svg()


def parts(data):
    """A range cut over blocks and sub-warps, and the forests that join."""
    scale, left = 0.74, 104
    drawing = Drawing(left + 1000 * scale + 16, 262)

    def row(y, forest, style, height=26):
        for begin, end in forest:
            drawing.box(left + begin * scale + 1, y, (end - begin) * scale - 2, height, style, 3)
            if (end - begin) * scale > 22:
                drawing.text(left + (begin + end) / 2 * scale, y + height / 2 + 4, end - begin, "small")

    for y, words in ((47, "sub-warps"), (127, "blocks"), (207, "the query")):
        drawing.text(4, y, words, "left")
    for split, part in enumerate(data["parts"]):
        begin, end = part["run"]
        drawing.box(left + begin * scale, 10, (end - begin) * scale - 2, 142, "frame", 6)
        drawing.text(left + (begin + end) / 2 * scale, 24, f"block {split}: positions {begin} to {end - 1}", "small")
        for worker in part["sub-warps"]:
            row(30, worker["forest"], RANKS[split])
            b, e = worker["run"]
            drawing.line(left + b * scale + 1, 60, left + e * scale - 3, 60)
            down(drawing, left + (b + e) / 2 * scale, 62, 106)
        row(110, part["forest"], RANKS[split])
        down(drawing, left + (begin + end) / 2 * scale, 152, 186)
    row(190, data["joined"], "node")
    drawing.text(left + 500 * scale, 246, "every join: append the forests left to right; siblings merge, nothing else does")
    return drawing.svg()


def ends(_):
    """How steps 4, 5 and 9 end."""
    drawing = Drawing(880, 236)
    names = ("step 4: a second kernel", "step 5: the last block", "step 9: a cluster")
    lengths = (128, 150, 112)
    for panel, name in enumerate(names):
        x = 10 + 292 * panel
        drawing.box(x, 4, 276, 228, "frame", 10)
        drawing.text(x + 138, 26, name)
        for block, length in enumerate(lengths):
            y = 46 + 40 * block
            drawing.text(x + 26, y + 17, f"block {block}", "small")
            drawing.box(x + 50, y, length, 26, RANKS[block], 3)
            drawing.text(x + 50 + length / 2, y + 17, "accumulate, join", "small")
        if panel == 0:
            drawing.line(x + 206, 40, x + 206, 166, "slow")
            drawing.text(x + 138, 184, "orange: the launch ends, another begins", "small")
            drawing.box(x + 214, 86, 54, 26, "node", 3)
            drawing.text(x + 241, 103, "join", "small")
            drawing.text(x + 138, 208, "forests: through global memory", "small")
        elif panel == 1:
            for block, length in enumerate(lengths):
                y = 46 + 40 * block
                drawing.add(f'<circle class="node" cx="{x + 62 + length}" cy="{y + 13}" r="9"/>')
                drawing.text(x + 62 + length, y + 17, sorted(lengths).index(length) + 1, "small")
            drawing.box(x + 224, 86, 46, 26, "node", 3)
            drawing.text(x + 247, 103, "join", "small")
            drawing.text(x + 138, 184, "circles: a counter, fence before and behind", "small")
            drawing.text(x + 138, 208, "forests: through global memory", "small")
        else:
            drawing.line(x + 206, 40, x + 206, 166, "down")
            drawing.line(x + 268, 40, x + 268, 166, "down")
            drawing.box(x + 212, 46, 50, 26, "node", 3)
            drawing.text(x + 237, 63, "join", "small")
            for block in (1, 2):
                y = 46 + 40 * block
                drawing.line(x + 237, y + 26, x + 237, y + 2 - 16, "arrow")
            drawing.add(f'<path class="head" d="M{x + 237} 72 l-5 9 h10 z"/>')
            drawing.text(x + 138, 184, "green: barriers of the cluster", "small")
            drawing.text(x + 138, 208, "forests: where they lie, in shared memory", "small")
    return drawing.svg()


def rings(data):
    """What a sub-warp waits for in steps 5, 6 and 8."""
    stages = {plan["step"]: plan["stages"] for plan in data["plans"]}
    if stages["async"] != 3 or stages["bulk"] != 3:
        raise ValueError("this figure is drawn for rings of three stages")
    unit, left, drawing, n_stages = 62, 116, Drawing(880, 398), 3

    def bar(y, start, length, words, style, height=22):
        drawing.box(left + unit * start + 1, y, unit * length - 2, height, style, 3)
        drawing.text(left + unit * (start + length / 2), y + height / 2 + 4, words, "small")

    drawing.text(4, 22, "step 5: registers", "left")
    for i in range(4):
        bar(34, 3 * i, 1, f"k{i}", "empty")
        bar(34, 3 * i + 1, 0.5, f"q·k{i}", "a")
        bar(34, 3 * i + 1.5, 1, f"v{i}", "empty")
        bar(34, 3 * i + 2.5, 0.5, f"p·v{i}", "a")
    drawing.text(4, 94, f"step 6: a ring of {n_stages} stages; each lane copies what it will read itself", "left")
    for stage in range(n_stages):
        y = 106 + 26 * stage
        drawing.text(4, y + 15, f"stage {stage}", "left")
        for group in range(stage, 10, n_stages):
            # Group g is taken from time g + 1 on; its copy starts when group g - n_stages + 1 is about to be taken.
            start = max(0, group - n_stages + 2) if group >= n_stages - 1 else 0
            bar(y, start, group + 1.5 - start, f"k{group}, v{group}", "empty")
            bar(y, group + 1.5, 0.5, group, "a")
    drawing.text(4, 214, "step 8: the same ring, filled by a lane of a warp of its own", "left")
    drawing.text(4, 241, "producer", "left")
    for group in range(10):
        start = 0.14 * group if group < n_stages else group - n_stages + 2
        bar(226, start, 0.14 if group < n_stages else 0.4, "", "b")
    for stage in range(n_stages):
        y = 252 + 26 * stage
        drawing.text(4, y + 15, f"stage {stage}", "left")
        for group in range(stage, 10, n_stages):
            start = 0.14 * (group + 1) if group < n_stages else group - n_stages + 2.4
            bar(y, start, group + 1.5 - start, f"k{group}, v{group}", "empty")
            bar(y, group + 1.5, 0.5, group, "a")
    drawing.text(4, 356, "Dashed: eight rows on their way. Blue: the sub-warp takes them. Orange: a lane starts two bulk copies, as soon as a stage is empty.", "small left")
    drawing.text(4, 376, "The order of events, not to scale.", "small left")
    return drawing.svg()


def tile(data):
    """Who holds which number of the output of a tile."""
    dx, dy, left = 46, 22, 150
    drawing = Drawing(880, dy * 16 + 66)
    drawing.text(left + 4 * dx, 18, "queries 0 to 7")
    for lane, query, component in data["tile"]:
        x, y = left + dx * query, 28 + dy * component
        drawing.box(x, y, dx - 3, dy - 3, "abc"[lane % 4 % 3] if lane % 4 < 3 else "node", 3)
        drawing.text(x + dx / 2 - 1, y + 14, lane, "small")
    for component in range(16):
        drawing.text(left - 70, 42 + dy * component, f"component {component}", "small")
    x = left + 8 * dx + 24
    for i, words in enumerate(("The number in a cell is the lane that holds it.",
                               "A lane has two components of two queries in",
                               "every tile of 16 x 8: of all a row of 128 is",
                               "made of, 16 components of two states.",
                               "",
                               "Read rows as queries and columns as keys, and",
                               "it is how scores leave the first product: what",
                               "a lane has of them is what the second product",
                               "wants from it. Nothing is transposed.")):
        drawing.text(x, 60 + 22 * i, words, "left")
    drawing.text(left + 4 * dx, dy * 16 + 50, "one of the eight tiles of a row of 128", "small")
    return drawing.svg()


def equal_runs(data):
    """A batch of unlike lengths on six multiprocessors, by splits and by equal runs."""
    scale, left, dy = 0.24, 44, 30
    drawing = Drawing(880, 292)
    style = ["a", "b", "node", "c"]

    def bar(x, y, n_keys, entry, words):
        drawing.box(x + 1, y, max(3, n_keys * scale) - 2, 22, style[entry], 3)
        if n_keys * scale > 62:
            drawing.text(x + n_keys * scale / 2, y + 15, words, "small")

    for panel, name in enumerate(("steps 4 to 9: a block a split", "step 10: equal runs")):
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


def main():
    data = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for figure in (first_steps, sub_warp, exchange, lane_forest, parts, ends, rings, tile, equal_runs):
        (folder / f"kernel_{figure.__name__}.svg").write_text(figure(data), encoding="utf-8")


if __name__ == "__main__":
    main()
