#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exercises of the notebooks: functions to be written, each with a test that fails until they are.

Run: ./run exercise                     list them
     ./run exercise 5.2                 compile and check notebooks_cpp/exercises/5_2_*.cpp: exit status 1 while claims fail
     ./run exercise 5.2 --solution      show a solution, and check it

Needs a C++20 compiler (CXX, default c++) and none of the project's libraries. Programs are put in build-exercises/.
"""
import os
import pathlib
import re
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
BUILD = pathlib.Path(os.environ.get("TREE_ATTN_EXERCISES", ROOT / "build-exercises"))
FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-ffp-contract=off", f"-I{ROOT}/include"]


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


def build(path, solution=False, folder=BUILD):
    """The program of an exercise. @returns its path, or None if it does not compile"""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / (path.stem + ("_solution" if solution else ""))
    command = [os.environ.get("CXX", "c++"), *FLAGS, *(["-DTREE_ATTN_SOLUTION"] if solution else []), str(path), "-o", str(program)]
    return program if subprocess.run(command, check=False).returncode == 0 else None


def main():
    arguments = [word for word in sys.argv[1:] if word != "--solution"]
    solution = len(arguments) < len(sys.argv) - 1
    known = exercises()
    if len(arguments) > 1 or (solution and not arguments):
        sys.exit("exercise: takes the number of one exercise, and --solution (./run exercise lists them)")
    if not arguments:
        for number, path in known.items():
            print(f"{number:>5}  {about(path)[0]}")
        print("\n./run exercise 5.2 compiles and checks one, ./run exercise 5.2 --solution shows how it can be done.")
        return 0
    if arguments[0] not in known:
        sys.exit(f"exercise: there is no exercise {arguments[0]}; use one of {', '.join(known)}")
    path = known[arguments[0]]
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
    return subprocess.run([program], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
