#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/IV.6-model.md, from what `tests/bench/recall --update` measured.

Run: docs/tools/recall.py    checks docs/recall.json and prints its tables
"""
import json
import math
import pathlib

JSON = pathlib.Path(__file__).resolve().parents[1] / "recall.json"


def measured():
    return check(json.loads(JSON.read_text(encoding="utf-8")))


def check(report):
    """@throws ValueError that names what is missing or wrong"""
    for name in ("measured", "machine", "lengths", "layouts", "algorithms", "confidence"):
        if not report.get(name):
            raise ValueError(f"there is no '{name}'")
    for name in ("lengths", "layouts", "algorithms", "confidence"):
        for row in report[name]:
            for key, value in row.items():
                if isinstance(value, float) and not 0 <= value < math.inf:
                    raise ValueError(f"'{key}' of a row of '{name}' is {value}")
            if row.get("right", 0) > row.get("asked", 0):
                raise ValueError(f"{row['right']} right answers to {row['asked']} questions")
    for same in {(row["characters"], row["order"]) for row in report["layouts"]}:
        digests = {row["digest"] for row in report["layouts"] if (row["characters"], row["order"]) == same}
        if len(digests) != 1:
            raise ValueError(f"{len(digests)} different digests of {same[0]} characters in the {same[1]} order")
    return report


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1), *("| " + " | ".join(row) + " |" for row in rows)]


def bytes_text(n):
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            break
        n /= 1024
    else:
        unit = "GiB"
    return f"{n:.0f} {unit}" if unit == "B" or n >= 100 else f"{n:.1f} {unit}" if n >= 10 else f"{n:.2f} {unit}"


def time_text(us):
    return f"{us:.0f} µs" if us < 1000 else f"{us / 1000:.2f} ms" if us < 10_000 else f"{us / 1000:.0f} ms" if us < 1e6 else f"{us / 1e6:.1f} s"


def recall_lengths(report=None):
    """Right answers by length."""
    report = report or measured()
    rows = []
    for row in report["lengths"]:
        if row["dtype"] != "f32":
            continue
        half = next(each for each in report["lengths"] if each["dtype"] == "bf16" and each["characters"] == row["characters"])
        rows.append([f"{row['characters']}", f"{row['records']} in {row['texts']}", f"{row['right']} of {row['asked']}", f"{half['right']} of {half['asked']}", f"{row['found']}",
                     f"{row['weight']:.3f}", f"{row['read_seconds'] / row['texts']:.2f} s", time_text(row["token_us"]), time_text(half["token_us"])])
    machine = report["machine"]
    return [f"Measured {report['measured']}, {machine['cpu']}, {machine['cores']} cores, one rank:", "",
            *table(["characters", "records, in texts", "right, F32", "right, BF16", "position found", "weight there", "read", "character, F32", "BF16"], rows)]


def recall_layouts(report=None):
    """Tests that every number of ranks has the same questions."""
    report = report or measured()
    rows = []
    for row in report["layouts"]:
        rows.append([f"{row['characters']}, {row['order']}", f"{row['ranks']} on {row['nodes']}", f"{row['right']} of {row['asked']}", f"{row['messages']}", bytes_text(row["bytes"]),
                     bytes_text(row["bytes_between_nodes"]), bytes_text(row["peak_kv_bytes"]), f"`{row['digest']}`"])
    return table(["characters, order", "ranks on nodes", "right", "messages", "bytes", "between nodes", "k, v of a rank", "digest of all logits"], rows)


def recall_algorithms(report=None):
    """One answer by several algorithms."""
    report = report or measured()
    rows = []
    for row in report["algorithms"]:
        rows.append([f"`{row['algorithm']}`", row["answer"], time_text(row["token_us"]), f"{row['messages']}", bytes_text(row["bytes"]), bytes_text(row["bytes_between_nodes"]), f"`{row['digest']}`"])
    return table(["algorithm", "answer", "per character", "messages", "bytes", "between nodes", "digest of its logits"], rows)


WEIGHT_LIMITS = (0.9, 0.95, 0.97, 0.98, 0.99)


def recall_confidence(report=None):
    """The largest weight where the answer is in the text, and where it is not."""
    report = report or measured()
    rows = [[f"{row['characters']}", "in the text" if row["known"] else "not in the text", f"{row['right']} of {row['asked']}", f"{row['weight']:.3f}",
             *(f"{row['below'][str(limit)]}" for limit in WEIGHT_LIMITS)] for row in report["confidence"]]
    first, *others = map(str, WEIGHT_LIMITS)
    return table(["characters", "the key is", "right answers", "weight, median", f"below {first}", *others], rows)


TABLES = {f.__name__: f for f in (recall_lengths, recall_layouts, recall_algorithms, recall_confidence)}


def main():
    report = measured()
    for name, make in TABLES.items():
        print(name, *make(report), sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
