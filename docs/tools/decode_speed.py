#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The speed of the decode on a CPU as a table and as a figure, from what `./run bench` measured.

Run: docs/tools/decode_speed.py docs/decode_speed.json           prints the table
     docs/tools/decode_speed.py docs/decode_speed.json FOLDER    draws decode_speed.svg
"""
import json
import math
import pathlib
import sys

from figures import Drawing

MEASURED = pathlib.Path(__file__).resolve().parent.parent / "decode_speed.json"
BEGIN, END = "<!-- measurements: begin (./run bench --update) -->", "<!-- measurements: end -->"
# What the decode is compared with: its name in the file, in a table, and how its bars are drawn.
BASELINES = [("plain", "two loops", "b"), ("Eigen", "Eigen", "c"), ("PyTorch", "PyTorch", "node"), ("llama.cpp", "llama.cpp", "empty")]

# What the processor could do at most with the arithmetic of a decode; reports from before 2026-11-26 have none.
LIMITS = [("of_arithmetic", "multiplies and adds"), ("of_fused", "them fused")]


def check(report):
    """@throws ValueError that names what is missing or wrong"""
    for key, kind in (("date", str), ("processor", str), ("cores", int), ("versions", dict), ("starts", int), ("rounds", int), ("huge_pages", (int, float)), ("cases", list)):
        if not isinstance(report.get(key), kind):
            raise ValueError(f"'{key}' is missing or of another type")
    if "compiler" not in report["versions"]:
        raise ValueError("'versions' names no compiler")
    if not report["cases"]:
        raise ValueError("there is no case")
    seen = set()
    for case in report["cases"]:
        for key in ("keys", "heads", "kv_heads", "head_dim", "threads"):
            if not isinstance(case.get(key), int) or case[key] < 1:
                raise ValueError(f"'{key}' of a case is no positive integer")
        if case.get("dtype") not in ("F32", "F16", "BF16"):
            raise ValueError(f"{case.get('dtype')} is no type of a case")
        name = name_of(case)
        if name in seen:
            raise ValueError(f"{name}: measured twice")
        seen.add(name)
        of_read, times_faster = case.get("of_read", {}), case.get("times_faster", {})
        if "decode" not in of_read or of_read.keys() - {"decode"} != times_faster.keys():
            raise ValueError(f"{name}: 'of_read' is of the decode and of the baselines of 'times_faster'")
        if unknown := times_faster.keys() - {key for key, _, _ in BASELINES}:
            raise ValueError(f"{name}: no baseline '{min(unknown)}'")
        for ratio in [*of_read.values(), *times_faster.values()]:
            for clock in ("cpu", "wall"):
                if not isinstance(ratio.get(clock), (int, float)) or not 0 < ratio[clock] < math.inf:
                    raise ValueError(f"{name}: a ratio in {clock} time is {ratio.get(clock)}")
                span = ratio.get(f"{clock}_range")
                if not isinstance(span, list) or len(span) != 2 or not span[0] <= ratio[clock] <= span[1]:
                    raise ValueError(f"{name}: {ratio[clock]} in {clock} time is not in the range {span}")
    return report


def read(path=MEASURED):
    """The report in a file. @throws ValueError if it is broken"""
    try:
        return check(json.loads(pathlib.Path(path).read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{pathlib.Path(path).name}: {error}") from error


def name_of(case):
    rows = "" if case.get("queries", 1) == 1 else f", {case['queries']} causal queries"
    groups = "" if case["heads"] == case["kv_heads"] else f" over {case['kv_heads']} kv heads"
    threads = "" if case["threads"] == 1 else f", {case['threads']} threads"
    return f"{case['dtype']}, {case['heads']} heads of {case['head_dim']}{groups}, {case['keys']} keys{rows}{threads}"


def clock_of(case):
    """CPU time is what one thread needs, however busy the machine; of several threads the slowest counts."""
    return "cpu" if case["threads"] == 1 else "wall"


def baselines(report):
    """Returns those of BASELINES that were measured in some case."""
    return [baseline for baseline in BASELINES if any(baseline[0] in case["times_faster"] for case in report["cases"])]


def setting(report):
    """Describes in one line what was measured with what."""
    versions = ", ".join([report["versions"]["compiler"], *(f"{name} {version}" for name, version in report["versions"].items() if name != "compiler")])
    pages = "2 MiB" if report["huge_pages"] > 0.95 else "4 KiB, in part"
    return f"{report['date']}, {report['processor']}, {report['cores']} cores, {versions}; pages of {pages}; medians over {report['starts']} starts of {report['rounds']} rounds; in brackets, the range over the starts"


def table(report=None):
    """Lines of Markdown."""
    report = report or read()
    columns = baselines(report)
    limits = [limit for limit in LIMITS if any(limit[0] in case for case in report["cases"])]
    counted = ["counted per key and group"] if limits else []
    titles = [*counted, "of read, CPU time", "of read, wall time", *(f"of {name}" for _, name in limits), *(f"relative to {name}" for _, name, _ in columns)]
    lines = ["| ".join(["", "batch 1, one query ", *(f"{title} " for title in titles)]) + "|",
             "| --- |" + " --- |" * len(counted) + " ---: |" * (len(titles) - len(counted))]
    for case in report["cases"]:
        of_read = case["of_read"]["decode"]
        cells = [name_of(case), *(", ".join(f"{n:g} {what}" for what, n in case.get("of_key", {}).items() if n) for _ in counted), *(f"{of_read[clock]:.2f} ({' to '.join(f'{end:.2f}' for end in of_read[f'{clock}_range'])})" for clock in ("cpu", "wall"))]
        for limit, _ in limits:
            cells.append(f"{case[limit]['decode'][clock_of(case)]:.2f}" if limit in case else "")
        for key, _, _ in columns:
            ratio = case["times_faster"].get(key)
            cells.append(f"{ratio[clock_of(case)]:.2f}" if ratio else "")
        lines.append("| " + " | ".join(cells) + " |")
    return [f"Measured {setting(report)}.", "", *lines]


def figure(report):
    """Bars, one per program and case: the time of a read by the time of the program."""
    left, width, bar, gap = 470, 320, 11, 12
    drawn = [("decode", "this decode", "a"), *baselines(report)]
    height = 44 + sum(gap + bar * len(case["of_read"]) for case in report["cases"]) + 10
    drawing = Drawing(left + width + 60, height)
    for i, (_, words, style) in enumerate(drawn):
        drawing.box(8 + 115 * i, 8, 12, 12, style, 2)
        drawing.text(26 + 115 * i, 18, words, "left")
    for quarter in range(5):
        x = left + width * quarter / 4
        drawing.line(x, 42, x, height - 8, "empty")
        drawing.text(x, 38, f"{quarter / 4:g}", "small")
    y = 44
    for case in report["cases"]:
        y += gap
        shown = [(style, case["of_read"][key][clock_of(case)]) for key, _, style in drawn if key in case["of_read"]]
        drawing.text(8, y + bar * len(shown) / 2 + 4, name_of(case), "small left")
        for style, part in shown:
            # A read that was disturbed more than the program may come out slower.
            drawing.box(left, y, width * min(part, 1.04), bar - 2, style, 2)
            drawing.text(left + width * min(part, 1.04) + 17, y + bar - 2, f"{part:.2f}", "small")
            y += bar
    return drawing.svg()


def with_measurements(text, lines):
    """The text with these lines between its markers. @throws ValueError unless it has each marker once, in order"""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"docs/measured.md: not one '{BEGIN}' before one '{END}'")
    return text.split(BEGIN)[0] + "\n".join([BEGIN, *lines, END]) + text.split(END)[1]


def main():
    report = read(sys.argv[1])
    if len(sys.argv) > 2:
        pathlib.Path(sys.argv[2], "decode_speed.svg").write_text(figure(report), encoding="utf-8")
    else:
        print("\n".join(table(report)))


if __name__ == "__main__":
    main()
