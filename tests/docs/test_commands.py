#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every command that README.md, a page or a notebook shows: what it names is there, and what is cheap runs as it stands.

Run: tests/docs/test_commands.py [--program build/tree_attn]    with the program, options are compared with its help, and commands run
"""
import functools
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import many_gpus

PROGRAM = pathlib.Path(sys.argv.pop(sys.argv.index("--program") + 1)).resolve() if "--program" in sys.argv else None
if PROGRAM:
    sys.argv.remove("--program")

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks_cpp").glob("[0-9]*_*.cpp"))
STARTS = r"(?:\./run(?: |$)|(?:mpirun|mpiexec|srun)\b.* (?:build/)?tree_attn |build/tree_attn \w|tree_attn (?:decode|generate|info|oracle|predict)(?: |$)|(?:python3 )?(?:tests|docs/tools)/[\w./]+ )"
RUN = (ROOT / "run").read_text(encoding="utf-8")
USAGE = RUN.split("usage() {")[1].split("\nEND\n")[0]
# Scripts that explain their options themselves.
SCRIPTS = {"bench": ["tests/bench/measure", "tests/bench/time_ladder/measure"], "simulate": ["tests/bench/simulate"]}
# Launchers on several machines, and NCCL: docs/tools/many_gpus.py runs these commands of chapters, on one machine and over a stand-in.
ELSEWHERE = ("--hostfile", "-f hosts", "srun", "--transport nccl")
REHEARSED = ("IV.7-many-gpus.md", "IV.4-network.md", "III.4-one-launch.md")
# Commands of blocks that build for minutes, and where they run: an entry of CTest, or a workflow (KINDS).
BUILDS = {"notebook": "NAME notebook/", "exercise": "docs/exercises", "test": "", "demo": "", "docs": ""}
# What the fast set leaves out, and the entry of CTest by which ./run test --all runs it too, where it does.
KINDS = {"demo": "", "test": "", "test --all": "", "test --asan": "", "test --tsan": "", "test -L gpu-compile": "", "test --compiled": "run/compiled", "python": "run/python",
         "docs": "run/docs", "fuzz 3600": "", "mutants": "", "simulate --test": ""}
PLACES = re.compile(r"\b(?:IN|OUT|MODEL|TEXT|FILE|QUESTION|NAME|SECONDS|COMMIT|DIR)\b|\.\.\.|\[")


def commands(text):
    """(shown in a block of its own, command) of a page."""
    found = []
    for language, body in re.findall(r"^```([^\n]*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        lines = re.sub(r" *\\\n *", " ", body).splitlines() if language in ("sh", "bash", "") else []
        found += [(language == "sh", line.strip().removeprefix("$ ")) for line in lines]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    # Lines that are indented behind an empty one are a block too.
    for body in re.findall(r"(?<=\n\n)((?: {4}[^\n]*\n)+)", prose):
        found += [(True, line.strip().removeprefix("$ ")) for line in re.sub(r" *\\\n *", " ", body).splitlines()]
    found += [(False, span) for span in re.findall(r"`([^`\n]+)`", prose)]
    found = [(block, re.sub(r"  +#.*| # .*", "", command)) for block, command in found]
    return [(block, command) for block, command in dict.fromkeys(found) if re.match(STARTS, command)]


def shown():
    """(where, block, command) of everything."""
    for path in PAGES:
        for block, command in commands(path.read_text(encoding="utf-8")):
            yield path.name, block, command
    for path in NOTEBOOKS:
        lines = [re.sub(r"^\s*// ?", "", line) for line in path.read_text(encoding="utf-8").splitlines() if line.lstrip().startswith("//")]
        first = next(line.removeprefix("Run: ") for line in lines if line.startswith("Run: "))
        for block, command in [(False, first), *commands("\n".join(lines))]:
            yield path.name, block, command


@functools.cache
def options_of(subcommand):
    """The options of a command of the program, by its help, or without a program those of all of them, by the sources."""
    if PROGRAM:
        return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", subprocess.run([PROGRAM, subcommand, "--help"], capture_output=True, text=True, check=True).stdout))
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "distributed").glob("*/*.cpp") if path.parent.name in ("program", "language_model"))
    return set(re.findall(r"--[a-z][\w-]*", text))


def program_faults(words):
    if not words or words[0] not in ("decode", "generate", "info", "oracle", "predict"):
        return [f"the program has no command {words[:1]}"]
    return [f"{words[0]} has no option {word}" for word in words[1:] if word.startswith("--") and word.split("=")[0] not in options_of(words[0])]


def faults(block, command):
    """Returns what a command names and nothing has."""
    try:
        words = shlex.split(command.replace("[", "").replace("]", ""))
    except ValueError as error:
        return [str(error)]
    if words[0] == "./run":
        name, rest = (words[1:2] or ["help"])[0], words[2:]
        if name in ("decode", "generate", "info", "oracle", "predict"):
            return program_faults([name, *(rest[2:] if rest[:1] == ["-n"] else rest)])
        if not re.search(rf"^  (?:[\w| -]+\| )?{re.escape(name)}(?: \|[\w| -]+)?\)$", RUN, re.MULTILINE):
            return [f"./run has no command {name}"]
        known = USAGE + "".join((ROOT / script).read_text(encoding="utf-8") for script in SCRIPTS.get(name, []))
        wrong = [f"./run {name} has no option {word}" for word in rest if word.startswith("--") and f"{word.split('=')[0]}" not in known]
        if name == "notebook" and rest and rest[0] != "N" and not list((ROOT / "notebooks_cpp").glob(f"{rest[0]}_*.cpp")):
            wrong.append(f"there is no notebook {rest[0]}")
        if name == "exercise" and rest and re.match(r"\d", rest[0]) and not list((ROOT / "notebooks_cpp" / "exercises").glob(f"{rest[0].replace('.', '_')}_*.cpp")):
            wrong.append(f"there is no exercise {rest[0]}")
        return wrong
    if re.match(r"python3$|tests/|docs/", words[0]):
        script = ROOT / words[words[0] == "python3"]
        return [] if script.is_file() else [f"there is no {script.relative_to(ROOT)}"]
    if at := [i for i, word in enumerate(words) if word.removeprefix("build/") == "tree_attn"]:
        if at[0] > 0 and block and not any(word in command for word in ELSEWHERE) and words[0] != "srun":
            return ["on one machine ./run starts the program: mpirun alone refuses more ranks than cores, and root"]
        return program_faults(words[at[0] + 1:])
    return []


def called(block, command):
    """The words by which a command runs on one machine without a GPU, in place of ./run the program and its launcher; None if it does not here."""
    if any(word in command for word in ELSEWHERE):
        return None
    if "--backend cuda" in command:
        command = many_gpus.on_emulated(command if "--seq-len" in command else f"{command} --seq-len 65536")
    words = shlex.split(command)
    if block and words[0].startswith("tests/data/"):
        return [sys.executable, ROOT / words[0], *words[1:]]
    if words[0] == "./run":
        words = words[1:]
    elif at := [i for i, word in enumerate(words) if word.removeprefix("build/") == "tree_attn"]:
        ranks = words[words.index("-n") + 1] if at[0] else ""
        words = words[at[0] + 1:]
        words[1:1] = ["-n", ranks] if ranks else []
    if not (words[:1] == ["predict"] or block and words[:1] and words[0] in ("decode", "generate", "info", "oracle")):
        return None
    if words[1:2] == ["-n"]:
        return ["mpirun", *many_gpus.OVERSUBSCRIBED, "-n", words[2], PROGRAM, words[0], *words[3:]]
    return [PROGRAM, *words]


def examples(subcommand):
    """The examples at the end of the help of a command."""
    text = subprocess.run([PROGRAM, subcommand, "--help"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^  ((?:mpirun .*)?tree_attn .*)$", text.partition("Example")[2], re.MULTILINE)


class Commands(unittest.TestCase):
    def test_what_they_name_is_there(self):
        found = list(shown())
        self.assertGreater(len(found), 100)
        self.assertEqual([f"{where}: {command}: {fault}" for where, block, command in found for fault in faults(block, command)], [])

    def test_faults_are_found(self):
        for command in ("./run nothing", "./run test --none", "./run decode -n 8 --sequence 3", "./run notebook 99", "./run exercise 5.9", "./run bench --quickly",
                        "build/tree_attn encode", "tree_attn predict --keys 8", "tests/none.py --all", "mpirun -n 8 build/tree_attn decode --seq-len 65536"):
            self.assertRegex(command, STARTS)
            self.assertEqual(len(faults(True, command)), 1, command)
        self.assertEqual(commands("```sh\n./run decode -n 8 \\\n    --verify   # words\n```\n`./run test` and `x`\n\n    ./run demo  # words\n"),
                         [(True, "./run decode -n 8 --verify"), (True, "./run demo"), (False, "./run test")])

    def test_every_notebook_says_how_it_is_run(self):
        for path in NOTEBOOKS:
            self.assertIn(f"// Run: ./run notebook {path.name.split('_')[0]}\n", path.read_text(encoding="utf-8"))

    def test_every_kind_of_test_runs_in_a_workflow(self):
        workflows = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")))
        run = {command.strip() for command in re.findall(r"\./run ([\w -]+)", workflows)}
        build = (ROOT / "tests" / "CMakeLists.txt").read_text(encoding="utf-8")
        for kind, entry in KINDS.items():
            self.assertIn(kind, run)
            if entry:
                self.assertRegex(build, rf"tree_attn_run\({entry} \S+ {kind}\)")
        for command in run:
            self.assertEqual(faults(True, f"./run {command}"), [], command)

    def test_every_command_of_a_block_runs_somewhere(self):
        build = (ROOT / "tests" / "CMakeLists.txt").read_text(encoding="utf-8") + (ROOT / "notebooks_cpp" / "CMakeLists.txt").read_text(encoding="utf-8")
        rehearsed = [command for name in REHEARSED for command in many_gpus.commands(name)]
        for where, block, command in shown():
            words = command.split()
            if not block or called(block, command) or PLACES.search(command):
                continue
            if words[0] == "./run" and words[1] in BUILDS:
                self.assertTrue(BUILDS[words[1]] in build if BUILDS[words[1]] else words[1] in KINDS, command)
                continue
            if words[0].startswith("tests/"):
                self.assertIn(words[0].removeprefix("tests/").removesuffix("/run") + "/test_run.py", build, command)
                continue
            self.assertTrue(any(each.startswith(command) for each in rehearsed), f"{where}: {command}")

    @unittest.skipUnless(PROGRAM, "--program is not given")
    def test_commands_run_as_they_stand(self):
        """Commands of blocks for one machine, all predictions, and the examples of the help, in a folder with the files that they name."""
        environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        n_run = 0
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "tests").symlink_to(ROOT / "tests")
            pathlib.Path(folder, "build", "demo").mkdir(parents=True)
            for text in ("build/demo/haystack.txt", "haystack.txt"):
                subprocess.run([sys.executable, ROOT / "tests/data/recall/make_haystack.py", "16384", f"{folder}/{text}"], capture_output=True, check=True)
            pathlib.Path(folder, "cache.safetensors").symlink_to(ROOT / "tests/data/minilm/attention.safetensors")
            helps = [(f"{name} --help", True, command) for name in ("decode", "generate", "info", "oracle", "predict") for command in examples(name)]
            self.assertGreater(len(helps), 5)
            for where, block, command in [*shown(), *helps]:
                words = called(block, command)
                if not words or PLACES.search(command):
                    continue
                ended = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL, check=False)
                if "emulated" in words and "not built in" in ended.stderr:
                    continue
                self.assertEqual(ended.returncode, 0, f"{where}: {command}\n{ended.stdout[-800:]}{ended.stderr[-800:]}")
                n_run += 1
        self.assertGreater(n_run, 25)


if __name__ == "__main__":
    unittest.main()
