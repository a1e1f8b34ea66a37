#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rooms of the house: files, lines, floors, and arrows between them; and what each feature weighs.

Run: docs/tools/rooms.py [COMMIT [BEFORE]]    of the tree as it lies here, or of a commit; and the lines of another one beside them

Counted are C++ and CUDA sources (.hpp, .cpp, .cuh, .cu): physical lines, and lines of code, without those that are blank or a comment
alone. Product is reference/, gpu/ and distributed/; tests are tests/. A header and the source of its name are one unit; a room has
as many floors as its longest chain of units that include each other. An arrow goes from a room to one that it includes, and rooms that lie
in one room are one here; it points up if that one includes the first too, directly or not. A feature weighs the lines of the files whose
names match its pattern.
"""
import argparse
import io
import pathlib
import re
import subprocess
import tarfile
from collections import defaultdict

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s+"(?:tree_attn/)?([^"]+)"', re.MULTILINE)
PRODUCT = ("reference", "gpu", "distributed")
FEATURES = {
    "care of a job": r"call_limit|launcher|mpi_session|deadline|hanging|guard",
    "facts, info": r"facts|collect|/libraries|info_command|mpi_info|machine|need\.",
    "fingerprint, agreement on options": r"fingerprint|agreement|decoder_setup",
    "memory check": r"(measure|program)/(test_)?memory",
    "predict, time of a step": r"predict|step_time",
    "model of a GPU, simulated cluster": r"model_backend|pass_time|simulated/",
    "generate, language model": r"generate|/(language_)?model/|generator",
    "moments": r"moment_state",
    "what is not finite in F32": r"not_finite",
    "lists, dealt order": r"listed|leaf_lists|owned_leaves|slots|dealt_merges",
    "one-shot, windows": r"one_shot|peers|peer_packets|window_handle|far_stores",
    "algorithms": r"(decoders|exchange)/(two_level|leaders|paper|packed|fused|gather|ring_state|ring)\.",
    "NCCL": r"nccl",
    "blocks and plans on a device": r"backend/blocks|device_blocks|(decoders|exchange)/runner",
    "shared memory": r"shared_transport|mailboxes",
    "threads as ranks": r"thread_transport",
    "tensor and output files": r"safetensors|output_file|mapped_file|fuzz/",
    "emulator": r"gpu/(platform/)?emulator|platform/(modes|seeded_bugs)",
    "GPU timing, peers": r"time_ladder|on_a_card|(gpu|bench)/exchange|gpu/cuda",
}


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


def sources_of(commit):
    """The text of every source, by its name: of a commit, or of the files that lie here."""
    wanted = lambda name: name.endswith((".hpp", ".cpp", ".cuh", ".cu")) and name.startswith((*(f"{room}/" for room in PRODUCT), "tests/"))
    git = lambda *words: subprocess.run(["git", "-C", ROOT, *words], capture_output=True, check=True).stdout
    if commit is None:
        return {name: (ROOT / name).read_text(encoding="utf-8") for name in git("ls-files").decode().splitlines() if wanted(name) and (ROOT / name).exists()}
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as archive:
        return {each.name: archive.extractfile(each).read().decode() for each in archive if each.isfile() and wanted(each.name)}


def weigh(sources):
    """Lines by room, and by feature of product and tests."""
    lines = {name: len(text.splitlines()) for name, text in sources.items()}
    rooms, features = defaultdict(int), {}
    for name, n in lines.items():
        rooms[name.rsplit("/", 1)[0]] += n
    for feature, pattern in FEATURES.items():
        found = [name for name in lines if re.search(pattern, name)]
        features[feature] = [sum(lines[name] for name in found if name.startswith("tests/") == is_test) for is_test in (False, True)]
    return rooms, features


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("commit", nargs="?")
    options.add_argument("before", nargs="?")
    chosen = options.parse_args()
    sources = sources_of(chosen.commit)
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

    rooms, features = weigh(sources)
    old_rooms, old_features = weigh(sources_of(chosen.before)) if chosen.before else ({}, {})
    if chosen.before:
        print(f"\n{'lines of a room':<40} before    now")
        for room in sorted(set(rooms) | set(old_rooms)):
            if rooms.get(room, 0) != old_rooms.get(room, 0):
                print(f"{room:<40} {old_rooms.get(room, 0):6} {rooms.get(room, 0):6}")
    print(f"\n{'feature':<40} product  tests" + ("   product, tests before" if chosen.before else ""))
    for feature, (product, tests) in features.items():
        before = "   {:6} {:6}".format(*old_features[feature]) if chosen.before else ""
        print(f"{feature:<40} {product:7} {tests:6}{before}")


if __name__ == "__main__":
    main()
