#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of the chapters on many GPUs: what a user should see is what the program prints, apart from times.

Run: docs/tools/many_gpus.py PROGRAM MPIRUN NCCL            exit status 1 and the difference if a chapter is out of date, 77 without Open MPI
     docs/tools/many_gpus.py PROGRAM MPIRUN NCCL --write    write what the program prints into docs/IV.7-many-gpus.md

NCCL is the library that stands in for it on emulated devices. Commands for GPUs run with --backend emulated, two ranks in the place of
eight, and a short sequence; two machines are one that --ranks-per-node declares to be two. srun is not run here: mpirun starts its program, on as
many ranks, and tests/distributed/network/slurm.py compares what srun prints. Of docs/IV.7-many-gpus.md these are the commands of "Four ways
to start", and the one of "What it prints", whose output the page shows; of docs/IV.4-network.md those over NCCL; of docs/III.4-one-launch.md those of one-shot. All digests of the first are equal, and all of the last.
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
CHAPTER = ROOT / "docs" / "IV.7-many-gpus.md"
COMMAND = "mpirun -n 4 build/tree_attn decode --backend emulated --seq-len 2048 --heads 8 --kv-heads 2 --head-dim 64 " \
          "--ranks-per-node 2 --compare gather,paper,ring --verify"
WAYS = ["mpirun", "devices", "hostfile", "srun"]  # the commands of docs/IV.7-many-gpus.md
SHORT = "--seq-len 2048 --heads 4 --kv-heads 2 --head-dim 64"
BREAK = " \\\n    "
OVERSUBSCRIBED = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
TIME = re.compile(r"\d+(?:\.\d+)?(?: (?:us|ms|s)\b|(?= ?(?:us|ms|s)? \.\. ))")


def launched(command, program, mpirun):
    """The words of a command of a chapter, as they can run here. Variables before it are set by the caller."""
    words = [program if word == "build/tree_attn" else word for word in shlex.split(command)]
    if words[:3:2] == ["./run", "-n"]:
        words = ["mpirun", "-n", words[3], program, words[1], *words[4:]]
    words = words[next(i for i, word in enumerate(words) if "=" not in word):]
    if words[0] == "mpirun":
        rest = words[1:]
        if "--bind-to" in rest:
            del rest[rest.index("--bind-to"):rest.index("--bind-to") + 2]
        words = [mpirun, *OVERSUBSCRIBED, *rest]
    return words


def on_emulated(command):
    """A command for machines of eight GPUs, with two emulated ones each and a sequence that they have time for."""
    for old, new in (("--backend cuda", "--backend emulated"), ("--seq-len 1048576", SHORT), ("--seq-len 65536", SHORT), ("--steps 64", "--steps 2"),
                     ("-n 8", "-n 2"), ("0-7", "0-1"), ("ppr:8:node", "ppr:4:node"), (" --bind-to numa", ""), (" --cpu-bind=ldoms", ""),
                     ("--ntasks-per-node=8", "--ntasks-per-node=2")):
        command = command.replace(old, new)
    return command


def rehearsed(command):
    """Returns the command for one machine, which is declared to be two where the command is for two, and with mpirun for srun."""
    is_of_two = "ppr:8:node" in command or "--nodes=2" in command
    command = re.sub("srun --nodes=2 --ntasks-per-node=2 .*?(?=build/tree_attn)", "mpirun -n 4 ", on_emulated(command))
    return command + " --ranks-per-node 2" if is_of_two else command


def as_shown(command, printed):
    """Returns what a chapter shows of a command and its output."""
    launcher, program, rest = command.partition("build/tree_attn")
    lines = launcher.rstrip() + BREAK + program + rest if len(launcher) > 40 else command
    return f"```text\n{lines.replace(' --seq-len', BREAK + '--seq-len')}\n\n{printed.rstrip()}\n```\n"


def output_of(command, program, mpirun, nccl):
    """Returns what a command prints, in a folder with a hostfile."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "hosts").write_text("localhost slots=4\n")
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "TREE_ATTN_NCCL_LIBRARY": nccl}
        ended = subprocess.run(launched(command, program, mpirun), cwd=folder, env=environment, capture_output=True, text=True,
                               stdin=subprocess.DEVNULL, timeout=120, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"many_gpus: {command}: status {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def without_times(text):
    """Lines without times, and without the blanks that align them."""
    return [re.sub(r"\s+", " ", TIME.sub("?", line)).strip() for line in text.splitlines()]


def output_in(block):
    """Returns what follows the command."""
    return without_times(block.partition("\n\n")[2])


def between(text, name, new=None):
    """Returns what is between the markers of this name; or the text with something else there."""
    begin, end = re.search(rf"<!-- {name}: begin .*-->\n", text), f"<!-- {name}: end -->"
    at = text.index(end)
    return text[begin.end():at] if new is None else text[:begin.end()] + new + text[at:]


def commands(chapter):
    """The commands of a chapter but for scripts of tests, one per line that no other one continues."""
    blocks = re.findall(r"^```sh\n((?:.*\n)+?)```$", (ROOT / "docs" / chapter).read_text(encoding="utf-8"), re.MULTILINE)
    lines = [line for block in blocks for line in re.sub(r" \\\n *", " ", block).splitlines()]
    return [line for line in lines if not line.startswith("tests/")]


def main():
    program, mpirun, nccl = str(Path(sys.argv[1]).resolve()), sys.argv[2], str(Path(sys.argv[3]).resolve())
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    if not re.search("Open MPI|OpenRTE", version):
        print(f"skipped: {mpirun} is not Open MPI's, and the commands are")
        return 77
    def run(command):
        return output_of(command, program, mpirun, nccl)

    # What the chapter shows is what is printed.
    asked = [rehearsed(command) for command in commands(CHAPTER.name)]
    if len(asked) != len(WAYS):
        raise SystemExit(f"many_gpus: {CHAPTER.name} has {len(asked)} commands, not {len(WAYS)}")
    blocks = {name: as_shown(command, run(command)) for name, command in zip(WAYS, asked)}
    shown = as_shown(COMMAND, run(COMMAND))
    text = CHAPTER.read_text(encoding="utf-8")
    if "--write" in sys.argv:
        CHAPTER.write_text(between(text, "run", shown), encoding="utf-8")
        return 0
    good = True
    for command in commands(CHAPTER.name):
        if re.match("mpirun|srun", command) and not re.search(" --(bind-to|cpu-bind)[ =]", command):
            print(f"{command}: it binds no rank, and a launcher may give each a single core")
            good = False
    was, is_now = without_times(between(text, "run")), without_times(shown)
    if was != is_now:
        print("\n".join(difflib.unified_diff(was, is_now, "docs/IV.7-many-gpus.md", "the program", lineterm="")))
        good = False

    # Threads and processes print the same.
    if output_in(blocks["mpirun"]) != output_in(blocks["devices"]):
        print("docs/IV.7-many-gpus.md: ranks as threads print something else than processes")
        good = False

    # Each command starts the ranks that it says, and they agree.
    digests = {}
    for chapter, transport, expected in ((CHAPTER.name, "nccl", ["2 ranks on 1 node"] * 2 + ["4 ranks on 2 nodes"] * 2),
                                         ("IV.4-network.md", "nccl", [f"{n} ranks on 1 node" for n in (2, 4, 2)]),
                                         ("III.4-one-launch.md", "mpi|threads", ["4 ranks on 1 node"] * 2)):
        found = []
        for i, command in enumerate(commands(chapter)):
            printed = blocks[WAYS[i]] if chapter == CHAPTER.name else run(rehearsed(command))
            found.append(re.search(r"; (\d+ ranks? on \d+ nodes?),", printed)[1])
            lines = re.findall(r"^(\S+) .* yes +([0-9a-f]{16})$", printed, re.MULTILINE)
            digests.setdefault(chapter, set()).update(digest for name, digest in lines if name != "paper")
            first = "one-shot" if "one-shot" in command else "two-level"
            if first not in dict(lines) or not re.search(rf"backend emulated, transport (?:{transport})$", printed, re.MULTILINE):
                print(f"{command}: no line of {first}, or another transport\n{printed}")
                good = False
        if found != expected:
            print(f"the commands of {chapter} started {found}, not {expected}")
            good = False
    for chapter in (CHAPTER.name, "III.4-one-launch.md"):
        if len(digests[chapter]) != 1:
            print(f"docs/{chapter}: the digests are not equal: {digests[chapter]}")
            good = False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
