#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figure of README.md: ring and tree under one clock, message by message, and the digests of what both compute; and its table.

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
# Seconds of the animation: until the tree is done, until the ring is done, and the pause after that.
SLOW, FAST, PAUSE = 4.5, 6.5, 3.0
WIDTH, HEIGHT, PANEL, RADIUS = 980, 376, 470, 70
TABLE = 292  # where the table begins, below the panels


class Clock:
    """Microseconds of the cluster to a part of the animation: slow until the tree is done, fast until the ring is."""

    def __init__(self, tree_us, ring_us):
        self.tree, self.ring, self.seconds = tree_us, ring_us, SLOW + FAST + PAUSE

    def part(self, us):
        seconds = us / self.tree * SLOW if us <= self.tree else SLOW + (us - self.tree) / (self.ring - self.tree) * FAST
        return seconds / self.seconds

    def faster(self):
        """How many times as fast the second part runs."""
        return (self.ring - self.tree) / FAST / (self.tree / SLOW)


def us_text(us):
    return f"{us:.1f} µs" if us < 1000 else f"{us / 1000:.2f} ms"


def bytes_text(n):
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= size:
            return f"{n / size:.{0 if n / size >= 100 else 1 if n / size >= 10 else 2}f} {unit}"
    return f"{n} B"


def known(row):
    """{rank: [(us, shards)]}: how many shards the state of a rank covers, from when on."""
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
    return {rank: [(us, len(shards)) for us, shards in steps] for rank, steps in sets.items()}


def place(rank, n, left):
    """The ranks stand on a circle: the first node on its left half."""
    angle = math.pi / 2 + math.pi / n + 2 * math.pi * rank / n
    return left + PANEL / 2 + 1.7 * RADIUS * math.cos(angle), 135 - RADIUS * math.sin(angle)


def number(x):
    return f"{x:.4f}".rstrip("0").rstrip(".")


def animate(what, values, parts, mode="discrete", seconds=0.0):
    """One attribute over the whole animation. parts: when each value begins."""
    return (f'<animate attributeName="{what}" dur="{seconds:g}s" repeatCount="indefinite" calcMode="{mode}" '
            f'values="{";".join(values)}" keyTimes="{";".join(number(part) for part in parts)}"/>')


def packet(message, n, left, clock, colours):
    source, target, leaves, arrives, between, n_bytes = message
    (x1, y1), (x2, y2) = place(source, n, left), place(target, n, left)
    begin, end = clock.part(leaves), clock.part(arrives)
    end = max(end, begin + 0.004)
    times = [0, begin, end, 1] if begin > 0 else [0, end, 1]
    points = [0, 0, 1, 1] if begin > 0 else [0, 1, 1]
    shown = (["0", "1", "0"], [0, begin, end]) if begin > 0 else (["1", "0"], [0, end])
    size = 5.5 if n_bytes > 2**20 else 3.5
    return (f'<rect x="{-size}" y="{-size}" width="{2 * size}" height="{2 * size}" rx="{1.5 if n_bytes > 2**20 else size}" '
            f'fill="{colours["between" if between else "inside"]}" opacity="0">'
            f'<animateMotion dur="{clock.seconds:g}s" repeatCount="indefinite" calcMode="linear" path="M{x1:.1f} {y1:.1f} L{x2:.1f} {y2:.1f}" '
            f'keyPoints="{";".join(map(str, points))}" keyTimes="{";".join(number(t) for t in times)}"/>'
            f'{animate("opacity", *shown, seconds=clock.seconds)}</rect>')


def panel(row, title, what, left, clock, colours):
    n, centre = row["ranks"], left + PANEL / 2
    yield f'<text x="{centre:g}" y="18" font-size="17" font-weight="600" fill="{colours["text"]}">{title}</text>'
    messages, n_bytes, _ = sent(row)
    yield f'<text x="{centre:g}" y="37" fill="{colours["weak"]}">{what}: {bytes_text(n_bytes)} in {messages} messages</text>'
    for x, words in ((centre - 172, "node 0"), (centre + 6, "node 1")):
        yield f'<rect x="{x:g}" y="48" width="166" height="182" rx="12" fill="{colours["box"]}" stroke="{colours["line"]}"/>'
        at, anchor = (x + 12, "start") if words[-1] == "0" else (x + 154, "end")
        yield f'<text x="{at:g}" y="222" font-size="11" fill="{colours["weak"]}" text-anchor="{anchor}">{words}</text>'
    pairs = {(min(a, b), max(a, b)): between for a, b, _, _, between, _ in row["messages"]}
    for (a, b), _ in sorted(pairs.items()):
        (x1, y1), (x2, y2) = place(a, n, left), place(b, n, left)
        yield f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colours["line"]}"/>'
    # Of messages that travel together, as the keys and the values of a hop, one is drawn.
    for message in {tuple(message[:4]): message for message in row["messages"]}.values():
        yield packet(message, n, left, clock, colours)
    for rank, steps in known(row).items():
        x, y = place(rank, n, left)
        done = clock.part(steps[-1][0])
        arcs = animate("stroke-dasharray", [f"{count} {n}" for _, count in steps], [clock.part(us) for us, _ in steps], seconds=clock.seconds)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="16" fill="{colours["page"]}" stroke="{colours["line"]}" stroke-width="4"/>'
        yield (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="16" fill="none" stroke="{colours["inside"]}" stroke-width="4" pathLength="{n}" '
               f'stroke-dasharray="{n} {n}" transform="rotate(-90 {x:.1f} {y:.1f})">{arcs}'
               f'{animate("stroke", [colours["inside"], colours["done"]], [0, done], seconds=clock.seconds)}</circle>')
        yield f'<text x="{x:.1f}" y="{y + 4.5:.1f}" font-size="12" fill="{colours["text"]}">{rank}</text>'


def time_bar(clock, colours):
    left, width, y = 60, WIDTH - 120, 24
    x = lambda us: left + width * clock.part(us) / ((SLOW + FAST) / clock.seconds)
    yield f'<line x1="{left}" y1="{y}" x2="{left + width}" y2="{y}" stroke="{colours["line"]}" stroke-width="3"/>'
    end = (SLOW + FAST) / clock.seconds
    yield (f'<line x1="{left}" y1="{y}" x2="{left}" y2="{y}" stroke="{colours["inside"]}" stroke-width="3">'
           f'{animate("x2", [str(left), str(left + width), str(left + width)], [0, end, 1], "linear", clock.seconds)}</line>')
    marks = [(0, "0"), *((us, f"{us} µs") for us in range(10, int(clock.tree), 10)), *((us, f"{us // 1000} ms") for us in range(2000, int(clock.ring), 2000))]
    for us, words in marks:
        yield f'<line x1="{x(us):.1f}" y1="{y - 4}" x2="{x(us):.1f}" y2="{y + 4}" stroke="{colours["weak"]}"/>'
        yield f'<text x="{x(us):.1f}" y="{y - 9}" font-size="11" fill="{colours["weak"]}">{words}</text>'
    for us, words in ((clock.tree, f"tree done: {us_text(clock.tree)}"), (clock.ring, f"ring done: {us_text(clock.ring)}")):
        anchor = ' text-anchor="end"' if us == clock.ring else ""
        yield f'<circle cx="{x(us):.1f}" cy="{y}" r="5" fill="{colours["done"]}"/>'
        yield f'<text x="{x(us):.1f}" y="{y + 20}" font-size="13" font-weight="600" fill="{colours["done"]}"{anchor}>{words}</text>'
    yield f'<text x="{x(clock.tree / 2):.1f}" y="{y + 20}" font-size="11" fill="{colours["weak"]}">slow motion</text>'
    yield f'<text x="{(x(clock.tree) + x(clock.ring)) / 2:.1f}" y="{y + 20}" font-size="11" fill="{colours["weak"]}">{clock.faster():.0f} times as fast</text>'


def digest_rows(facts, colours):
    y = 308
    ranks = [str(each["ranks"]) for each in facts["digests"]]
    columns = [360 + 124 * i for i in range(len(ranks))]
    yield f'<text x="20" y="{y}" text-anchor="start" font-size="12" fill="{colours["weak"]}">digest of the output, by number of ranks</text>'
    for x, words in zip(columns, ranks):
        yield f'<text x="{x}" y="{y}" font-size="12" fill="{colours["weak"]}">{words}</text>'
    for algorithm, words in ALGORITHMS.items():
        y += 19
        found = [each[algorithm] for each in facts["digests"]]
        yield f'<text x="20" y="{y}" text-anchor="start" fill="{colours["text"]}">{words}</text>'
        for x, digest in zip(columns, found):
            colour = colours["done"] if digest == found[0] else colours["between"]
            yield f'<text x="{x}" y="{y}" font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="12" fill="{colour}">{digest[:12]}</text>'


def drawing(facts, name):
    colours = COLOURS[name]
    rows = {row["algorithm"]: row for row in facts["schedules"]}
    clock = Clock(rows["two-level"]["us"], rows["ring"]["us"])
    shape = f'{rows["ring"]["keys"]} keys, {facts["heads"]} heads of {facts["head_dim"]}, {facts["dtype"].upper()}'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
             f'font-family="-apple-system,BlinkMacSystemFont,Segoe UI,Helvetica,Arial,sans-serif" font-size="13.5" text-anchor="middle">',
             f'<title>One decode step on 8 GPUs of 2 nodes: ring attention and the tree under one clock, {shape}</title>',
             *time_bar(clock, colours), '<g transform="translate(0 54)">',
             *panel(rows["ring"], "Ring", "keys and values travel", 10, clock, colours),
             *panel(rows["two-level"], "Tree", "states travel", WIDTH / 2 + 10, clock, colours), "</g>"]
    parts += digest_rows(facts, colours)
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
    """The same problem in a sentence."""
    rows = {row["algorithm"]: row for row in facts["schedules"]}
    tree, ring = rows["two-level"], rows["ring"]
    return (f"On {ring['ranks']} GPUs a decode step over {ring['keys']} keys sends {bytes_text(sent(tree)[1])} where Ring Attention sends {bytes_text(sent(ring)[1])},\n"
            f"and by the model takes {us_text(tree['us'])} instead of {us_text(ring['us'])}.\n")


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
    """The drawing, and its parts one below the other for a narrow screen: the ring, the tree, the table (docs/book.css)."""
    head, body = re.fullmatch(r"(<svg[^>]*>)(.*)</svg>\s*", figure, re.DOTALL).groups()
    half = WIDTH // 2
    views = [(0, 0, half, TABLE), (half, 0, half, TABLE), (0, TABLE, WIDTH, HEIGHT - TABLE)]
    parts = "\n".join(f'<div class="part"><svg viewBox="{x} {y} {width} {height}" style="aspect-ratio: {width} / {height}" aria-hidden="true"><use href="#race"/></svg></div>'
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
