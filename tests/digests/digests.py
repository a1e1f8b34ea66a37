#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bits of the program: digests of out and lse of many decodes, compared with those that are stored.

Run: tests/digests/digests.py build/tree_attn            every decode whose digest has changed, one line each: exit status 1
     tests/digests/digests.py build/tree_attn --record   write them to tests/digests/digests.txt
     tests/digests/digests.py build/tree_attn --only 'decode bf16*--order dealt*'

A line of the table is a command and its two digests, without OUT. A command says by itself what its file holds:
f16-d192x128-h8k1l2-normal has keys of 192 elements in F16, values of 128, 8 query heads for 1 key/value head, and 2 queries; f8 is F8_E4M3, with
queries in BF16. Ranks are threads (--devices), because MPI takes half a second to start. A decode of F32, or with --portable, has the digests of the CPU.
"""
import argparse
import bisect
import concurrent.futures
import fnmatch
import hashlib
import itertools
import json
import math
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

TABLE = Path(__file__).with_name("digests.txt")
TYPES = {"f64": ("F64", 8), "f32": ("F32", 4), "f16": ("F16", 2), "bf16": ("BF16", 2), "f8": ("F8_E4M3", 1)}
# Keys in use of each batch entry: around the ends of leaves, and several levels of the tree.
LENGTHS = {"normal": [0, 1, 2, 3, 63, 64, 65, 127, 128, 130, 200, 333], "long": [3000], "growing": [5, 65, 128, 200]}
INF, NAN = float("inf"), float("nan")
# The numbers of F8_E4M3 that are not negative, by their bits.
OF_F8 = [(bits % 8 + (8 if bits > 7 else 0)) * 2.0 ** (max(bits // 8, 1) - 10) for bits in range(127)]
# What F16, BF16 and F8_E4M3 have with the bits of the CPU.
PORTABLE = "emulated --portable"
# One batch entry each, of 130 keys unless it says "alone": what is written over the elements of normal numbers. "q 0" is element 0 of every query,
# "k 0 5:9" that of the keys 5 to 8, "v :" all elements of all values.
SPECIAL = [
    {"k 0 70": NAN}, {"v 0 3": INF}, {"v 0 129": NAN}, {"v 0 3": INF, "v 0 100": -INF}, {"v :": -0.0},
    {"q 0": 1, "k 0 5": -INF, "k 0 64:128": -INF}, {"q 0": 1, "k 0 :": -INF}, {"q 0": 1, "k 0 77": INF},
    {"v :": 6e4}, {"v :": 3e38}, {"v :": 1e-7}, {"v :": 1e-41}, {"v : 0:64": 1e30, "v : 64:": 1e-30},
    {"q 0": 300}, {"q 0": 300, "v : 0:99": 1e-30}, {"q 0": 300, "v :": 3e38},
    {"alone": 1, "v 0 0": INF}, {"alone": 1, "q 0": 1, "k 0 0": -INF}, {"alone": 1, "q 0": 1, "k 0 0": INF}, {"alone": 1, "v :": 1e-41},
]
LENGTHS["special"] = [1 if "alone" in entry else 130 for entry in SPECIAL]


def commands():
    """The decodes of the table."""
    shapes = "d1x1-h2k2l1 d5x3-h4k1l1 d33x7-h4k2l3 d64x64-h2k2l1 d64x64-h8k1l1 d80x80-h4k1l2 d128x128-h2k2l1 d128x128-h8k1l2 d192x128-h8k1l1 " \
             "d256x256-h4k1l1 d300x300-h2k2l1 d576x512-h16k1l1".split()
    for dtype, backend in itertools.product(TYPES, ("cpu", "emulated", PORTABLE)):
        if dtype == "f64" and backend != "cpu" or (dtype, backend) in (("f32", PORTABLE), ("f8", "emulated")):
            continue
        alone, three = f"--backend {backend} --devices 0", f"--backend {backend} --devices 0-2"
        for shape in shapes:
            yield f"decode {dtype}-{shape}-normal {alone}"
        for shape in ("d64x64-h2k2l1", "d128x128-h8k1l1"):
            yield f"decode {dtype}-{shape}-normal {alone} --order dealt"
            yield f"decode {dtype}-{shape}-special {alone}"
        yield f"decode {dtype}-d64x64-h4k1l1-long {alone}"
        yield f"decode {dtype}-d64x64-h4k1l1-long {three} --order dealt"
        yield f"decode {dtype}-d64x64-h4k1l1-long {alone} --scale 0.7"
        yield f"decode {dtype}-d64x40-h4k1l3-growing {alone} --steps 3"
        yield f"decode {dtype}-d64x40-h4k1l3-growing {three} --steps 3 --order dealt"
    # Exchanges: those that promise bits have the digests of one rank above, the others their own.
    for algorithm in "two-level leaders gather ring ring-state paper packed fused".split():
        yield f"decode f32-d64x64-h4k1l1-long --backend cpu --algorithm {algorithm} --devices 0-4 --ranks-per-node 2"
    yield "decode f16-d64x64-h4k1l1-long --backend emulated --algorithm one-shot --devices 0-2"
    # Synthetic input has one digest, that of the report.
    for dtype, backend in itertools.product(("f32", "f16", "bf16", "f8_e4m3"), ("cpu", "emulated", PORTABLE)):
        if dtype == "f32" and backend == PORTABLE or (dtype, backend) == ("f8_e4m3", "emulated"):
            continue
        yield f"decode --seq-len 700 --heads 8 --kv-heads 2 --head-dim 128 --batch 2 --dtype {dtype} --backend {backend} --devices {'0-2' if dtype == 'f8_e4m3' else 0}"


def packed(dtype, numbers):
    """Numbers as they are stored; what a type cannot hold becomes an infinity, or the largest of F8_E4M3."""
    if dtype == "f8":
        return bytes(map(bits_of_f8, numbers))
    if dtype == "bf16":  # the upper half of an F32
        words = struct.unpack(f"<{len(numbers)}I", packed("f32", numbers))
        return struct.pack(f"<{len(words)}H", *(word >> 16 for word in words))
    if dtype == "f16":
        numbers = [math.copysign(INF, x) if abs(x) > 65504 else x for x in numbers]
    return struct.pack(f"<{len(numbers)}{dict(f64='d', f32='f', f16='e')[dtype]}", *numbers)


def bits_of_f8(x):
    """The nearest number of F8_E4M3, ties to even."""
    above = bisect.bisect_left(OF_F8, abs(x))
    if x != x or above in (0, len(OF_F8)):
        bits = 127 if x != x else min(above, 126)
    else:
        bits = min((above - 1, above), key=lambda bits: (abs(OF_F8[bits] - abs(x)), bits % 2))
    return bits + (128 if math.copysign(1, x) < 0 else 0)


class Inputs:
    """The files that commands name, written when they are first asked for."""

    def __init__(self, folder):
        draw = random.Random(42).random
        # A prime number of sums of three uniform numbers, whose bits are the same everywhere: every tensor reads on where the one before ended.
        self.folder, self.numbers, self.pools = folder, [(draw() + draw() + draw() - 1.5) * 2 for _ in range(65521)], {}

    def path(self, name):
        path = self.folder / name
        if not path.exists():
            dtype, d_h, d_v, heads, kv_heads, queries, kind = re.fullmatch(r"(\w+)-d(\d+)x(\d+)-h(\d+)k(\d+)l(\d+)-(\w+)", name).groups()
            b, n = len(LENGTHS[kind]), max(LENGTHS[kind])
            shapes = {"q": (b, int(heads), int(queries), int(d_h)), "k": (b, int(kv_heads), n, int(d_h)), "v": (b, int(kv_heads), n, int(d_v))}
            self.write(path, dtype, shapes, LENGTHS[kind], SPECIAL if kind == "special" else [])
        return str(path)

    def write(self, path, dtype, shapes, lengths, special):
        header, data, start, of_rows = {}, bytearray(), 0, dtype
        for tensor, (b, heads, rows, d) in shapes.items():
            dtype = "bf16" if (of_rows, tensor) == ("f8", "q") else of_rows
            (name, size), pool = TYPES[dtype], self.pools.setdefault(dtype, packed(dtype, self.numbers))
            n_bytes = b * heads * rows * d * size
            begin = start * size % len(pool)
            content = bytearray((pool * (n_bytes // len(pool) + 2))[begin:begin + n_bytes])
            start += n_bytes // size
            for i, (key, x) in ((i, change) for i, entry in enumerate(special) for change in entry.items()):
                which, element, at = (key.split() + [":"])[:3] if key[0] == tensor else ("", "", "")
                for h, a, c in itertools.product(range(heads), range(rows)[slice_of(at)], range(d)[slice_of(element)]) if which else ():
                    offset = (((i * heads + h) * rows + a) * d + c) * size
                    content[offset:offset + size] = packed(dtype, [x])
            header[tensor] = {"dtype": name, "shape": [b, heads, rows, d], "data_offsets": [len(data), len(data) + n_bytes]}
            data += content
        header["lengths"] = {"dtype": "I64", "shape": [len(lengths)], "data_offsets": [len(data), len(data) + 8 * len(lengths)]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(struct.pack("<Q", len(text)) + text + data + struct.pack(f"<{len(lengths)}q", *lengths))


def slice_of(text):
    """"5", "5:9", ":" as a slice."""
    ends = [int(end) if end else None for end in text.split(":")]
    return slice(ends[0], ends[0] + 1) if len(ends) == 1 else slice(*ends)


def run(program, command, inputs):
    """The digests of a command's out and lse."""
    words = command.split()
    with tempfile.TemporaryDirectory(dir=inputs.folder) as folder:
        out = Path(folder, "out")
        where = ["--report", str(out)] if words[1].startswith("--") else []
        words = [program, "decode", *where, *words[1:]] if where else [program, "decode", inputs.path(words[1]), str(out), *words[2:]]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            return [f"status {done.returncode}: {done.stderr.strip()}"]
        if where:
            return [json.loads(out.read_text())["runs"][0]["output_digest"]]
        content = out.read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    return [hashlib.sha256(content[end:][slice(*header[tensor]["data_offsets"])]).hexdigest()[:16] for tensor in ("out", "lse")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--record", action="store_true")
    what.add_argument("--only", default="*", metavar="PATTERN")
    arguments = parser.parse_args()
    asked = [command for command in commands() if fnmatch.fnmatch(command, arguments.only)]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        inputs = Inputs(Path(folder))
        for name in {command.split()[1] for command in asked} - {"--seq-len"}:
            inputs.path(name)
        found = dict(zip(asked, pool.map(lambda command: run(arguments.program, command, inputs), asked)))
    if arguments.record:
        TABLE.write_text("# Written by digests.py --record\n" +
                         "".join(f"{'  '.join([command, *digests])}\n" for command, digests in found.items()))
        print(f"{len(found)} decodes recorded")
        return 0
    _, *lines = TABLE.read_text().splitlines()
    known = {command: digests for command, *digests in (line.split("  ") for line in lines)}
    changed = 0
    for command in [*found, *(command for command in known if command not in found and fnmatch.fnmatch(command, arguments.only))]:
        old, new = known.get(command, ["nothing"]), found.get(command, ["nothing"])
        changed += old != new
        if old != new:
            print(f"{command}: {' '.join(old)} -> {' '.join(new)}")
    for command, digests in found.items():
        on_cpu = command.replace(PORTABLE, "cpu") if PORTABLE in command else command.replace("emulated", "cpu") if "f32" in command else command
        changed += digests != found.get(on_cpu, digests)
        if digests != found.get(on_cpu, digests):
            print(f"{command}: {' '.join(digests)}, but {on_cpu} has {' '.join(found[on_cpu])}")
    print(f"{changed} of {len(found)} decodes changed")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
