# SPDX-License-Identifier: Apache-2.0
"""The report of `./run bench --backend cuda`: the JSON lines of the programs as one result, its tables, and the goals."""
import csv
import json
import re

# Lists of the result, and the parts whose lines they hold.
LISTS = {"clusters": "clusters", "copies": "copies", "walks": "walk", "shapes": "shape", "lines": "step", "stamps": "stamps", "counters": "counters",
         "peers": "peer", "missing": "missing"}
# What ncu counts, and the column that it fills.
COUNTERS = {"smsp__inst_executed.sum": "instructions", "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory, %",
            "sm__inst_executed_pipe_tensor.sum": "tensor instructions", "l1tex__data_bank_conflicts_pipe_lsu.sum": "bank conflicts"}
COUNTERS |= {f"smsp__average_warps_issue_stalled_{why}_per_issue_active.ratio": f"stalled: {why.replace('_', ' ')}"
             for why in ("no_instruction", "wait", "long_scoreboard", "short_scoreboard", "mio_throttle", "math_pipe_throttle", "barrier", "membar")}
MOST_OVER_READ = 3e-6  # seconds, at 8k keys
MOST_AT_512 = 5e-6  # seconds
MOST_OF_GROUPED = 1.03  # time of 32/8 heads in times of 8/8
# (most keys, least times faster than the fastest peer)
OVER_PEERS = [(1 << 13, 1.4), (1 << 15, 1.2), (1 << 62, 1.1)]


def result_of(lines, date, about=None):
    """One dictionary of all lines. @param about what it says besides"""
    device = next((line for line in lines if line["part"] == "device"), {"library": ""})
    result = {"device": "", "date": date} | (about or {}) | {key: value for key, value in device.items() if key != "part"}
    if versions := next((line for line in lines if line["part"] == "versions"), None):
        result["versions"] = {key: value for key, value in versions.items() if key != "part"}
    for name, part in LISTS.items():
        result[name] = [{key: value for key, value in line.items() if key != "part"} for line in lines if line["part"] == part]
    result["goals"] = goals(result)
    return result


def lines_of(result):
    """The lines that a result was made of."""
    lines = [{"part": part} | line for name, part in LISTS.items() for line in result[name]]
    if result["library"]:
        lines.append({"part": "device"} | {key: result[key] for key in ("device", "n_multiprocessors", "library", "read_bytes_per_second")})
    return lines + ([{"part": "versions"} | result["versions"]] if "versions" in result else [])


def text_of(result):
    """JSON, a line of a list on a line."""
    def value_of(value):
        if isinstance(value, list) and value:
            return "[\n    " + ",\n    ".join(json.dumps(item) for item in value) + "\n  ]"
        return json.dumps(value)

    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {value_of(value)}" for key, value in result.items()) + "\n}\n"


def counters_of(output):
    """Returns what ncu has counted of a launch, by name, from the lines of its comma-separated table; and the kernel."""
    rows = [row for row in csv.DictReader(line for line in output if line.startswith('"')) if row.get("Metric Name") in COUNTERS]
    numbers = {row["Metric Name"]: (row["Metric Value"] or "").replace(",", "") for row in rows}
    found = {name: float(number) for name, number in numbers.items() if number.replace(".", "").isdigit()}
    return {"kernel": re.match(r"\w*", rows[0].get("Kernel Name") or "")[0]} | found if found else {}


def file_of_card(device):
    """The record of a card in docs/cards: each kind of card has its own, by the number of its model."""
    return f"{re.search(r'[A-Z]+[0-9]+[A-Z]*', device)[0].lower()}.json"


def progress(line):
    """A line for the terminal while programs run."""
    words = [str(line[key]) for key in ("shape", "step", "way", "peer", "kib_in_flight", "n_blocks") if key in line]
    what = line.get("note") or (f"{1e6 * line['graph_seconds']:.1f} us" if "graph_seconds" in line else "")
    return f"{line['part']}: " + ", ".join(words + ([what] if what else []))


def apart(line):
    """Seconds of a step in a graph where no launch begins before the one before it has ended: so a read and other libraries are timed."""
    return line.get("apart_seconds", line["graph_seconds"])


def goals(result):
    """[{goal, measured, reached}] of the library step, by apart(); measured is "" and reached None for what has no time."""
    times = {(line["shape"], line["step"]): line for line in result["lines"] if "graph_seconds" in line}
    found = []

    def ours(shape):
        return times.get((shape, result["library"]))

    def add(goal, measured, reached, form):
        found.append({"goal": goal, "measured": "" if measured is None else form.format(measured), "reached": None if measured is None else bool(reached(measured))})

    def part_of_read(shape, least):
        line = ours(shape)
        add(f"{shape}: at least {least} of a read", line and line["read_seconds"] / apart(line), lambda part: part >= least, "{:.3f}")

    for heads in ("BF16, 16/16 heads", "BF16, 32/8 heads", "F32, 16/16 heads"):
        line = ours(f"{heads}, 8k keys")
        add(f"{heads}, 8k keys: at most 3 us over a read", line and 1e6 * (apart(line) - line["read_seconds"]),
            lambda over: over <= 1e6 * MOST_OVER_READ, "{:.2f} us")
        part_of_read(f"{heads}, 64k keys", 0.95)
        part_of_read(f"{heads}, 1M keys", 0.98)
    for length in ("8k", "64k", "1M"):
        grouped, alone = ours(f"BF16, 32/8 heads, {length} keys"), ours(f"BF16, 8/8 heads, {length} keys")
        add(f"BF16, 32/8 heads, {length} keys: at most {MOST_OF_GROUPED} of the time of 8/8",
            grouped and alone and apart(grouped) / apart(alone), lambda ratio: ratio <= MOST_OF_GROUPED, "{:.3f}")
    line = ours("BF16, 16/16 heads, 512 keys")
    add("BF16, 16/16 heads, 512 keys: at most 5 us", line and 1e6 * apart(line), lambda us: us <= 1e6 * MOST_AT_512, "{:.2f} us")
    for heads in ("16/16", "32/8"):
        part_of_read(f"BF16, {heads} heads, 64 sequences of 1k to 32k keys", 0.92)

    for shape in result["shapes"]:
        if len(shape.get("lengths", [])) != 1:
            continue
        least = next(least for most, least in OVER_PEERS if shape["lengths"][0] <= most)
        peers = [peer for peer in result["peers"] if peer["shape"] == shape["shape"] and "graph_seconds" in peer]
        fastest, line = min(peers, key=lambda peer: peer["graph_seconds"], default=None), ours(shape["shape"])
        add(f"{shape['shape']}: at least {least} times as fast as {fastest['peer'] if fastest else 'other libraries'}",
            fastest and line and fastest["graph_seconds"] / apart(line), lambda ratio, least=least: ratio >= least, "{:.2f}")
    return found


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1), *("| " + " | ".join(map(str, row)) + " |" for row in rows)]


def microseconds(seconds):
    return f"{1e6 * seconds:.4g}"


def copies_rows(result):
    """A row per shape, way and bytes in flight; a pair of columns per number of blocks."""
    blocks = sorted({line["n_blocks"] for line in result["copies"]})
    cells = {}
    for line in result["copies"]:
        text = line.get("note") or f"{microseconds(line['graph_seconds'])} us, {line['read_seconds'] / line['graph_seconds']:.3f}"
        cells.setdefault((line["shape"], line["way"], line["kib_in_flight"]), {})[line["n_blocks"]] = text
    head = ["shape", "copies", "KiB in flight", *(f"{n} blocks: time, of a read" for n in blocks)]
    return head, [[*key, *(found.get(n, "") for n in blocks)] for key, found in cells.items()]


def step_rows(result):
    rows = []
    for line in result["lines"]:
        if "graph_seconds" in line:
            seconds = line["graph_seconds"]
            clusters = f", clusters of {line['cluster']}" if line.get("cluster") else ""
            rows.append([line["shape"], line["step"], line["path"] + clusters, f"{line['n_blocks'] or line['n_splits']} x {line['n_threads']}", microseconds(line["event_seconds"]),
                         microseconds(seconds), f"{line['read_seconds'] / seconds:.3f}", microseconds(apart(line)), f"{line['read_seconds'] / apart(line):.3f}", f"{1e-9 * line['bytes'] / apart(line):.0f}"])
        else:
            rows.append([line["shape"], line["step"], "", "", "", line["note"], *[""] * 4])
    return ["shape", "step", "path", "blocks or splits x threads", "us, alone", "us, in a graph", "of a read", "us, without overlap", "of a read", "GB/s"], rows


def cached_rows(result):
    """Steps whose input the L2 cache was to hold."""
    reads = {shape["shape"]: shape["cached_read_seconds"] for shape in result["shapes"] if "cached_read_seconds" in shape}
    return (["shape", "step", "us from the cache", "of a read from the cache", "us from memory"],
            [[line["shape"], line["step"], microseconds(line["cached_seconds"]), f"{reads[line['shape']] / line['cached_seconds']:.3f}", microseconds(apart(line))]
             for line in result["lines"] if "cached_seconds" in line])


def stamp_rows(result):
    return (["shape", "step", "blocks", "us until the last has started", "us of the median walk", "us from the last walk to the end", "us in all", "us between events"],
            [[line["shape"], line["step"], line["n_blocks"], *(microseconds(line[f"{part}_seconds"]) for part in ("start", "walk", "end", "kernel", "event"))] for line in result["stamps"]])


def walk_rows(result):
    """One block alone, beside the part of a long read that falls to one multiprocessor."""
    needed = result["read_bytes_per_second"] / result["n_multiprocessors"]
    rows = []
    for line in result["walks"]:
        if "note" in line:
            rows.append([line["shape"], line["note"], *[""] * 4])
        else:
            rate = line["block_bytes_per_second"]
            rows.append([line["shape"], line["path"], microseconds(line["graph_seconds"]), microseconds(line["twice_seconds"]), f"{1e-9 * rate:.1f}", f"{rate / needed:.2f}"])
    return ["shape", "path", "us", "us, twice the keys", "GB/s of a block", "of what a multiprocessor reads from memory"], rows


def counter_rows(result):
    lines = [line for line in result["counters"] if "note" not in line]
    return ["shape", "kernel", *COUNTERS.values()], [[line["shape"], line["kernel"], *(f"{line[name]:.4g}" if name in line else "" for name in COUNTERS)] for line in lines]


def peer_rows(result):
    reads = {shape["shape"]: shape["read_seconds"] for shape in result["shapes"] if "read_seconds" in shape}
    ours = {line["shape"]: apart(line) for line in result["lines"] if line["step"] == result["library"] and "graph_seconds" in line}
    rows = []
    for peer in result["peers"]:
        shape, seconds = peer["shape"], peer.get("graph_seconds")
        if seconds is None:
            rows.append([shape, peer["peer"], peer["note"], "", ""])
        else:
            rows.append([shape, peer["peer"], microseconds(seconds), f"{reads[shape] / seconds:.3f}", f"{seconds / ours[shape]:.2f}" if shape in ours else ""])
    return ["shape", "library", "us, in a graph", "of a read", f"time / time of {result['library']}"], rows


def markdown(result):
    """All tables."""
    lines = [f"# {result['device']}, {result['date']}", ""]
    if "read_bytes_per_second" in result:
        lines += [f"{result['n_multiprocessors']} multiprocessors; a long read reaches {1e-9 * result['read_bytes_per_second']:.0f} GB/s.", ""]
    if missing := [part for part, state in result.get("parts", {}).items() if state != "finished"]:
        lines += [f"Ended early: {', '.join(missing)}.", ""]
    lines += ["## Copies alone", "", *table(*copies_rows(result))]
    if result["clusters"]:
        rows = [[line["n_blocks"], line["shared_kib"], line["n_clusters"]] for line in result["clusters"]]
        lines += ["", *table(["blocks per cluster", "KiB per block", "clusters at once"], rows)]
    if result["walks"] and "read_bytes_per_second" in result:
        lines += ["", "## Arithmetic alone: one block per key/value head, keys in the L2 cache", "", *table(*walk_rows(result))]
    lines += ["", "## Ladder", "", "In a graph a launch of the last two steps may begin before the one before it has ended; a read and other libraries do not. Goals and "
              "comparisons are by the times without that overlap.", "", *table(*step_rows(result))]
    lines += [f"\n{shape['shape']}: {shape['note']}." for shape in result["shapes"] if "note" in shape]
    if any("cached_seconds" in line for line in result["lines"]):
        lines += ["", "## Without the memory: inputs that stay in the L2 cache", "", *table(*cached_rows(result))]
    if result["stamps"]:
        lines += ["", "## Inside a launch", "", *table(*stamp_rows(result))]
    if result["counters"]:
        lines += ["", "## Counters of a launch", "", *(table(*counter_rows(result)) if counter_rows(result)[1] else []),
                  *(line["note"] for line in result["counters"] if "note" in line)]
    if result["peers"] or result["missing"]:
        lines += ["", "## Other libraries", "", ", ".join(f"{name} {version}" for name, version in result.get("versions", {}).items())]
        lines += ["", *table(*peer_rows(result)), "", *(f"* {line['peer']}: {line['note']}" for line in result["missing"])]
    marks = {True: "yes", False: "no", None: "not measured"}
    lines += ["", "## Goals", "", *table(["goal", "measured", "reached"], [[goal["goal"], goal["measured"], marks[goal["reached"]]] for goal in result["goals"]])]
    return lines
