#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""notebooks_cpp/exercises: every solution passes, every form to be filled in and every wrong answer fails, and notebooks and exercises name
each other.

Run: tests/docs/test_exercises.py [--compiler c++]
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
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
KERNELS = [number for number, path in EXERCISES.items() if exercise.uses(path, "exercises/puzzle.hpp")]
ON_RANKS = [number for number, path in EXERCISES.items() if exercise.uses(path, "<mpi.h>")]
RUNS = [number for number in EXERCISES if number not in ON_RANKS or (shutil.which("mpicxx") and shutil.which("mpirun"))]
# Wrong answers: what is replaced in a solution, by what, and words of the verdict.
WRONG = [
    ("9.2", "if (i >= n) return;", "", "load_once reads bytes 4 to 8 of a buffer of 4"),
    ("9.3", "__syncthreads();", "__syncwarp();", ":28 (block (0, 0, 0), thread (32, 0, 0)) writes, and no barrier orders the two"),
    ("9.4", "if (both == -INFINITY) return;", "", "nan, expected"),
    ("9.5", "n = -0.0f", "n = 0", "the bits of element 2 of 0 keys"),
    ("9.6", "__syncwarp();", "", "reads shared memory that no thread has written"),
    ("9.6", "copy_async_wait<1>();", "copy_async_wait<2>();", "has not brought yet"),
    ("9.7", "if (round > 0) barrier_wait(empty + place, (round - 1) % 2);", "", "one more than the 1 arrivals of a phase"),
    ("9.7", "barrier_wait(full + place, round % 2);", "barrier_wait(full + place, 0);", "race: a copy overwrites"),
    ("9.8", "(lane / 16 * 8 + lane % 8) * 24 + lane / 8 % 2 * 8", "lane % 16 * 24 + lane / 16 * 8", "register 1 of lane 0 of A^T"),
    ("9.9", "8 * i + 2 * t", "8 * i + t", "the score of key"),
    ("9.10", "store_fresh(sums + blockIdx.x, sum);", "", "scratch memory that this launch has not written"),
    ("9.11", "cluster_sync();\n  float", "float", "reads shared memory that no thread has written"),
    ("9.11", "cluster_sync();\n}", "}", "shared memory of a block that has ended"),
    ("9.12", "static_cast<int>(step % 2) * n_packets", "0 * int(step)", "deadlock"),
    ("9.13", "receive(1, i)", "receive(0, i)", "the bits of 6 sums on device "),
]
TO_PROGRAM = re.compile(r"^// \* `\./run exercise ([\d.]+)`: (.*)[;.]$", re.MULTILINE)


def status_and_output(path, solution, folder):
    program = exercise.build(path, solution, folder)
    if program is None:
        return None, ""
    result = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False, env=exercise.ENVIRONMENT)
    return result.returncode, result.stdout


def answered(number, old, new, folder):
    """The form of an exercise with a changed solution in it."""
    form, solution = EXERCISES[number].read_text(encoding="utf-8"), exercise.solution_of(EXERCISES[number]).read_text(encoding="utf-8")
    answer = re.search(r"^inline .*", solution, re.MULTILINE | re.DOTALL)[0]
    assert answer.count(old) == 1, f"{number}: {old} is {answer.count(old)} times in the solution"
    path = folder / f"{number.replace('.', '_')}_{abs(hash((old, new)))}.cpp"
    path.write_text(form.partition("// Change from here ...\n")[0] + answer.replace(old, new) + form.partition("// ... to here.\n")[2])
    return path


class Exercises(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(2) as pool:
            folder = pathlib.Path(name)
            jobs = [((number, solution), EXERCISES[number], solution) for number in RUNS for solution in (False, True)]
            jobs += [(wrong, answered(*wrong[:3], folder), False) for wrong in WRONG]
            cls.found = dict(pool.map(lambda job: (job[0], status_and_output(job[1], job[2], folder)), jobs))

    def test_they_are_thirty_two(self):
        self.assertEqual((len(EXERCISES), len(KERNELS), len(ON_RANKS)), (32, 12, 3))

    def test_wrong_kernels_are_refused_with_the_reason(self):
        self.assertEqual({wrong[0] for wrong in WRONG}, set(KERNELS))
        for wrong in WRONG:
            status, output = self.found[wrong]
            self.assertEqual(status, 1, f"{wrong}: {output}")
            self.assertIn(wrong[3], output, wrong)

    def test_the_front_page_lists_them(self):
        page = (ROOT / "docs" / "mainpage.md").read_text(encoding="utf-8")
        listed = re.findall(r"(?:\| |; )(\d+\.\d+) (.*?)(?=; \d|  ?\|)", page)
        self.assertEqual(dict(listed), {number: exercise.about(path)[0] for number, path in EXERCISES.items()})

    def test_every_solution_passes(self):
        for number in RUNS:
            status, output = self.found[number, True]
            self.assertEqual(status, 0, f"{number}: {output}")
            self.assertRegex(output, r"^All \d+ claims hold\.\n$", number)

    def test_every_form_compiles_and_fails(self):
        for number in RUNS:
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
            self.assertIn(f'#include "notebooks_cpp/exercises/solutions/{path.stem}.hpp"', form)

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
        pathlib.Path(folder.name, "solved.txt").write_text("5.2\n")
        listed = run().stdout
        self.assertEqual(re.findall(r"^\* +([\d.]+)", listed, re.MULTILINE), ["5.2"])
        self.assertIn(f"\nSolved: 1 of {len(EXERCISES)}. ", listed)

    def test_hints(self):
        hints = {number: exercise.hint_of(path) for number, path in EXERCISES.items()}
        self.assertEqual(len(set(hints.values())), len(EXERCISES))
        for number, hint in hints.items():
            self.assertTrue(40 < len(hint) < 320 and hint.endswith("."), f"{number}: {hint}")
            self.assertNotIn("Hint: ", EXERCISES[number].read_text(encoding="utf-8"), number)
            self.assertNotRegex(hint, r";$|///|\n", number)

    def test_a_fault_of_several_seeds_is_one_line(self):
        status, output = self.found[WRONG[1]]
        self.assertEqual(status, 1)
        lines = [line for line in output.splitlines() if "no barrier orders the two" in line]
        self.assertEqual(len(lines), len(set(lines)))
        self.assertRegex(output, r"\((?:[2-4]) of 4 seeds\)")

    def test_words(self):
        words = exercise.words()
        self.assertGreaterEqual(len(words), 25)
        self.assertEqual(words["store_fresh"][0], "void store_fresh(T* to, std::type_identity_t<T> x)")
        self.assertEqual(words["copy_async_commit"][0], "void copy_async_commit()")
        for name, (declared, comment, call) in words.items():
            self.assertIn(name, declared)
            self.assertNotRegex(declared, "Line::|runtime::|\\n")
            file, line = call.split(":")[:2] if call else (None, 0)
            self.assertTrue(file is None or name in (ROOT / file).read_text(encoding="utf-8").splitlines()[int(line) - 1], call)

    def test_score(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name, "programs")
            self.assertEqual(exercise.solved(folder=folder), set())
            for number in ("5.2", "5.1", "5.2", "99.9"):
                exercise.solved(number, folder)
            self.assertEqual(exercise.solved(folder=folder), {"5.1", "5.2"})

    @unittest.skipUnless(shutil.which("git"), "there is no git")
    def test_a_form_is_put_back(self):
        with tempfile.TemporaryDirectory() as name:
            form, folder = pathlib.Path(name, "5_2_merge.cpp"), pathlib.Path(name, "programs")
            form.write_text("form\n")
            git = ["git", "-C", name, "-c", "user.name=a", "-c", "user.email=a@b"]
            for words in (["init", "-q"], ["add", form.name], ["commit", "-q", "-m", "form"]):
                subprocess.run([*git, *words], check=True)
            form.write_text("answer\n")
            self.assertEqual(exercise.reset(form, folder).read_text(), "answer\n")
            self.assertEqual(form.read_text(), "form\n")


if __name__ == "__main__":
    unittest.main()
