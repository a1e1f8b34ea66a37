#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exercises of the notebooks: functions to be written, each with a test that fails until they are.

Some are kernels: they run under the emulator in shadow mode, which is compiled once. Some run on four ranks, and need Open MPI or MPICH.

Run: ./run exercise                     list them, a star before those that you have solved
     ./run exercise words               the functions that kernels may call: signature, comment, and a line of a kernel that calls them
     ./run exercise 5.2                 compile and check notebooks_cpp/exercises/5_2_*.cpp: exit status 1 while claims fail
     ./run exercise 5.2 --hint          a step of the way
     ./run exercise 5.2 --solution      show a solution, and check it
     ./run exercise 5.2 --reset         put the form back as git has it; your answer goes to build-exercises/

Needs a C++20 compiler (CXX, default c++) and none of the project's libraries; for kernels also Boost.Context. Programs are put in
build-exercises/.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
BUILD = pathlib.Path(os.environ.get("TREE_ATTN_EXERCISES", ROOT / "build-exercises"))
FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-ffp-contract=off", f"-I{ROOT}"]
SHADOW = ["-DTREE_ATTN_EMULATOR_SHADOW", "-Wno-unknown-pragmas"]
MPI = ["-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX"]
# Words of tensor cores.
MULTIPLIES = re.compile(r"\b(?:load|store|transpose)_matri|\bmma_|\bwgmma_")
RANKS = 4
# Open MPI: four ranks on any number of cores, also as root. Other launchers ignore these.
ENVIRONMENT = os.environ | {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
                            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                            "OMPI_CXX": os.environ.get("CXX", "c++"), "MPICH_CXX": os.environ.get("CXX", "c++")}
ONE_AT_A_TIME = threading.Lock()


def number_of(path):
    return ".".join(path.stem.split("_")[:2])


def exercises():
    """{"5.2": path} in the order of the notebooks."""
    found = {number_of(path): path for path in FOLDER.glob("[0-9]*_[0-9]*_*.cpp")}
    return dict(sorted(found.items(), key=lambda item: [int(part) for part in item[0].split(".")]))


def about(path):
    """Title, and what is expected."""
    text = path.read_text(encoding="utf-8")
    title, expected = re.search(r"@brief Exercise [\d.]+: (.*?)\.?\n", text), re.search(r"/// Expected: (.*?)\n///\n", text, re.DOTALL)
    return title[1], re.sub(r"\s*\n/// ?", " ", expected[1])


def solution_of(path):
    return FOLDER / "solutions" / f"{path.stem}.hpp"


def hint_of(path):
    text = re.search(r"^/// Hint: (.*?)(?=\n(?!///))", solution_of(path).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return re.sub(r"\s*\n/// ?", " ", text[1])


def uses(path, header):
    return header in path.read_text(encoding="utf-8")


def compiled(command):
    return subprocess.run(command, check=False, env=ENVIRONMENT).returncode == 0


def emulator(folder, multiplies=False):
    """Options that link the emulator in shadow mode: one object, and another for kernels that multiply matrices; each compiled if a source is newer."""
    with ONE_AT_A_TIME:
        sources = [path for room in ("types", "emulator", "platform") for path in sorted((ROOT / "gpu" / room).rglob("*.[ch]pp"))]
        newest = max(path.stat().st_mtime for path in sources)
        objects = []
        for name in ("emulator", "tensor_cores")[:1 + multiplies]:
            made, unit = folder / f"{name}.o", folder / f"{name}.cpp"
            objects.append(str(made))
            if made.exists() and made.stat().st_mtime >= newest:
                continue
            print(f"Compiling the {'emulator' if name == 'emulator' else 'tensor cores of the emulator'}, once ...", file=sys.stderr)
            unit.write_text("".join(f'#include "{path}"\n' for path in sources if path.suffix == ".cpp" and path.parent.name == "emulator"
                                    and path.stem.startswith(("tensor_", "wgmma")) == (name == "tensor_cores")))
            # Without optimisation and warnings: kernels of exercises run for milliseconds, and the compiler for seconds.
            if not compiled([os.environ.get("CXX", "c++"), *FLAGS, *SHADOW, "-w", "-c", str(unit), "-o", str(made)]):
                return None
        return [*SHADOW, *objects, "-lboost_context", "-pthread"]


def build(path, solution=False, folder=BUILD):
    """The program of an exercise. @returns the command that runs it, or None if it does not compile"""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / (path.stem + ("_solution" if solution else ""))
    on_ranks, options = uses(path, "<mpi.h>"), emulator(folder, bool(MULTIPLIES.search(path.read_text(encoding="utf-8")))) if uses(path, "exercises/puzzle.hpp") else []
    if options is None:
        return None
    compiler = "mpicxx" if on_ranks else os.environ.get("CXX", "c++")
    if on_ranks and not (shutil.which("mpicxx") and shutil.which("mpirun")):
        sys.exit("exercise: this one runs on four ranks, and needs mpicxx and mpirun: apt-get install libopenmpi-dev openmpi-bin")
    command = [compiler, *FLAGS, *(MPI if on_ranks else []), *(["-DTREE_ATTN_SOLUTION"] if solution else []), str(path), *options, "-o", str(program)]
    if not compiled(command):
        return None
    return [*(["mpirun", "-n", str(RANKS)] if on_ranks else []), str(program)]


def words():
    """{function: (signature, comment, line of a kernel that calls it)} of those that the exercises name, as the emulator declares them."""
    named = [name for path in exercises().values() for part in re.findall(r"Words: (.*?)\ninline", re.sub(r"\s*\n/// ?", " ", path.read_text(encoding="utf-8")), re.DOTALL)
             for name in re.findall(r"(?<![\w:])([A-Za-z_]\w*)(?=[(<])|\b(Arena)\b", part)]
    found = {}
    for name in dict.fromkeys(first or second for first, second in named):
        declared, comment = None, ""
        for file in ("gpu/platform/cuda/device.hpp", "gpu/emulator/shared.hpp", "gpu/emulator/device.hpp"):
            text = (ROOT / file).read_text(encoding="utf-8")
            match = re.search(rf"((?:^///.*\n)*)((?:^template.*\n)?^[\w_].*?\b{name}(?:\([^{{;]*\)|(?= \{{)))", text, re.MULTILINE)
            if match:
                comment = " ".join(re.sub(r"^///", "", match[1], flags=re.MULTILINE).split()) or comment
                signature = re.sub(r",? ?const Line& line = Line::current\(\)|__device__ |__forceinline__ |inline |^template.*\n", "", match[2], flags=re.MULTILINE)
                declared = re.sub(r",? \)", ")", " ".join(signature.split()))
        calls = (f"{path.relative_to(ROOT)}:{number}: {line.strip()}" for pattern in ("ladder/*.cu", "engine/*.cuh", "backend/*.cu") for path in sorted((ROOT / "gpu").glob(pattern))
                 for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if re.search(rf"\b{name}\b[(<]?", line) and not line.lstrip().startswith("//"))
        if declared:
            found[name] = declared, comment, next(calls, "")
    return found


def solved(new=None, folder=BUILD):
    """Numbers of the exercises that have passed here, with a new one."""
    record = folder / "solved.txt"
    numbers = set(record.read_text(encoding="utf-8").split()) if record.exists() else set()
    if new is not None and new not in numbers:
        numbers.add(new)
        folder.mkdir(parents=True, exist_ok=True)
        record.write_text("\n".join(sorted(numbers)) + "\n", encoding="utf-8")
    return numbers & set(exercises())


def reset(path, folder=BUILD):
    """Puts a form back. @returns where the answer is now"""
    folder.mkdir(parents=True, exist_ok=True)
    answer = folder / f"{path.stem}_answer.cpp"
    shutil.copy(path, answer)
    if subprocess.run(["git", "-C", path.parent, "checkout", "--", path.name], check=False).returncode != 0:
        sys.exit(f"exercise: {path.name} stays as it is")
    return answer


def main():
    arguments = [word for word in sys.argv[1:] if word not in ("--hint", "--solution", "--reset")]
    options = [word for word in sys.argv[1:] if word not in arguments]
    known = exercises()
    if len(arguments) > 1 or len(options) > 1 or (options and not arguments):
        sys.exit("exercise: takes the number of one exercise, and --hint, --solution or --reset (./run exercise lists them)")
    solution = options == ["--solution"]
    if not arguments:
        done = solved()
        for number, path in known.items():
            print(f"{'*' if number in done else ' '}{number:>5}  {about(path)[0]}")
        print(f"\nSolved: {len(done)} of {len(known)}. ./run exercise 5.2 compiles and checks one, --hint shows a step of the way, --solution all of it, --reset puts its form back.")
        return 0
    if arguments == ["words"] and not options:
        for declared, comment, call in words().values():
            print("\n".join([declared, *(f"    {line}" for line in (comment, call) if line)]))
        return 0
    if arguments[0] not in known:
        sys.exit(f"exercise: there is no exercise {arguments[0]}; use one of {', '.join(known)}")
    path = known[arguments[0]]
    if options == ["--reset"]:
        print(f"{path.relative_to(ROOT)} is a form again; your answer is {reset(path)}.")
        return 0
    if options == ["--hint"]:
        print(hint_of(path))
        return 0
    title, expected = about(path)
    print(f"Exercise {arguments[0]}: {title}.\nExpected: {expected}")
    if solution:
        print(f"\n{solution_of(path).read_text(encoding='utf-8').split('#pragma once')[1].strip()}\n")
    else:
        print(f"Write it in {path.relative_to(ROOT)}.\n")
    sys.stdout.flush()
    program = build(path, solution)
    if program is None:
        print("It does not compile.")
        return 1
    status = subprocess.run(program, check=False, env=ENVIRONMENT).returncode
    if status == 0 and not solution:
        print(f"Solved: {len(solved(arguments[0]))} of {len(known)}.")
    return status


if __name__ == "__main__":
    sys.exit(main())
