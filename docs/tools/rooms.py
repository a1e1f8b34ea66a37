#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rooms of the house: files, lines, floors, and arrows between them.

Run: docs/tools/rooms.py [FOLDER]    of this tree, or of another one

Counted are C++ and CUDA sources (.hpp, .cpp, .cuh, .cu): physical lines, and lines of code, without those that are blank or a comment
alone. Product is reference/, gpu/ and distributed/; tests are tests/. A header and the source of its name are one unit; a room has
as many floors as its longest chain of units that include each other. An arrow goes from a room to one that it includes, and rooms that lie
in one room are one here; it points up if that one includes the first too, directly or not.
"""
import pathlib
import re
import subprocess
import sys
from collections import defaultdict

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2])
INCLUDE = re.compile(r'^\s*#\s*include\s+"(?:tree_attn/)?([^"]+)"', re.MULTILINE)
PRODUCT = ("reference", "gpu", "distributed")


def longest(graph):
    """Units of the longest chain of a graph; a circle counts once."""
    depth = {}

    def below(unit):
        if unit not in depth:
            depth[unit] = 0
            depth[unit] = 1 + max((below(other) for other in graph[unit]), default=0)
        return depth[unit]
    return max(map(below, list(graph)), default=0)


def reachable(graph, start):
    seen, todo = set(), [start]
    while todo:
        for other in graph[todo.pop()] - seen:
            seen.add(other)
            todo.append(other)
    return seen


def whole(name):
    """The room that a file lies in, without rooms of that room: two folders, but all of tests."""
    return "tests" if name.startswith("tests/") else "/".join(name.split("/")[:2])


def main():
    names = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()
    sources = {name: (ROOT / name).read_text(encoding="utf-8") for name in names
               if name.endswith((".hpp", ".cpp", ".cuh", ".cu")) and name.startswith((*(f"{room}/" for room in PRODUCT), "tests/"))}
    room_of = {name: name.rsplit("/", 1)[0] for name in sources}
    size, floors, arrows = defaultdict(lambda: [0, 0, 0]), defaultdict(lambda: defaultdict(set)), defaultdict(set)
    for name, text in sources.items():
        lines = text.splitlines()
        code = [line for line in lines if line.strip() and not line.lstrip().startswith("//")]
        size[room_of[name]] = [a + b for a, b in zip(size[room_of[name]], (1, len(lines), len(code)))]
        unit = name.rsplit(".", 1)[0]
        units = floors[room_of[name]]
        units[unit] |= set()
        for target in INCLUDE.findall(text):
            if target in sources and room_of[target] == room_of[name] and target.rsplit(".", 1)[0] != unit:
                units[unit].add(target.rsplit(".", 1)[0])
            elif target in sources and whole(target) != whole(name):
                arrows[whole(name)].add(whole(target))
    up = {(a, b) for a in list(arrows) for b in set(arrows[a]) if a in reachable(arrows, b)}

    print(f"{'room':<40} files  lines   code floors arrows")
    for folder in (*PRODUCT, "tests"):
        for room in sorted(room for room in size if room.split("/")[0] == folder):
            print(f"{room:<40} {size[room][0]:5} {size[room][1]:6} {size[room][2]:6} {longest(floors[room]):6} {len(arrows[whole(room + '/')]):6}")
    for what, folders in (("product", PRODUCT), ("tests", ("tests",))):
        total = [sum(size[room][i] for room in size if room.split("/")[0] in folders) for i in range(3)]
        print(f"{what:<40} {total[0]:5} {total[1]:6} {total[2]:6}")
    print("arrows up:", ", ".join(f"{a} -> {b}" for a, b in sorted(up)) or "none")


if __name__ == "__main__":
    main()
