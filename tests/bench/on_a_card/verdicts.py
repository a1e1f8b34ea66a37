# SPDX-License-Identifier: Apache-2.0
"""Verdicts of a record of a card: its lines, which build is faster where, and what the book has of it."""
import json
from collections import defaultdict


def lines_of(files):
    """The lines of records. One that a run has not finished is left out."""
    lines = []
    for file in files:
        for text in file.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                pass
    return lines


def apart(line):
    """Seconds in a graph where no launch begins before the one before it has ended."""
    return line.get("apart_seconds", line["graph_seconds"])


def compared(lines, builds):
    """For each shape and step that the builds have timed: {build: time / time of the first build}, each in times of the read of its process; by how
    much the first build differs from itself; and the builds whose output has other bits. The first build must have run first and last."""
    times, digests = defaultdict(lambda: defaultdict(list)), defaultdict(dict)
    for line in lines:
        if line.get("part") == "variant" and "graph_seconds" in line:
            times[line["shape"], line["step"]][line["build"]].append(apart(line) / line["read_seconds"])
            digests[line["shape"], line["step"]][line["build"]] = line["digest"]
    found = {}
    for key, of in times.items():
        own = of.get(builds[0], [])
        if len(own) < 2:
            continue
        mean = sum(own) / len(own)
        ratios = {build: sum(of[build]) / len(of[build]) / mean for build in builds[1:] if build in of}
        found[key] = ratios, (max(own) - min(own)) / mean, [build for build in ratios if digests[key][build] != digests[key][builds[0]]]
    return found


def word_of(ratio, spread):
    return "faster" if ratio < 1 - spread else "slower" if ratio > 1 + spread else "no difference"


def mean(numbers):
    return sum(numbers) / len(numbers)


def correlation(one, other):
    """Correlates two lists; None if one of them is constant, or there are fewer than three."""
    off, other_off = [x - mean(one) for x in one] if one else [], [y - mean(other) for y in other] if other else []
    squares = sum(x * x for x in off) * sum(y * y for y in other_off)
    return sum(x * y for x, y in zip(off, other_off)) / squares**0.5 if squares > 0 and len(one) > 2 else None


def lateness(lines):
    """Why blocks end apart: {(shape, step): correlations of how late their walks end}. "again": of blocks, between launches of the same kind. "blocks" and
    "multiprocessors": between launches beside idle multiprocessors and launches beside held ones, by either. A high one names what is late each time."""
    kinds = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if line.get("part") == "raw stamps" and "walked" in line:
            n_warps = len(line["walked"]) // len(line["smid"])  # a block has room for, -1 where it has fewer
            ends = [max(line["walked"][n_warps * i:n_warps * (i + 1)]) for i in range(len(line["smid"]))]
            kinds[line["shape"], line["step"]][line["held"] > 0].append((line["smid"], [end - mean(ends) for end in ends]))
    found = {}
    for key, of in kinds.items():
        def late(launches, by_multiprocessor):
            names = defaultdict(list)
            for multiprocessors, ends in launches:
                for block, end in enumerate(ends):
                    names[multiprocessors[block] if by_multiprocessor else block].append(end)
            return {name: mean(ends) for name, ends in names.items()}

        def compared_by(one, other, by_multiprocessor):
            a, b = late(one, by_multiprocessor), late(other, by_multiprocessor)
            return correlation([a[name] for name in a if name in b], [b[name] for name in a if name in b])

        alone, held = of[False], of[True]
        found[key] = {"again": compared_by(alone[::2], alone[1::2], False), "blocks": compared_by(alone, held, False), "multiprocessors": compared_by(alone, held, True)}
    return found


def table(lines, builds):
    """The experiments of a record, and the verdicts."""
    last = {line["name"]: line for line in lines if line.get("part") == "experiment"}
    parts = defaultdict(lambda: [0, 0, 0.0])
    for line in last.values():
        parts[line["of"]][0] += 1
        parts[line["of"]][1] += line["well"]
        parts[line["of"]][2] += line["seconds"]
    rows = [f"{part:10} {well} of {n} well, {seconds:.1f} s" for part, (n, well, seconds) in parts.items()]
    for (shape, step), (ratios, spread, other_bits) in compared(lines, builds).items():
        words = [f"{build} {ratio:.3f}, {word_of(ratio, spread)}{', OTHER BITS' if build in other_bits else ''}" for build, ratio in ratios.items()]
        rows.append(f"{shape}, {step}: {'; '.join(words)} (of {builds[0]}, which differs from itself by {spread:.3f})")
    for (shape, step), of in lateness(lines).items():
        rows.append(f"{shape}, {step}: how late walks end correlates by " + ", ".join(f"{name} {r:.2f}" for name, r in of.items() if r is not None))
    return rows


# Lists of the record, the part whose lines each holds, and what names a line: of two with the same name the last one stays.
LISTS = {"stamps": ("stamps", ("shape", "step")), "walk": ("walk", ("shape",)), "clusters": ("clusters", ("n_blocks", "shared_kib")), "peers": ("peer", ("shape", "peer")),
         "primitives": ("primitive", ("name",)), "rings": ("rings", ("shape", "rings", "order", "evict_first", "n_blocks")),
         "host_steps": ("host step", ("shape",)), "counters": ("counters", ("shape", "build")), "variants": ("variant", ("shape", "step", "build"))}


def record_of(lines, date, version):
    """One dictionary of the lines of one card. @throws ValueError for those of two"""
    devices = [line for line in lines if line.get("part") == "device"]
    if len({line["device"] for line in devices}) != 1:
        raise ValueError(f"records of {len({line['device'] for line in devices})} cards; a record is of one")
    steps = {(line["shape"], line["step"]): line for line in lines if line.get("part") == "step" and "graph_seconds" in line}
    about = {key: devices[-1][key] for key in ("device", "library", "read_bytes_per_second")} | {"date": date, "version": version, "lines": [*steps.values()]}
    # Of copies the long ones, with most bytes in flight.
    about["copies"] = list({(line["shape"], line["way"], line["n_blocks"]): line for line in lines if line.get("part") == "copies" and "64k" in line["shape"]}.values())
    for name, (part, key) in LISTS.items():
        about[name] = list({tuple(line[word] for word in key): line for line in lines if line.get("part") == part and all(word in line for word in key) and "note" not in line}.values())
    about["versions"] = {key: value for line in lines if line.get("part") == "versions" for key, value in line.items() if key not in ("part", "build")}
    about["exchange"] = [line for line in lines if line.get("part") in ("parts", "bits", "missing") and "peer" not in line or "sent_us" in line]

    def without_part(line, name):
        return {key: value for key, value in line.items() if key != "part" and (key != "build" or name in ("variants", "counters"))}

    return {name: [without_part(line, name) for line in value] if isinstance(value, list) else value for name, value in about.items()}
