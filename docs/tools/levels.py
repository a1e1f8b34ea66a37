#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws two figures that every chapter can point to: the levels from a key to a cluster with their sizes, and a step on eight GPUs as a time line.

Run: docs/tools/levels.py FOLDER

Sizes follow from the shape, bytes and times from the messages of two-level in docs/ring_and_tree.json, which docs/tools/race.py compares with
the plans.
"""
import json
import pathlib
import sys

import race
from figures import Drawing

LEAF, ELEMENT = 64, 2  # keys of a leaf, bytes of BF16
KEYS_OF_UNIT = 8 * LEAF


def facts():
    """The shape, and the messages of two-level: [source, target, leaves, arrives, whether between nodes, bytes]."""
    data = json.loads(race.FACTS.read_text(encoding="utf-8"))
    row, = [row for row in data["schedules"] if row["algorithm"] == "two-level"]
    return data, row


def size(n):
    """Bytes as the text of the book has them."""
    return f"{n / 1000:.1f} kB" if 1000 < n < 10_000 else race.bytes_text(n).replace(".00 ", " ").replace(".0 ", " ")


def sizes():
    """{level: (keys, bytes of keys and values, bytes that leave it)}, for one head up to a shard, for all heads from a GPU on."""
    data, row = facts()
    pair, state = 2 * data["head_dim"] * ELEMENT, 4 * (2 + data["head_dim"])
    shard, sent = row["keys"] // row["ranks"], sum(message[5] for message in row["messages"])
    if {message[5] for message in row["messages"]} != {data["heads"] * state}:
        raise ValueError("this figure is drawn for messages of one state for each head")
    return {"key": (1, pair, 0), "leaf": (LEAF, LEAF * pair, state), "unit": (KEYS_OF_UNIT, KEYS_OF_UNIT * pair, state), "head": (shard, shard * pair, state),
            "gpu": (shard, data["heads"] * shard * pair, data["heads"] * state), "cluster": (row["keys"], data["heads"] * row["keys"] * pair, sent)}


def levels():
    """From a cluster down to a leaf: each row is the part that stands out in the row above it."""
    of, (data, row) = sizes(), facts()
    left, width, dy, height, drawing = 132, 420, 76, 30, Drawing(900, 424)
    rows = (
        ("cluster", f"{row['ranks']} GPUs, {row['ranks'] // row['per_node']} nodes", row["ranks"], "sent by all of them", "ranks, then nodes"),
        ("gpu", f"GPU: {data['heads']} heads", data["heads"], "a state for each head", "no merge"),
        ("head", f"head: {of['head'][0] // KEYS_OF_UNIT} units", of["head"][0] // KEYS_OF_UNIT, "a state", "the second launch"),
        ("unit", f"unit: {KEYS_OF_UNIT // LEAF} leaves", KEYS_OF_UNIT // LEAF, "a state", "a thread group"),
        ("leaf", f"leaf: {LEAF} keys", LEAF, "a state, in registers", "the lanes of a warp"),
    )
    for x, words in ((left + width + 54, "keys and values"), (left + width + 154, "what leaves it"), (left + width + 276, "merged by")):
        drawing.text(x, 18, words, "small")
    for i, (level, words, n, gives, merged) in enumerate(rows):
        y, each = 34 + dy * i, width / n
        drawing.text(4, y + 20, words, "left")
        chosen = n * 5 // 8
        for part in range(n):
            gap = 6 if level == "cluster" and part == row["per_node"] else 0
            drawing.box(left + each * part + 1 + gap, y, each - (2 if n < 40 else 1) - gap, height, "b" if part == chosen and level != "leaf" else "a", 3 if n < 40 else 1)
        if i + 1 < len(rows):
            for x, edge in ((left, chosen), (left + width, chosen + 1)):
                drawing.line(left + each * edge, y + height + 2, x, y + dy - 3)
        _, held, leaves = of[level]
        drawing.text(left + width + 54, y + 20, size(held))
        drawing.text(left + width + 154, y + 14, size(leaves))
        drawing.text(left + width + 154, y + 30, gives, "small")
        drawing.text(left + width + 276, y + 20, merged, "small")
    keys = of["leaf"][1] // 2
    drawing.text(4, 34 + dy * 4 + 58, f"{row['keys']} keys in {data['dtype'].upper()}, heads of {data['head_dim']}. A key and its value have {of['key'][1]} bytes; "
                 f"the keys of a leaf have {size(keys)}, and so have its values.", "small left")
    drawing.text(4, 34 + dy * 4 + 78, "A unit has 2^c leaves; it is drawn for c = 3. Orange: the part that the next row shows.", "small left")
    return drawing.svg()


def step_line():
    """One step of two-level on eight GPUs: what each of them does, from left to right."""
    of, (data, row) = sizes(), facts()
    left, dy, scale, drawing = 76, 26, 28, Drawing(900, 330)
    times = sorted({(message[2], message[3], message[4]) for message in row["messages"]})
    if len(times) != 2 or [between for *_, between in times] != [0, 1] or times[0][1] != times[1][0] or abs(times[1][1] - row["us"]) > 1e-9:
        raise ValueError("this figure is drawn for one exchange inside a node, and one between nodes after it")
    (begin, inside, _), (_, end, _) = times
    for rank in range(row["ranks"]):
        y = 52 + dy * rank + (8 if rank >= row["per_node"] else 0)
        drawing.text(4, y + 15, f"GPU {rank}", "left")
        for from_, to, style in ((0, begin, "c"), (begin, inside, "a"), (inside, end, "b")):
            drawing.box(left + scale * from_ + 1, y, scale * (to - from_) - 2, 20, style, 3)
    bottom = 52 + dy * row["ranks"] + 8
    for us in (0, 5, 10, 15, 20, 25):
        drawing.line(left + scale * us, bottom, left + scale * us, bottom + 6)
        drawing.text(left + scale * us, bottom + 20, f"{us} µs", "small")
    drawing.line(left, bottom, left + scale * end, bottom)
    n = [sum(message[4] == kind and message[0] == 0 for message in row["messages"]) for kind in (0, 1)]
    drawing.text(left + scale * begin / 2, 22, f"reads {size(of['gpu'][1])} of keys and values: {begin:.1f} µs")
    drawing.text(left + scale * begin / 2, 40, f"and makes {data['heads']} states", "small")
    drawing.text(left + scale * (begin + inside) / 2 - 34, 22, f"{inside - begin:.1f} µs")
    drawing.text(left + scale * (inside + end) / 2 + 14, 22, f"{end - inside:.1f} µs")
    drawing.text(left + scale * (begin + inside) / 2 - 34, 40, "in the node", "small")
    drawing.text(left + scale * (inside + end) / 2 + 22, 40, "between nodes", "small")
    message, words = size(of["gpu"][2]), ("no", "one", "two", "three")
    drawing.text(4, bottom + 44, f"Blue: each GPU sends its states, {message}, to {words[n[0]]} others of its node. Orange: what it then has, {message}, to {words[n[1]]} of the other node. "
                 f"{size(of['cluster'][2])} in all.", "small left")
    return drawing.svg()


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for figure in (levels, step_line):
        (folder / f"{figure.__name__}.svg").write_text(figure(), encoding="utf-8")


if __name__ == "__main__":
    main()
