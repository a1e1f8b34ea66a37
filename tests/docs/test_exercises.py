#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""notebooks_cpp/exercises: every solution passes, every form to be filled in fails, and notebooks and exercises name each other.

Run: tests/docs/test_exercises.py [--compiler c++]
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "notebooks_cpp" / "exercises"))
import exercise

if "--compiler" in sys.argv:
    os.environ["CXX"] = sys.argv.pop(sys.argv.index("--compiler") + 1)
    sys.argv.remove("--compiler")
EXERCISES = exercise.exercises()
TO_PROGRAM = re.compile(r"^// \* `\./run exercise ([\d.]+)`: (.*)[;.]$", re.MULTILINE)


def status_and_output(path, solution, folder):
    program = exercise.build(path, solution, folder)
    if program is None:
        return None, ""
    result = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    return result.returncode, result.stdout


class Exercises(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        jobs = [(number, solution) for number in EXERCISES for solution in (False, True)]
        with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = pool.map(lambda job: status_and_output(EXERCISES[job[0]], job[1], pathlib.Path(folder)), jobs)
            cls.found = dict(zip(jobs, results))

    def test_there_are_some_in_most_notebooks(self):
        self.assertGreaterEqual(len(EXERCISES), 8)
        self.assertGreaterEqual(len({number.split(".")[0] for number in EXERCISES}), 8)

    def test_every_solution_passes(self):
        for number in EXERCISES:
            status, output = self.found[number, True]
            self.assertEqual(status, 0, f"{number}: {output}")
            self.assertRegex(output, r"^All \d+ claims hold\.\n$", number)

    def test_every_form_compiles_and_fails(self):
        for number in EXERCISES:
            status, output = self.found[number, False]
            self.assertEqual(status, 1, f"{number}: {output}")
            self.assertIn("does not hold: ", output, number)

    def test_form_and_solution_declare_the_same(self):
        for number, path in EXERCISES.items():
            form, solution = path.read_text(encoding="utf-8"), exercise.solution_of(path).read_text(encoding="utf-8")
            part = form.partition("// Change from here ...")[2].partition("// ... to here.")[0]
            declared = [re.findall(r"^inline .*?\)", text, re.MULTILINE | re.DOTALL)[-1] for text in (part, solution)]
            self.assertEqual(*declared, number)
            self.assertIn(f"exercise {number}: {exercise.about(path)[0]}.", re.sub(r"\s*\n/// ?", " ", solution), number)
            self.assertIn(f'#include "tree_attn/notebooks_cpp/exercises/solutions/{path.stem}.hpp"', form)

    def test_notebooks_name_their_exercises(self):
        named = {}
        for path in (ROOT / "notebooks_cpp").glob("[0-9]*_*.cpp"):
            for number, title in TO_PROGRAM.findall(path.read_text(encoding="utf-8")):
                self.assertEqual(number.split(".")[0], path.stem.split("_")[0])
                named[number] = title
        self.assertEqual(named, {number: exercise.about(path)[0] for number, path in EXERCISES.items()})

    def test_command(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)

        def run(*arguments):
            return subprocess.run([sys.executable, ROOT / "notebooks_cpp" / "exercises" / "exercise.py", *arguments], capture_output=True,
                                  text=True, check=False, env=os.environ | {"TREE_ATTN_EXERCISES": folder.name})

        listed = run()
        self.assertEqual((listed.returncode, listed.stderr), (0, ""))
        self.assertEqual([line.split()[0] for line in listed.stdout.splitlines()[: len(EXERCISES)]], list(EXERCISES))
        for wrong, words in ((["5.9"], "there is no exercise 5.9; use one of 1.1, "), (["5.1", "5.2"], "takes the number of one exercise"), (["--solution"], "takes the number")):
            result = run(*wrong)
            self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (1, "", 1), wrong)
            self.assertIn(words, result.stderr)
        shown = run("5.2", "--solution")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("inline State merge(State S, State T) {", shown.stdout)
        self.assertRegex(shown.stdout, r"All \d+ claims hold\.\n$")


if __name__ == "__main__":
    unittest.main()
