#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figure of README.md: the ring and the tree of merges, both on one axis of time, and the digests of what they compute; and its table.

Run: docs/tools/race.py --measure PROGRAM SCHEDULES.json  run the program tree_attn on 1, 2, 4, 8 and 13 ranks, read the messages that
                                                          docs/tools/schedules.cpp predicts, and write docs/ring_and_tree.json
     docs/tools/race.py --draw                            draw docs/ring_and_tree.svg, and the same for a dark page, from that file
     docs/tools/race.py --page PAGE.html                  draw it in the colours of the page, for the book
     docs/tools/race.py --check [SCHEDULES.json]          the drawings are those of the file, and its messages those predicted now

Every position, time and number in the drawing follows from the file. tests/docs/test_race.py tests this file.
"""
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FACTS = ROOT / "docs" / "ring_and_tree.json"
DRAWINGS = {"light": ROOT / "docs" / "ring_and_tree.svg", "dark": ROOT / "docs" / "ring_and_tree_dark.svg"}
RANKS = [1, 2, 4, 8, 13]
ALGORITHMS = {"two-level": "tree, two-level", "ring": "ring", "paper": "three AllReduces, Alg. 3 of the paper"}
# The rows of the table, and what they send.
TRAVELS = {"two-level": "states, in a tree", "ring": "keys and values", "ring-state": "states, hop by hop", "paper": "states, Alg. 3"}
COLOURS = {
    "light": {"text": "#1f2328", "weak": "#59636e", "line": "#d1d9e0", "box": "#f6f8fa", "inside": "#1982d2", "between": "#d9730d", "done": "#1a7f37", "page": "#ffffff"},
    "dark": {"text": "#f0f6fc", "weak": "#9198a1", "line": "#3d444d", "box": "#151b23", "inside": "#4aa5ee", "between": "#f0883e", "done": "#3fb950", "page": "#0d1117"},
}
# In the book the figure has the colours of the page.
COLOURS["page"] = COLOURS["light"] | {"text": "var(--page-foreground-color)", "weak": "var(--page-secondary-foreground-color)", "line": "var(--separator-color)",
                                      "box": "var(--side-nav-background)", "done": "#2d9d5a", "page": "var(--page-background-color)"}
WIDTH, HEIGHT, PANEL, RADIUS = 980, 556, 470, 84
# Where the parts begin, from the top: the title and the digests, ring and tree, the axis and the legend.
PANELS, AXIS = 136, 444
MONOSPACE = "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"


def us_text(us):
    return f"{us:.1f} µs" if us < 1000 else f"{us / 1000:.2f} ms"


def bytes_text(n):
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= size:
            return f"{n / size:.{0 if n / size >= 100 else 1 if n / size >= 10 else 2}f} {unit}"
    return f"{n} B"


def sets_of(row):
    """{rank: [(us, shards)]}: the shards that the state of a rank covers, from when on."""
    n = row["ranks"]
    sets = {rank: [(0.0, frozenset([rank]))] for rank in range(n)}
    messages = sorted({tuple(message[:4]) for message in row["messages"]}, key=lambda message: (message[3], message[2]))
    sent = {rank: sorted(leaves for source, _, leaves, _ in messages if source == rank) for rank in range(n)}
    for source, target, leaves, arrives in messages:
        # A ring hands on the shard that it received last, and a state covers everything so far.
        hop = sent[source].index(leaves)
        new = frozenset([(source - hop) % n]) if row["algorithm"] == "ring" else [shards for us, shards in sets[source] if us <= leaves][-1]
        if not new <= sets[target][-1][1]:
            sets[target].append((arrives, sets[target][-1][1] | new))
    return sets


def known(row):
    """{rank: [(us, n)]}: how many shards the state of a rank covers, from when on."""
    return {rank: [(us, len(shards)) for us, shards in steps] for rank, steps in sets_of(row).items()}


def merges(row):
    """[(level, index, us, whether its operands are of two nodes)]: the merges of the tree over ranks, and when the first rank has all that each covers."""
    n, per_node, sets = row["ranks"], row["per_node"], sets_of(row)
    for level in range(1, n.bit_length()):
        for index in range(n >> level):
            covered = frozenset(range(index << level, (index + 1) << level))
            yield level, index, min(us for steps in sets.values() for us, shards in steps if covered <= shards), 1 << level > per_node


def line(x1, y1, x2, y2, colour, width=1.5):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def words(x, y, text, colour, size=12, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"{more}>{text}</text>'


def shard(x, y, colours, place="box"):
    """The keys and values of a rank."""
    return f'<rect x="{x - 9:.1f}" y="{y - 7:.1f}" width="18" height="14" rx="2" fill="{colours[place]}" stroke="{colours["text"]}"/>'


def state(x, y, colour):
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'


def circle(x, y, text, colours, border, radius=15):
    return (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colours["page"]}" stroke="{border}" stroke-width="2.5"/>'
            + words(x, y + 4, text, colours["text"], 12 if radius == 15 else 11))


def node(x, width, y, height, name, colours):
    yield f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="12" fill="{colours["box"]}" stroke="{colours["line"]}"/>'
    yield words(x + width / 2, y + height - 8, name, colours["weak"], 11)


def head(row, title, what, left, colours):
    messages, n_bytes, _ = sent(row)
    yield words(left + PANEL / 2, PANELS + 22, title, colours["text"], 17, more=' font-weight="600"')
    yield words(left + PANEL / 2, PANELS + 42, f"{what}: {bytes_text(n_bytes)} in {messages} messages", colours["weak"], 13.5)


def ring(row, left, colours):
    """The ranks on a circle, the first node on its left half, and between two of them what each hop moves."""
    n, centre, y = row["ranks"], left + PANEL / 2, PANELS + 164
    yield from head(row, "Ring", "keys and values travel", left, colours)
    yield from node(centre - 176, 170, y - 106, 226, "node 0", colours)
    yield from node(centre + 6, 170, y - 106, 226, "node 1", colours)

    def place(rank):
        angle = math.pi / 2 + math.pi / n + 2 * math.pi * rank / n
        return centre + 1.45 * RADIUS * math.cos(angle), y - 2 - RADIUS * math.sin(angle)

    hop = [message for message in row["messages"] if message[2] == 0]
    between = {source: crosses for source, _, _, _, crosses, _ in row["messages"]}
    for rank in range(n):
        (x1, y1), (x2, y2) = place(rank), place((rank + 1) % n)
        colour = colours["between" if between[rank] else "inside"]
        yield line(x1, y1, x2, y2, colour)
        # The head of the arrow, at the edge of the circle that receives.
        length = math.hypot(x2 - x1, y2 - y1)
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        x, y0 = x2 - 17 * dx, y2 - 17 * dy
        yield f'<path d="M{x:.1f} {y0:.1f} l{-8 * dx - 4 * dy:.1f} {-8 * dy + 4 * dx:.1f} l{8 * dy:.1f} {-8 * dx:.1f} z" fill="{colour}"/>'
        yield shard((x1 + x2) / 2 - 4 * dx, (y1 + y2) / 2 - 4 * dy, colours, "page")
    for rank in range(n):
        yield circle(*place(rank), rank, colours, colours["line"])
    n_bytes = sum(message[5] for message in hop if message[0] == 0)
    yield words(centre, y - 4, f"{n - 1} hops of {bytes_text(n_bytes)}", colours["text"], 12)
    yield words(centre, y + 12, "from each rank", colours["text"], 12)


def tree(row, left, colours):
    """The tree of merges over the ranks: leaves are what a rank makes of its own keys."""
    n, per_node, top, bottom = row["ranks"], row["per_node"], PANELS + 76, PANELS + 224
    step, at = 50, left + 88
    levels = n.bit_length() - 1
    yield from head(row, "Tree", "states travel", left, colours)
    for index in range(n // per_node):
        yield from node(at + step * (per_node * index - 0.46), step * (per_node - 0.08), PANELS + 108, 176, f"node {index}", colours)
    x = lambda level, index: at + step * ((index + 0.5) * 2**level - 0.5)
    y = lambda level: bottom - (bottom - top) * level / levels
    found = list(merges(row))
    for level, index, _, crosses in found:
        colour = colours["between" if crosses else "inside"]
        for child in (2 * index, 2 * index + 1):
            yield line(x(level, index), y(level), x(level - 1, child), y(level - 1), colour)
            yield state((x(level, index) + x(level - 1, child)) / 2, (y(level) + y(level - 1)) / 2, colour)
    for rank in range(n):
        yield shard(x(0, rank), y(0) + 24, colours, "page")
        yield circle(x(0, rank), y(0), rank, colours, colours["line"])
    for level, index, _, _ in found:
        border = colours["done"] if level == levels else colours["line"]
        yield circle(x(level, index), y(level), f"{index << level}–{(index + 1 << level) - 1}", colours, border, 16)
    yield words(x(levels, 0) + 26, y(levels) + 4, "the output, on every rank", colours["done"], 12, "start")
    read = min(message[2] for message in row["messages"])
    for level, us in [(0, read), *sorted({level: us for level, _, us, _ in found}.items())]:
        yield words(left + 52, y(level) + 4, us_text(us), colours["weak"], 12, "end")


def axis(rows, colours):
    """One axis, logarithmic, for both."""
    left, width, y, first = 60, WIDTH - 120, AXIS + 34, 10
    done = {name: rows[name]["us"] for name in ("two-level", "ring")}
    decades = math.ceil(math.log10(max(done.values()) / first))
    x = lambda us: left + width * math.log10(us / first) / decades
    yield line(left, y, left + width, y, colours["line"], 2)
    for decade in range(decades + 1):
        us = first * 10**decade
        yield line(x(us), y - 5, x(us), y + 5, colours["weak"])
        yield words(x(us), y + 21, f"{us} µs" if us < 1000 else f"{us // 1000} ms", colours["weak"], 11)
    yield words(left + width / 2 + 55, y - 14, "time from the start of the step, predicted; a dot: a hop or a round is done", colours["weak"], 11)
    for name, text, anchor, aside in (("two-level", "tree done", "start", -6), ("ring", "ring done", "end", 6)):
        # A hop is done when the last rank has one shard more.
        hops = {}
        for us, n in (step for steps in known(rows[name]).values() for step in steps[1:]):
            hops[n] = max(us, hops.get(n, 0))
        for us in sorted(set(hops.values())):
            yield f'<circle cx="{x(us):.1f}" cy="{y}" r="3.5" fill="{colours["inside"]}"/>'
        yield f'<circle cx="{x(done[name]):.1f}" cy="{y}" r="5" fill="{colours["done"]}"/>'
        yield words(x(done[name]) + aside, y - 14, f"{text}: {us_text(done[name])}", colours["done"], 13, anchor, ' font-weight="600"')

    # The legend.
    y += 54
    state_bytes = {message[5] for message in rows["two-level"]["messages"]}
    moved = sum(message[5] for message in rows["ring"]["messages"] if message[0] == 0 and message[2] == 0)
    yield line(60, y, 86, y, colours["inside"], 2.5)
    yield words(94, y + 4, "inside a node", colours["text"], 12, "start")
    yield line(206, y, 232, y, colours["between"], 2.5)
    yield words(240, y + 4, "between nodes", colours["text"], 12, "start")
    yield shard(374, y, colours, "page")
    yield words(390, y + 4, f"keys and values of a rank, {bytes_text(moved)}", colours["text"], 12, "start")
    yield state(640, y, colours["inside"])
    yield words(652, y + 4, f"state, {' or '.join(map(bytes_text, sorted(state_bytes)))}", colours["text"], 12, "start")
    yield circle(780, y, "0–3", colours, colours["line"], 16)
    yield words(804, y + 4, "state of ranks 0 to 3", colours["text"], 12, "start")


def digest_rows(facts, colours):
    y = 52
    ranks = [str(each["ranks"]) for each in facts["digests"]]
    columns = [400 + 122 * i for i in range(len(ranks))]
    yield words(20, y, "digest of the output, on so many ranks", colours["weak"], 12, "start")
    for x, text in zip(columns, ranks):
        yield words(x, y, text, colours["weak"])
    for algorithm, text in ALGORITHMS.items():
        y += 20
        found = [each[algorithm] for each in facts["digests"]]
        yield words(20, y, text, colours["text"], 13.5, "start")
        for x, digest in zip(columns, found):
            yield words(x, y, digest[:12], colours["done" if digest == found[0] else "between"], 12, more=f' font-family="{MONOSPACE}"')


def drawing(facts, name):
    colours = COLOURS[name]
    rows = {row["algorithm"]: row for row in facts["schedules"]}
    of = rows["ring"]
    shape = f'{of["keys"]} keys, {facts["heads"]} heads of {facts["head_dim"]}, {facts["dtype"].upper()}'
    title = f'One decode step on {of["ranks"]} GPUs of {of["ranks"] // of["per_node"]} nodes: {shape}'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
             f'font-family="-apple-system,BlinkMacSystemFont,Segoe UI,Helvetica,Arial,sans-serif" font-size="13.5" text-anchor="middle">',
             f"<title>{title}</title>", words(20, 24, title, colours["text"], 17, "start", ' font-weight="600"'), *digest_rows(facts, colours),
             *ring(rows["ring"], 10, colours), *tree(rows["two-level"], WIDTH / 2 + 10, colours), *axis(rows, colours)]
    return "\n".join([*parts, "</svg>", ""])


def sent(row):
    """(messages, bytes, bytes between nodes) of all ranks."""
    return len(row["messages"]), sum(message[5] for message in row["messages"]), sum(message[5] for message in row["messages"] if message[4])


def table(facts):
    """The problem of the figure as a table of README.md: counts and times of the plans, digests of runs on as many ranks."""
    rows = {row["algorithm"]: row for row in facts["schedules"]}
    digests = next(each for each in facts["digests"] if each["ranks"] == rows["ring"]["ranks"])
    out = ["| algorithm | what travels | messages | bytes | between nodes | time, predicted | digest of the output |", "| --- | --- |" + " ---: |" * 4 + " --- |"]
    for name, words in TRAVELS.items():
        messages, n_bytes, between = sent(rows[name])
        # A number and its unit stay on one line.
        numbers = [text.replace(" ", "&nbsp;") for text in (str(messages), bytes_text(n_bytes), bytes_text(between), us_text(rows[name]["us"]))]
        out.append("| " + " | ".join([f"`{name}`", words, *numbers, f"`{digests[name]}`"]) + " |")
    return "".join(line + "\n" for line in out)


def comparison(facts):
    """Tree Attention in four lines, with the numbers of the same problem."""
    rows = {row["algorithm"]: row for row in facts["schedules"]}
    tree, ring = rows["two-level"], rows["ring"]
    (state,) = {message[5] for message in tree["messages"]}
    shard = sum(message[5] for message in ring["messages"] if message[0] == 0 and message[2] == 0)
    return (f"1. A rank reduces its keys to a few states (e, D, n): here to one of {bytes_text(state)} for {facts['heads']} heads, instead of {bytes_text(shard)} of keys and values.\n"
            "2. Two states merge into one with a multiply-add per element.\n"
            "3. Merging is associative, so any tree of merges is right. We fix one over the positions of the keys, which fixes the bits too.\n"
            f"4. A step on {ring['ranks']} GPUs over {ring['keys']} keys sends {bytes_text(sent(tree)[1])} where Ring Attention sends {bytes_text(sent(ring)[1])}; the model predicts {us_text(tree['us'])} and {us_text(ring['us'])}.\n")


def read_facts():
    return json.loads(FACTS.read_text(encoding="utf-8"))


def race_of(path):
    """The schedules of the race, of what schedules.cpp wrote."""
    return [row for row in json.loads(pathlib.Path(path).read_text(encoding="utf-8")) if row["table"] == "race"]


def digests(program):
    """The digests of the program on every number of ranks, and the shape of its problem; keys as in the schedules."""
    found, shape = [], {}
    for ranks in RANKS:
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            subprocess.run(["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "-n", str(ranks), program, "decode",
                            "--seq-len", "65536", "--repeat", "1", "--warmup", "0", "--compare", ",".join(list(TRAVELS)[1:]), "--report", str(report)],
                           check=True, stdout=subprocess.DEVNULL)
            runs = json.loads(report.read_text(encoding="utf-8"))["runs"]
        found.append({"ranks": ranks, **{run["algorithm"]: run["output_digest"] for run in runs}})
        shape = {key: runs[0][key] for key in ("heads", "head_dim", "dtype", "seq_len")}
    return {**shape, "digests": found}


def write_facts(facts):
    lines = ",\n".join("    " + json.dumps(row) for row in facts["schedules"])
    rest = {key: value for key, value in facts.items() if key != "schedules"}
    FACTS.write_text(json.dumps(rest, indent=2)[:-2] + ',\n  "schedules": [\n' + lines + "\n  ]\n}\n", encoding="utf-8")


def faults(schedules=None):
    facts = read_facts()
    for name, path in DRAWINGS.items():
        if path.read_text(encoding="utf-8") != drawing(facts, name):
            yield f"{path.relative_to(ROOT)} is not what docs/ring_and_tree.json says: docs/tools/race.py --draw"
    if schedules and race_of(schedules) != facts["schedules"]:
        yield "docs/ring_and_tree.json has other messages than the plans of today: docs/tools/race.py --measure build/tree_attn SCHEDULES.json"


def page(figure):
    """The drawing, and its parts one below the other for a narrow screen: the digests, the ring, the tree, the axis (docs/book.css)."""
    head, body = re.fullmatch(r"(<svg[^>]*>)(.*)</svg>\s*", figure, re.DOTALL).groups()
    half = WIDTH // 2
    views = [(0, 0, WIDTH, PANELS), (0, PANELS, half, AXIS - PANELS), (half, PANELS, half, AXIS - PANELS), (0, AXIS, WIDTH, HEIGHT - AXIS)]
    parts = "\n".join(f'<div class="part{" wide" if width == WIDTH else ""}"><svg viewBox="{x} {y} {width} {height}" style="aspect-ratio: {width} / {height}" aria-hidden="true"><use href="#race"/></svg></div>'
                      for x, y, width, height in views)
    font = " ".join(re.findall(r'(?:font-family|font-size|text-anchor)="[^"]*"', head))
    return f'{head}<g id="race" {font}>{body}</g></svg>\n{parts}\n'


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--measure":
        write_facts({**digests(sys.argv[2]), "schedules": race_of(sys.argv[3])})
    if len(sys.argv) > 1 and sys.argv[1] in ("--measure", "--draw"):
        facts = read_facts()
        for name, path in DRAWINGS.items():
            path.write_text(drawing(facts, name), encoding="utf-8")
    elif len(sys.argv) == 3 and sys.argv[1] == "--page":
        pathlib.Path(sys.argv[2]).write_text(f'<div class="race">\n{page(drawing(read_facts(), "page"))}</div>\n', encoding="utf-8")
    elif len(sys.argv) > 1 and sys.argv[1] == "--check":
        found = list(faults(*sys.argv[2:]))
        for fault in found:
            print(f"docs/tools/race.py: error: {fault}", file=sys.stderr)
        sys.exit(1 if found else 0)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
