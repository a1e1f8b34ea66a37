#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws one picture for each central idea, computed from its formula: states on a ruler, the energy and its tangent, the saddle, two orders
of leaves, two halves of a window, heads beside the sequence, what a query sees, the halo of a text, and the memory of a ring.

Run: docs/tools/ideas.py FOLDER
"""
import math
import pathlib
import sys
from fractions import Fraction

from figures import Drawing

# Three keys with scalar values, for the energy.
SCORES, VALUES = (0.2, 1.0, -0.4), (-1.0, 0.6, 2.0)
DIGITS = 24  # of an F32


def energy(zeta):
    return math.log(sum(math.exp(s + zeta * v) for s, v in zip(SCORES, VALUES)))


def output(zeta=0.0):
    """Attention at zero source, the slope of the energy there."""
    weights = [math.exp(s + zeta * v) for s, v in zip(SCORES, VALUES)]
    return sum(w * v for w, v in zip(weights, VALUES)) / sum(weights)


def polyline(drawing, points, style):
    drawing.add(f'<polyline class="{style}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')


def digits(value):
    """A positive number as its 24 binary digits, and the exponent of the first."""
    exponent = math.floor(math.log2(value))
    whole = round(Fraction(value) / Fraction(2) ** (exponent - DIGITS + 1))
    return f"{whole:0{DIGITS}b}", exponent


def merged(high, low, shift):
    """high + 2^-shift low, rounded once to 24 digits, ties to even: exact otherwise, as fractions."""
    exact = Fraction(high) + Fraction(low) / 2**shift
    exponent = math.floor(math.log2(exact))
    unit = Fraction(2) ** (exponent - DIGITS + 1)
    return round(exact / unit) * unit


def ruler(high=Fraction(0xDA9B4D, 2**23), low=Fraction(0xA6E1CB, 2**23), shift=6):
    """Two sums D as digits on one ruler: the lower state moves right by the difference of the shifts, then the digits are added."""
    cell, left, top = 19, 150, 44
    drawing = Drawing(left + cell * (DIGITS + shift + 2) + 20, 232)
    place = lambda exponent: left + cell * (1 - exponent)
    drawing.text(left + cell * 8, 16, f"places of the higher shift e; the lower one is {shift} below it")
    for exponent in range(1, -DIGITS - shift, -1):
        if exponent % 4 == 0:
            drawing.text(place(exponent) + cell / 2, 34, f"2^{exponent}", "small")
    rows = [("D of the higher shift", high, 0, "a"), ("D of the lower shift", low, 0, "b"),
            (f"the same, times 2^-{shift}", low, shift, "b"), ("their sum, rounded once", merged(high, low, shift), 0, "c")]
    for row, (words, value, by, style) in enumerate(rows):
        text, exponent = digits(value)
        y = top + 42 * row + (12 if row == 3 else 0)
        drawing.text(8, y + 18, words, "left")
        for i, digit in enumerate(text):
            drawing.box(place(exponent - by - i) + 1, y, cell - 2, 26, style, 2)
            drawing.text(place(exponent - by - i) + cell / 2, y + 18, digit)
    y = top + 42 * 3 + 4
    drawing.line(left, y, left + cell * (DIGITS + shift + 2), y)
    end = place(digits(merged(high, low, shift))[1] - DIGITS)
    drawing.line(end, top - 4, end, 226, "empty")
    drawing.text(end + 4, 222, "rounded off", "small left")
    return drawing.svg()


def tangent():
    """The energy along one direction and its tangent at zero source, whose slope is the attention output."""
    width, height, x0, y0, sx, sy = 640, 300, 320, 250, 95, 62
    drawing = Drawing(width, height)
    x, y = (lambda zeta: x0 + sx * zeta), (lambda f: y0 - sy * f)
    drawing.line(20, y0, width - 20, y0)
    drawing.line(x0, 20, x0, height - 20)
    drawing.text(width - 14, y0 + 20, "ζ", "left")
    steps = [i / 20 for i in range(-60, 43)]
    polyline(drawing, [(x(t), y(energy(t))) for t in steps if y(energy(t)) > 14], "arrow")
    z, f0 = output(), energy(0)
    drawing.line(x(-2.6), y(f0 - 2.6 * z), x(2.6), y(f0 + 2.6 * z), "slow")
    drawing.add(f'<circle class="dot" cx="{x(0)}" cy="{y(f0):.1f}" r="4"/>')
    drawing.text(x(0) + 10, y(f0) + 20, f"F(0) = {f0:.2f}", "left")
    drawing.text(x(0.9), y(f0 + 0.9 * z) + 30, f"slope z = {z:.2f}: the attention output", "left")
    drawing.text(x(-2.3), y(energy(-2.3)) - 14, "F(ζ)", "left")
    return drawing.svg()


def saddle():
    """Level lines of Gamma = z zeta - F(zeta), and the saddle at zero source and z = attention."""
    width, height, z_star, f0 = 640, 380, output(), energy(0)
    drawing = Drawing(width, height)
    x, y = (lambda zeta: 310 + 90 * zeta), (lambda z: 190 - 70 * (z - z_star))
    drawing.box(40, 20, 540, 340, "frame", 4)
    inside = lambda zeta, z: 40 <= x(zeta) <= 580 and 20 <= y(z) <= 360
    # On a level c: z = (c + F(zeta)) / zeta.
    for level in (-3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 2, 3):
        c = level - f0
        style = "slow" if level == 0 else "arrow" if level > 0 else "down"
        for side in (-1, 1):
            run = []
            for i in range(1, 301):
                zeta = side * i / 100
                z = (c + energy(zeta)) / zeta
                if inside(zeta, z):
                    run.append((x(zeta), y(z)))
                elif run:
                    polyline(drawing, run, style)
                    run = []
            if len(run) > 1:
                polyline(drawing, run, style)
    drawing.line(x(0), 20, x(0), 360, "slow")
    drawing.add(f'<circle class="dot" cx="{x(0)}" cy="{y(z_star)}" r="5"/>')
    drawing.text(x(0) + 12, y(z_star) + 20, f"ζ = 0, z = {z_star:.2f}: attention", "left")
    drawing.text(586, y(z_star) + 4, "ζ", "left")
    drawing.text(x(0), 14, "z")
    for words, zeta, z in (("higher", 1.9, z_star + 1.9), ("lower", -1.9, z_star + 1.9), ("higher", -1.9, z_star - 1.9), ("lower", 1.9, z_star - 1.9)):
        drawing.text(x(zeta), y(z), words, "small")
    return drawing.svg()


def owner(leaf, a):
    """The rank of a leaf in the dealt order of 2^a ranks: its low a bits, reversed."""
    return int(f"{leaf % 2**a:0{a}b}"[::-1], 2) if a else 0


def orders(n_leaves=16, n_now=10, a=2):
    """Sixteen leaves of a growing sequence on four ranks, in both orders: who holds them, and the tree above the slots."""
    p, dx, styles = 2**a, 36, ("a", "b", "c", "node")
    drawing = Drawing(170 + dx * n_leaves, 330)
    per_rank = n_leaves // p
    rows = (("contiguous", lambda j: j // per_rank, lambda j: j), ("dealt", lambda j: owner(j, a), lambda j: owner(j, 4)))
    for row, (name, rank_of, slot_of) in enumerate(rows):
        top = 18 + 165 * row
        drawing.text(8, top + 12, name, "left")
        # The tree over four levels, by slots.
        place = lambda level, i: (165 + dx * (i + 0.5) * 2**level, top + 70 - 20 * level)
        at = {slot_of(j): j for j in range(n_leaves)}
        for level in range(1, 4):
            for i in range(n_leaves >> level):
                for child in (2 * i, 2 * i + 1):
                    drawing.line(*place(level, i), *place(level - 1, child), "line" if level <= 4 - a else "empty")
        for slot in range(n_leaves):
            leaf = at[slot]
            x = 147 + dx * slot + 18
            is_there = leaf < n_now
            drawing.box(x - 15, top + 70, 30, 26, styles[rank_of(leaf)] if is_there else "empty", 4)
            drawing.text(x, top + 88, leaf, "" if is_there else "small")
        lengths = [sum(rank_of(j) == r for j in range(n_now)) for r in range(p)]
        drawing.text(8, top + 88, "leaf, by slot", "left")
        for r in range(p):
            drawing.text(147 + dx * per_rank * (r + 0.5), top + 116, f"rank {r}: {lengths[r]} of {n_now} leaves", "small")
    return drawing.svg()


def halves():
    """Kernels of two devices over three steps, and the four arrows of the proof that two halves of a window suffice."""
    drawing = Drawing(760, 250)
    rows, spans = {"A": 40, "B": 160}, {"A": ((100, 230), (250, 410), (430, 560)), "B": ((120, 285), (305, 520), (545, 690))}
    for device, y in rows.items():
        drawing.text(10, y + 26, f"device {device}", "left")
        for step, (begin, end) in enumerate(spans[device]):
            drawing.box(begin, y, end - begin, 42, "ab"[step % 2])
            drawing.text((begin + end) / 2, y + 26, f"step t{f' + {step}' if step else ''}, half {step % 2}")

    def packet(x1, y1, x2, y2, style, words, dx=8):
        drawing.line(x1, y1, x2, y2, style)
        length = math.hypot(x2 - x1, y2 - y1)
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        drawing.add(f'<path class="{"head" if style == "arrow" else style + "_head"}" d="M{x2:.1f} {y2:.1f} L{x2 - 10 * ux - 5 * uy:.1f} {y2 - 10 * uy + 5 * ux:.1f} '
                    f'L{x2 - 10 * ux + 5 * uy:.1f} {y2 - 10 * uy - 5 * ux:.1f} z"/>')
        drawing.text((x1 + x2) / 2 + dx, (y1 + y2) / 2 + 4, words, "left")

    packet(140, 82, 180, 160, "arrow", "t")
    packet(315, 160, 380, 82, "slow", "t + 1", 10)
    packet(440, 82, 560, 160, "down", "t + 2, same half as t", 14)
    for x, y, words in ((410, 34, "2: so A had a packet of t + 1 from B"), (285, 226, "4: and B had read all of t"), (520, 226, "3: B sent it after its step t")):
        drawing.text(x, y, words, "small")
    drawing.text(600, 66, "1: A has ended t + 1", "small left")
    return drawing.svg()


def heads():
    """Eight key/value heads over a sequence, on four ranks: by heads, by the sequence, and by both."""
    drawing = Drawing(720, 236)
    styles, n_heads, n_parts, cell = ("a", "b", "c", "node"), 8, 8, 20
    ways = (("by heads", lambda h, s: h // 2), ("by both", lambda h, s: h // 4 * 2 + s // 4), ("by the sequence", lambda h, s: s // 2))
    for i, (name, rank_of) in enumerate(ways):
        left, top = 60 + 230 * i, 36
        drawing.text(left + cell * n_parts / 2, 20, name)
        for h in range(n_heads):
            for s in range(n_parts):
                drawing.box(left + cell * s, top + cell * h, cell - 2, cell - 2, styles[rank_of(h, s)], 2)
        for rank in range(4):
            cells = [(h, s) for h in range(n_heads) for s in range(n_parts) if rank_of(h, s) == rank]
            x = left + cell * (sum(s for _, s in cells) / len(cells) + 0.5)
            y = top + cell * (sum(h for h, _ in cells) / len(cells) + 0.5)
            drawing.add(f'<circle class="node" style="stroke:none" cx="{x - 1:g}" cy="{y - 1:g}" r="11"/>')
            drawing.text(x - 1, y + 4, rank)
        sent = {"by heads": "no state is sent", "by both": "states of 4 heads, 2 ranks", "by the sequence": "states of 8 heads, 4 ranks"}[name]
        drawing.text(left + cell * n_parts / 2, top + cell * n_heads + 22, sent, "small")
    drawing.text(8, 40 + cell * 4, "heads", "left")
    drawing.text(8, 232, "columns: parts of the sequence; numbers: ranks", "small left")
    return drawing.svg()


def seen(N=1000, p=4, l=4, window=200, sinks=66, leaf=64):
    """Draws what the queries of a step see, leaf by leaf: by all of them, by some, by none; and the ranks that hold the leaves."""
    n_leaves, dx, left = -(-N // leaf), 36, 120
    per_rank = -(-n_leaves // p)
    drawing = Drawing(left + dx * n_leaves + 30, 78 + 30 * l)
    ends = [N - l + 1 + j for j in range(l)]
    sees = lambda j, a: a < ends[j] and (a >= ends[j] - window or a < sinks)
    for j in range(l):
        y = 18 + 30 * j
        drawing.text(8, y + 16, f"query {N - l + j}", "left")
        for i in range(n_leaves):
            keys = range(i * leaf, min(N, (i + 1) * leaf))
            n_seen = sum(sees(j, a) for a in keys)
            drawing.box(left + dx * i, y, 32, 22, "a" if n_seen == leaf else "b" if n_seen else "empty", 4)
            drawing.text(left + dx * i + 16, y + 15, n_seen or "", "small")
    read = [i for i in range(n_leaves) if any(sees(j, a) for j in range(l) for a in range(i * leaf, min(N, (i + 1) * leaf)))]
    for r in range(p):
        mine = range(r * per_rank, min(n_leaves, (r + 1) * per_rank))
        x = left + dx * mine[0]
        drawing.line(x, 26 + 30 * l, x + dx * len(mine) - 6, 26 + 30 * l, "line")
        drawing.text(x + dx * len(mine) / 2, 44 + 30 * l, f"rank {r} reads {sum(i in read for i in mine)} of {len(mine)}", "small")
    return drawing.svg()


def halo(n_layers=2, window=24, shard=120, n_ranks=3):
    """Draws what the ranks compute of a text: every windowed layer needs the positions before it that its window reaches."""
    drawing, left, scale, colours = Drawing(760, 268), 176, 1.6, ("a", "b", "c")
    x = lambda position: left + scale * position
    drawing.text(8, 24, "the text", "left")
    for rank in range(n_ranks):
        drawing.box(x(rank * shard), 10, scale * shard - 2, 22, colours[rank], 3)
        drawing.text(x((rank + 0.5) * shard), 25, f"shard of rank {rank}")
    names = ["characters that are read", *(f"after windowed layer {i + 1}" for i in range(n_layers))]
    names[-1] += ": the shard"
    for layer, name in enumerate(names):
        for rank in range(n_ranks):
            begin, top = max(0, rank * shard - (n_layers - layer) * (window - 1)), 54 + 62 * layer + 17 * rank
            drawing.box(x(begin), top, scale * ((rank + 1) * shard - begin) - 2, 13, colours[rank], 2)
            if begin < rank * shard:
                drawing.box(x(begin), top, scale * (rank * shard - begin), 13, "empty", 2)
        drawing.text(8, 84 + 62 * layer, name, "left small")
    drawing.text(8, 258, f"Dashed: the halo, computed a second time. A rank starts {n_layers} x {window - 1} = {n_layers * (window - 1)} characters early; no message is sent.", "small left")
    return drawing.svg()


def memory(t=64000, d=2048, size=2):
    """Keys and values that a device holds, eq. (8) and eq. (9), and in a ring of more than two."""
    drawing, left, unit = Drawing(760, 150), 190, 170
    shard = 2 * t * d * size / 1e6
    for row, (name, parts) in enumerate((("tree, eq. (9)", ("own",)), ("ring of two, eq. (8)", ("own", "arrives")), ("longer ring, as counted", ("own", "arrives", "leaves")))):
        y = 14 + 38 * row
        drawing.text(8, y + 19, name, "left")
        for i, part in enumerate(parts):
            drawing.box(left + unit * i, y, unit - 3, 28, "abc"[i], 3)
            drawing.text(left + unit * (i + 0.5), y + 19, part)
        drawing.text(left + unit * len(parts) + 8, y + 19, f"{len(parts) * shard:.0f} MB", "small left")
    drawing.text(8, 142, f"{t} keys per device, d = {d}, BF16: a shard has {shard:.0f} MB.", "small left")
    return drawing.svg()


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for figure in (ruler, tangent, saddle, orders, halves, heads, seen, halo, memory):
        (folder / f"idea_{figure.__name__}.svg").write_text(figure(), encoding="utf-8")


if __name__ == "__main__":
    main()
