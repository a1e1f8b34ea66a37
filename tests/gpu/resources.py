#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what every kernel takes of a multiprocessor: registers, shared memory, and the local memory it should not need. And what
every translation unit takes of the machine that compiles it.

record -- nvcc ... -o X.o   runs the compiler, and keeps in X.o.resources what ptxas (-Xptxas=-v) says of its kernels
check --strict X.o ...      prints the table, and fails where a kernel has a stack frame or spills that it may not have
times --most 120 X.o ...    prints the processor time of nvcc, and fails where a unit took more seconds
"""

import argparse
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

COMPILING = re.compile(r"ptxas info\s*: Compiling entry function '(\S+)' for '(\S+)'")
PROPERTIES = re.compile(r"ptxas info\s*: Function properties for (\S+)")
FRAME = re.compile(r"\s*(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"ptxas info\s*: Used (\d+) registers(.*)")
SHARED = re.compile(r"(\d+) bytes smem")
SECONDS = re.compile(r"compiled in ([\d.]+) processor seconds")
SKIPPED = 77
LEAST_SECONDS = 1.0  # no nvcc takes less: an object that was compiled faster came from a cache


def record(command):
    """Runs nvcc. Lines of the report go to the file beside the object, all others where they were going."""
    def processor_seconds():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = processor_seconds()
    run = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    report, rest = [f"compiled in {processor_seconds() - before:.1f} processor seconds\n"], []
    for line in run.stderr.splitlines(keepends=True):
        (report if line.startswith("ptxas info") or FRAME.fullmatch(line.rstrip()) else rest).append(line)
    sys.stderr.write("".join(rest))
    if run.returncode == 0 and "-o" in command:
        Path(command[command.index("-o") + 1] + ".resources").write_text("".join(report))
    return run.returncode


def kernels_of(report):
    """One dictionary a kernel and architecture. A report that cannot be read to its end is an error."""
    kernels = []
    for line in report.splitlines():
        if match := COMPILING.match(line):
            kernels.append({"name": match[1], "arch": match[2], "shared": 0})
        elif match := PROPERTIES.match(line):
            # A function that was not inlined has lines of its own, which are not the kernel's; its frame is still a frame.
            if not kernels:
                raise ValueError(f"properties of {match[1]} outside any kernel")
        elif match := FRAME.fullmatch(line):
            for key, bytes_ in zip(("stack", "stores", "loads"), match.groups()):
                kernels[-1][key] = max(kernels[-1].get(key, 0), int(bytes_))
        elif match := USED.match(line):
            kernels[-1]["registers"] = int(match[1])
            if shared := SHARED.search(match[2]):
                kernels[-1]["shared"] = int(shared[1])
    for kernel in kernels:
        if "registers" not in kernel or "stack" not in kernel:
            raise ValueError(f"the report of {kernel['name']} for {kernel['arch']} ends early")
    return kernels


def readable(names):
    """Names as C++ has them, without namespaces and parameters; as they are where there is no c++filt."""
    if not names or not shutil.which("c++filt"):
        return {name: name for name in names}
    run = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    short = {}
    for name, line in zip(names, run.stdout.splitlines()):
        # What is unique to a file is no part of a name, nor is the type of a number; what stands after the template arguments are
        # parameters.
        line = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N_\w*::|_INTERNAL_\w*::|tree_attn::|cuda::", "", line)
        line = re.sub(r"^void ", "", line)
        short[name] = re.sub(r"\(.*$", "", re.sub(r"\([\w ]+\)(?=-?\d)", "", line)).replace(" >", ">")
    return short


def check(strict, others, allow, most):
    """Prints the table. Kernels use no local memory, but for a stack frame of at most `most` bytes in those whose names match `allow`.

    @returns what is wrong, line by line
    """
    kernels = [*({**kernel, "strict": True} for kernel in strict), *({**kernel, "strict": False} for kernel in others)]
    names = readable(sorted({kernel["name"] for kernel in kernels}))
    problems = []
    print("| kernel | architecture | registers | shared, bytes | stack frame, bytes | spilled, bytes |")
    print("| --- | --- | --- | --- | --- | --- |")
    for kernel in sorted(kernels, key=lambda k: (names[k["name"]], k["arch"])):
        name, spilled = names[kernel["name"]], kernel["stores"] + kernel["loads"]
        print(f"| {name} | {kernel['arch']} | {kernel['registers']} | {kernel['shared']} | {kernel['stack']} | {spilled} |")
        if kernel["stack"] + spilled > 0 and not (allow and re.search(allow, name) and kernel["stack"] <= most):
            problems.append(f"{name} for {kernel['arch']}: a stack frame of {kernel['stack']} bytes, {spilled} bytes spilled")
    found = {kernel["arch"] for kernel in strict}
    for arch in sorted({kernel["arch"] for kernel in kernels} - found) or ([] if found else ["any architecture"]):
        problems.append(f"the library step has no kernel for {arch}")
    return problems


def read(objects):
    """The kernels of all objects. An object without a report was not compiled through record."""
    return [kernel for file in objects for kernel in kernels_of(Path(file + ".resources").read_text())]


def times(objects, most):
    """Prints the processor time of every unit, from the longest on. Time by a clock would depend on what else the machine does.

    @returns what took longer, line by line; None where no unit was timed
    """
    seconds = {}
    for file in objects:
        report = Path(file + ".resources")
        if report.exists() and (found := SECONDS.search(report.read_text())) and float(found[1]) >= LEAST_SECONDS:
            seconds[re.sub(r"^.*[.]dir/", "", file)] = float(found[1])
    print("| translation unit | seconds of nvcc |", "| --- | ---: |", sep="\n")
    for file in sorted(seconds, key=seconds.get, reverse=True):
        print(f"| {file} | {seconds[file]:.1f} |")
    if not seconds:
        return None
    return [f"{file}: {seconds[file]:.0f} processor seconds of nvcc, of at most {most:.0f}" for file in seconds if seconds[file] > most]


def main():
    if sys.argv[1:3] == ["record", "--"]:
        return record(sys.argv[3:])
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = arguments.add_subparsers(dest="command", required=True)
    of_check = commands.add_parser("check")
    of_check.add_argument("--strict", nargs="+", required=True, help="objects of kernels that must use no local memory")
    of_check.add_argument("--others", nargs="*", default=[], help="objects of all other kernels")
    of_check.add_argument("--allow", default="", help="pattern of those that may use local memory")
    of_check.add_argument("--most-frame", type=int, default=0, help="bytes of a stack frame of theirs")
    of_times = commands.add_parser("times")
    of_times.add_argument("--most", type=float, required=True, help="processor seconds of a unit")
    of_times.add_argument("objects", nargs="+")
    asked = arguments.parse_args()
    if asked.command == "times":
        problems = times(asked.objects, asked.most)
        if problems is None:
            print("resources: skipped, no unit was timed: its object came from a cache, or is not there")
            return SKIPPED
    else:
        problems = check(read(asked.strict), read(asked.others), asked.allow, asked.most_frame)
    for problem in problems:
        print("resources: " + problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
