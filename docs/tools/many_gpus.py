#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of the chapters on many GPUs: what a user should see is what the program prints, apart from times.

Run: docs/tools/many_gpus.py PROGRAM MPIRUN NCCL            exit status 1 and the difference if a chapter is out of date, 77 without Open MPI
     docs/tools/many_gpus.py PROGRAM MPIRUN NCCL --write    write what the program prints into docs/7d-many-gpus.md

NCCL is the library that stands in for it on emulated devices. Commands for GPUs run with --backend emulated, two ranks in the place of
eight, and a short sequence. srun is not run: mpirun starts its program, on as many ranks. Of docs/7d-many-gpus.md these are the commands of
"Four ways to start", of docs/7a-network.md those over NCCL, of docs/9b-one-launch.md those of one-shot, which say that digests are equal.
"""
import difflib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CHAPTER = ROOT / "docs" / "7d-many-gpus.md"
COMMAND = "mpirun -n 4 build/tree_attn decode --backend emulated --seq-len 2048 --heads 8 --kv-heads 2 --head-dim 64 " \
          "--ranks-per-node 2 --compare gather,paper,ring --verify"
BREAK = " \\\n    "
OVERSUBSCRIBED = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
TIME = re.compile(r"\d+(?:\.\d+)?(?: (?:us|ms|s)\b|(?= ?(?:us|ms|s)? \.\. ))")


def launched(command, program, mpirun):
    """The words of a command of a chapter, as they can run here. Variables before it are set by the caller."""
    words = [program if word == "build/tree_attn" else word for word in shlex.split(command)]
    words = words[next(i for i, word in enumerate(words) if "=" not in word):]
    if words[0] == "srun":
        given = dict(word[2:].split("=") for word in words[1:words.index(program)])
        n = int(given["nodes"]) * int(given["ntasks-per-node"])
        words = ["mpirun", "-n", str(n), *words[words.index(program):]]
    if words[0] == "mpirun":
        rest = words[1:]
        if "--bind-to" in rest:
            del rest[rest.index("--bind-to"):rest.index("--bind-to") + 2]
        words = [mpirun, *OVERSUBSCRIBED, *rest]
    return words


def rehearsed(command):
    """A command for eight GPUs, with two emulated ones and a sequence that they have time for."""
    for old, new in (("--backend cuda", "--backend emulated --heads 4 --kv-heads 2 --head-dim 64"), ("1048576", "2048"), ("65536", "2048"),
                     ("--steps 64", "--steps 2"), ("-n 8", "-n 2"), ("0-7", "0-1"), ("ppr:8:", "ppr:2:"), ("per-node=8", "per-node=2")):
        command = command.replace(old, new)
    return command


def output_of(command, program, mpirun, nccl):
    """What a command prints, in a folder with a hostfile."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "hosts").write_text("localhost slots=2\n")
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "TREE_ATTN_NCCL_LIBRARY": nccl}
        ended = subprocess.run(launched(command, program, mpirun), cwd=folder, env=environment, capture_output=True, text=True,
                               stdin=subprocess.DEVNULL, timeout=120, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"many_gpus: {command}: status {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def without_times(text):
    """Lines without times, and without the blanks that align them."""
    return [re.sub(r"\s+", " ", TIME.sub("?", line)).strip() for line in text.splitlines()]


def between(text, name, new=None):
    """What is between the markers of this name; or the text with something else there."""
    begin, end = re.search(rf"<!-- {name}: begin .*-->\n", text), f"<!-- {name}: end -->"
    at = text.index(end)
    return text[begin.end():at] if new is None else text[:begin.end()] + new + text[at:]


def commands(chapter):
    """The commands of a chapter, one per line that no other one continues."""
    blocks = re.findall(r"^```sh\n((?:.*\n)+?)```$", (ROOT / "docs" / chapter).read_text(encoding="utf-8"), re.MULTILINE)
    return [line for block in blocks for line in re.sub(r" \\\n *", " ", block).splitlines()]


def ranks_of(printed):
    return int(re.search(r"; (\d+) ranks? on ", printed)[1])


def main():
    program, mpirun, nccl = str(Path(sys.argv[1]).resolve()), sys.argv[2], str(Path(sys.argv[3]).resolve())
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    if not re.search("Open MPI|OpenRTE", version):
        print(f"skipped: {mpirun} is not Open MPI's, and the commands are")
        return 77
    text = CHAPTER.read_text(encoding="utf-8")
    printed = output_of(COMMAND, program, mpirun, nccl)
    block = f"```text\n{COMMAND.replace(' --seq-len', BREAK + '--seq-len')}\n\n{printed.rstrip()}\n```\n"
    if "--write" in sys.argv:
        CHAPTER.write_text(between(text, "run", block), encoding="utf-8")
        return 0
    good = True
    was, is_now = without_times(between(text, "run")), without_times(block)
    if was != is_now:
        print("\n".join(difflib.unified_diff(was, is_now, "docs/7d-many-gpus.md", "the program", lineterm="")))
        good = False

    # Each command starts the ranks that it says, and they agree.
    digests = {}
    for chapter, transport, expected in (("7d-many-gpus.md", "mpi|threads", [2, 2, 2, 4]), ("7a-network.md", "nccl", [4, 2, 2]),
                                         ("9b-one-launch.md", "mpi|threads", [4, 4, 4, 4])):
        n_ranks = []
        for command in commands(chapter):
            shown = output_of(rehearsed(command), program, mpirun, nccl)
            n_ranks.append(ranks_of(shown))
            lines = re.findall(r"^(\S+) .* yes +([0-9a-f]{16})$", shown, re.MULTILINE)
            digests.setdefault(chapter, set()).update(digest for name, digest in lines if name != "paper")
            first = "one-shot" if "one-shot" in command else "two-level"
            if first not in dict(lines) or not re.search(rf"backend emulated, transport (?:{transport})$", shown, re.MULTILINE):
                print(f"{command}: no line of {first}, or another transport\n{shown}")
                good = False
        if n_ranks != expected:
            print(f"the commands of {chapter} started {n_ranks} ranks, not {expected}")
            good = False
    if len(digests["9b-one-launch.md"]) != 1:
        print(f"docs/9b-one-launch.md: the digests are not equal: {digests['9b-one-launch.md']}")
        good = False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
