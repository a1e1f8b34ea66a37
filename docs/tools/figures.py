#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the figures of the book as SVG that takes its colours from the page (docs/book.css), so they fit light and dark.

Run: docs/tools/figures.py FOLDER
"""
import pathlib
import sys

RANKS = "abc"  # classes of book.css, one a rank


class Drawing:
    def __init__(self, width, height):
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">']

    def add(self, element):
        self.parts.append(element)

    def line(self, x1, y1, x2, y2, style="line"):
        self.add(f'<line class="{style}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>')

    def box(self, x, y, width, height, style="node", radius=5):
        self.add(f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}"/>')

    def text(self, x, y, words, style=""):
        self.add(f'<text class="{style}" x="{x:g}" y="{y:g}">{words}</text>')

    def arrow(self, x1, x2, y, style="arrow"):
        """A horizontal arrow; from x1 to x2."""
        step = 9 if x2 > x1 else -9
        self.line(x1, y, x2 - step, y, style)
        head = "head" if style == "arrow" else f"{style}_head"
        self.add(f'<path class="{head}" d="M{x2:g} {y:g} l{-step} -5 v10 z"/>')

    def both(self, x1, x2, y, style="arrow"):
        middle = (x1 + x2) / 2
        self.arrow(middle, x1, y, style)
        self.arrow(middle, x2, y, style)

    def svg(self):
        return "\n".join([*self.parts, "</svg>", ""])


def cover(begin, end):
    """As reference/state/forest.hpp."""
    while begin < end:
        level = (end - begin).bit_length() - 1
        if begin:
            level = min(level, (begin & -begin).bit_length() - 1)
        yield level, begin >> level
        begin += 1 << level


def tree():
    """The canonical tree over eleven keys, and the forests of three ranks."""
    runs, levels, dx, dy = [(0, 3), (3, 8), (8, 11)], 4, 42, 58
    n_keys = runs[-1][1]
    drawing = Drawing(dx * 16 + 20, dy * levels + 108)
    forests = {node: RANKS[r] for r, run in enumerate(runs) for node in cover(*run)}

    def place(level, index):
        return 10 + dx * (index + 0.5) * 2**level, 34 + dy * (levels - level)

    def owner(level, index):
        begin, end = index << level, min((index + 1) << level, n_keys)
        if begin >= n_keys:
            return "empty"
        return next((RANKS[r] for r, (b, e) in enumerate(runs) if b <= begin and (index + 1) << level <= e), "node")

    for level in range(1, levels + 1):
        for index in range(2 ** (levels - level)):
            x, y = place(level, index)
            for child in (2 * index, 2 * index + 1):
                style = "empty" if owner(level - 1, child) == "empty" else "line"
                drawing.line(x, y, *place(level - 1, child), style)
    for level in range(levels + 1):
        for index in range(2 ** (levels - level)):
            x, y = place(level, index)
            style, heavy = owner(level, index), (level, index) in forests
            # Lines end at the rim of a node: the page shows through its tint.
            drawing.add(f'<circle class="node" style="stroke:none" cx="{x:g}" cy="{y:g}" r="14"/>')
            drawing.add(f'<circle class="{style}" cx="{x:g}" cy="{y:g}" r="14" stroke-width="{3 if heavy else 1.2}"/>')
            if level == 0:
                drawing.text(x, y + 4.5, index, "small" if style == "empty" else "")
    x, y = place(levels, 0)
    drawing.text(x, y - 21, "root: the result")
    for r, (begin, end) in enumerate(runs):
        y = 34 + dy * levels + 24
        drawing.box(12 + dx * begin, y, dx * (end - begin) - 4, 26, RANKS[r])
        n = len(list(cover(begin, end)))
        drawing.text(10 + dx * (begin + end) / 2, y + 18, f"rank {r}: {n} subtrees")
    return drawing.svg()


def ring():
    """Draws which shard each of four ranks computes on, hop by hop."""
    p, dx, dy, colors = 4, 150, 78, ["a", "b", "c", "node"]
    drawing = Drawing(dx * p + 100, dy * p + 40)
    for rank in range(p):
        drawing.text(90 + dx * rank + 50, 20, f"rank {rank}")
    for hop in range(p):
        y = 36 + dy * hop
        drawing.text(8, y + 25, f"hop {hop}", "left")
        for rank in range(p):
            x, shard = 90 + dx * rank, (rank - hop) % p
            drawing.box(x, y, 100, 40, colors[shard])
            drawing.text(x + 50, y + 25, f"k, v of {shard}")
            if hop + 1 < p and rank + 1 < p:
                curve = f"C{x + 80} {y + 64} {x + 170} {y + 50} {x + 189} {y + dy - 8}"
                drawing.add(f'<path class="arrow" d="M{x + 75} {y + 40} {curve}"/>')
                drawing.add(f'<path class="head" d="M{x + 192} {y + dy} l-10 -6 l9 -5 z"/>')
            elif hop + 1 < p:
                drawing.add(f'<path class="down" d="M{x + 25} {y + 40} C{x - 20} {y + 66} 190 {y + 52} 162 {y + dy - 7}"/>')
                drawing.add(f'<path class="down_head" d="M155 {y + dy} l3 -11 l8 7 z"/>')
    return drawing.svg()


def lifelines(n, rows, nodes=None, width=84):
    """A drawing with one vertical line a rank."""
    height = 62 + 34 * rows
    drawing = Drawing(width * n + 130, height)
    for begin, end in nodes or []:
        drawing.box(width * begin + 6, 4, width * (end - begin) - 12, height - 8, "frame", 10)
    for rank in range(n):
        x = width * (rank + 0.5)
        drawing.line(x, 44, x, height - 14)
        drawing.text(x, 32, f"rank {rank}")
    return drawing, lambda rank: width * (rank + 0.5), lambda row: 62 + 34 * row, width * n + 8


def reduce_to_first(n, me):
    """As distributed/exchange/exchange.hpp: (round, peer) of the message that a member sends, and None for the first."""
    i = 0
    while me >> i:
        if me >> i & 1:
            return i, me - (1 << i)
        i += 1
    return None


def leaders():
    drawing, x, y, right = lifelines(8, 5, [(0, 4), (4, 8)])
    for node in (0, 4):
        for me in range(1, 4):
            step, peer = reduce_to_first(4, me)
            drawing.arrow(x(node + me), x(node + peer), y(step))
            drawing.arrow(x(node + peer), x(node + me), y(4 - step), "down")
    drawing.both(x(0), x(4), y(2), "slow")
    for row, words in ((0.5, "reduce in the node"), (2, "leaders exchange"), (3.5, "broadcast")):
        drawing.text(right, y(row) + 4, words, "left")
    return drawing.svg()


def two_level():
    drawing, x, y, right = lifelines(8, 5, [(0, 4), (4, 8)])
    for node in (0, 4):
        for row, left, to in ((0, 0, 1), (0, 1, 2), (0, 2, 3), (0.5, 0, 2), (0.9, 1, 3), (1.4, 0, 3)):
            drawing.both(x(node + left), x(node + to), y(row), "arrow")
    for rank in range(4):
        drawing.both(x(rank), x(rank + 4), y(2.3 + 0.6 * rank), "slow")
    for row, words in ((0.7, "all ranks of a node"), (3.2, "two blocks of four")):
        drawing.text(right, y(row) + 4, words, "left")
    return drawing.svg()


def butterfly():
    drawing, x, y, right = lifelines(6, 4)
    for left in (0, 2):
        drawing.arrow(x(left), x(left + 1), y(0))
        drawing.arrow(x(left + 1), x(left), y(3), "down")
    members = [1, 3, 4, 5]
    for i, a in enumerate(members):
        for row, block in ((1, 1), (2, 2)):
            if i < i ^ block:
                drawing.both(x(a), x(members[i ^ block]), y(row) + (7 if row == 2 and i == 1 else 0), "arrow")
    for row, words in ((0, "fold"), (1, "blocks of one"), (2, "blocks of two"), (3, "hand back")):
        drawing.text(right, y(row) + 4, words, "left")
    return drawing.svg()


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for figure in (tree, ring, leaders, two_level, butterfly):
        (folder / f"{figure.__name__}.svg").write_text(figure(), encoding="utf-8")


if __name__ == "__main__":
    main()
