#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""./run on machines where packages are missing: what is there in another way is taken, and nothing else goes unsaid. And where nothing
is missing: what it starts, with which options, and how it ends.

A machine is a folder of programs that do nothing. The command is mostly `./run bench --backend cuda`, in a copy of the source tree of two files.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASH_NEEDS = ["bash", "env", "dirname", "grep", "cat", "awk", "nproc", "mkdir", "mktemp", "tail", "rm"]
FOLDERS = {"TREE_ATTN_EIGEN_INCLUDE_DIR": "/eigen", "TREE_ATTN_DOCTEST_INCLUDE_DIR": "/doctest"}


class Machine:
    def __init__(self, folder, *programs, debian=True):
        self.tree, self.bin = Path(folder) / "tree", Path(folder) / "bin"
        self.bin.mkdir()
        for name in BASH_NEEDS:
            (self.bin / name).symlink_to(shutil.which(name))
        for name in programs:
            self.add(name, "exit 0")
        if debian:
            self.add("dpkg-query", "exit 1")
            self.add("apt-get", "echo no network >&2; exit 100")
        measure = self.tree / "tests" / "bench" / "time_ladder" / "measure"
        measure.parent.mkdir(parents=True)
        shutil.copy(ROOT / "run", self.tree / "run")
        measure.write_text('#!/bin/sh\necho "measured $*"\n')
        measure.chmod(0o755)

    def add(self, name, text):
        (self.bin / name).unlink(missing_ok=True)  # a link to the program of this name
        (self.bin / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"$0.log"\n{text}\n')
        (self.bin / name).chmod(0o755)

    def calls(self, name):
        log = self.bin / f"{name}.log"
        return log.read_text().splitlines() if log.exists() else []

    def run(self, *options, command=("bench", "--backend", "cuda"), **environment):
        return subprocess.run([self.tree / "run", *command, *options], capture_output=True, text=True, check=False,
                              env={"PATH": str(self.bin), "TMPDIR": str(self.bin)} | environment)


class Packages(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def machine(self, *programs, debian=True):
        where = Path(self.folder.name) / str(len(os.listdir(self.folder.name)))
        where.mkdir()
        return Machine(where, *(programs or ("python3", "g++", "cmake", "ninja")), debian=debian)

    def test_headers_in_named_folders_are_taken(self):
        for debian in (True, False):
            machine = self.machine(debian=debian)
            ended = machine.run("--quick", **FOLDERS)
            self.assertEqual((ended.returncode, ended.stdout.splitlines()[-1]), (0, "measured --backend cuda --quick"), ended.stderr)
            self.assertEqual(len(machine.calls("cmake")), 2)
            self.assertEqual(machine.calls("apt-get"), [])

    def test_headers_below_a_prefix_are_taken(self):
        machine, prefixes = self.machine(), []
        for header in ("eigen3/Eigen/Core", "doctest/doctest.h"):
            prefix = machine.bin / header.split("/", maxsplit=1)[0]
            (prefix / "include" / header).parent.mkdir(parents=True)
            (prefix / "include" / header).touch()
            prefixes.append(str(prefix))
        ended = machine.run(CMAKE_PREFIX_PATH=":".join(prefixes))
        self.assertEqual((ended.returncode, machine.calls("apt-get")), (0, []), ended.stderr)
        ended = machine.run(CMAKE_PREFIX_PATH=prefixes[0])
        self.assertEqual(ended.returncode, 2)
        self.assertIn("doctest-dev", ended.stderr)

    def test_what_is_missing_is_named(self):
        # As root it asks apt-get, which has no network here; else it says what root has to run.
        ended = self.machine().run()
        self.assertEqual((ended.returncode, "measured --backend cuda\n" in ended.stdout), (2, False))
        self.assertRegex(ended.stderr, "cannot install libeigen3-dev doctest-dev" if os.geteuid() == 0 else "apt-get install .* libeigen3-dev doctest-dev")
        ended = self.machine("python3", "g++", "cmake", debian=False).run(**FOLDERS)
        self.assertEqual(ended.returncode, 2)
        self.assertRegex(ended.stderr, "not Debian or Ubuntu.*: ninja-build$")

    def test_a_program_that_its_package_lacks_is_named(self):
        machine = self.machine("python3", "g++", "ninja")
        machine.add("dpkg-query", "printf installed")
        ended = machine.run()
        self.assertEqual((ended.returncode, machine.calls("apt-get")), (2, []))
        self.assertEqual(ended.stderr, "run: cmake is not in the PATH, though the package cmake is installed\n")

    def test_elsewhere_cmake_names_missing_libraries(self):
        machine = self.machine(debian=False)
        self.assertEqual((machine.run().returncode, len(machine.calls("cmake"))), (0, 2))

    def test_a_test_by_its_name_alone_is_refused_before_anything_is_installed(self):
        for name in ("", "forest"):
            machine = self.machine()
            ended = machine.run(command=("test", name))
            self.assertEqual((ended.returncode, machine.calls("apt-get"), machine.calls("cmake")), (2, [], []))
            self.assertEqual(ended.stderr,
                             f"run: test accepts options of ctest, not '{name}' (to select a test by name: ./run test -R '{name}')\n")

    def test_compiled_kernels_are_left_out_without_nvcc_and_said_to_be(self):
        machine = self.machine()
        ended = machine.run(command=("test", "--compiled", "--all"), CUDACXX="/nowhere/nvcc")
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertIn("skipped: the tests of the compiled kernels need nvcc", ended.stdout)
        ended = machine.run("-R", "x", command=("test", "--compiled"), CUDACXX="/nowhere/nvcc")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("test --compiled takes no argument '-R'", ended.stderr)

    def test_peers_need_an_environment_only_without_pytorch(self):
        machine = self.machine()
        self.assertEqual(machine.run("--peers", **FOLDERS).returncode, 0)
        machine.add("python3", 'case "$*" in *torch*|*ensurepip*) exit 1; esac')
        ended = machine.run("--peers", **FOLDERS)
        self.assertEqual(ended.returncode, 2)
        self.assertRegex(ended.stderr, "cannot install python3-venv" if os.geteuid() == 0 else "apt-get install .* python3-venv")

    def test_the_program_is_built_and_started_on_ranks(self):
        machine = self.machine("python3", "g++", "cmake", "ninja", "mpirun", debian=False)
        machine.add("mpirun", 'case "$*" in --version) echo "mpirun (Open MPI) 4.1.4" ;; esac')
        ended = machine.run(command=("decode", "-n", "999", "--seq-len", "64"))
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertRegex(machine.calls("cmake")[-1], "--target tree_attn$")
        self.assertEqual(machine.calls("mpirun")[-1], "mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n 999 build/tree_attn decode --seq-len 64")
        # A launcher of another kind, and no launcher for one rank.
        machine.add("mpirun", "")
        self.assertEqual(machine.run(command=("info", "-n", "999")).returncode, 0)
        self.assertEqual(machine.calls("mpirun")[-1], "mpirun -n 999 build/tree_attn info")
        program = machine.tree / "build" / "tree_attn"
        program.write_text('#!/bin/sh\necho "started $*"\n')
        program.chmod(0o755)
        self.assertEqual(machine.run(command=("predict", "--ranks", "8")).stdout, "started predict --ranks 8\n")

    def test_ranks_and_notebooks_that_are_none_are_refused(self):
        machine = self.machine()
        (machine.tree / "notebooks_cpp").mkdir()
        for name in ("1_a", "2_b"):
            (machine.tree / "notebooks_cpp" / f"{name}.cpp").touch()
        for command, words in ((("decode", "-n", "many"), "-n takes a number of ranks, not 'many'"), (("notebook", "3"), "notebook takes a number from 1 to 2, not '3'"),
                               (("notebook",), "notebook takes a number from 1 to 2, not ''"), (("notebook", "1", "x"), "notebook takes no argument 'x' (./run help lists the commands)")):
            ended = machine.run(command=command)
            self.assertEqual((ended.returncode, ended.stderr), (2, f"run: {words}\n"))
            self.assertEqual(machine.calls("cmake"), [])


CTEST_HELP = """\
  -C <cfg>, --build-config <cfg>
  -R <regex>, --tests-regex <regex>
  --timeout <seconds>          = Set the default test timeout.
  --schedule-random            = Use a random order for scheduling tests
"""


class Commands(unittest.TestCase):
    """Nothing is missing."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.machine = machine = Machine(self.folder.name, "g++", "cmake", "ninja", "python3", "mpirun", "clang", "gnuplot", "doxygen")
        machine.add("dpkg-query", "printf installed")
        machine.add("nproc", "echo 4")
        machine.add("ctest", f"case $1 in --help) printf '%s' '{CTEST_HELP}' ;; esac\nprintf %s \"$TREE_ATTN_ALL_TESTS\" >$0.all")
        toolkit = machine.tree / "tests" / "gpu" / "toolkit.py"
        for script in (toolkit, machine.tree / "docs" / "tools" / "demo", machine.tree / "tests" / "python" / "run"):
            script.parent.mkdir(parents=True, exist_ok=True)
            script.write_text('#!/bin/sh\necho "$0 $*"\n')
            script.chmod(0o755)

    def run_it(self, *command, status=0, **environment):
        ended = self.machine.run(command=command, **environment)
        self.assertEqual(ended.returncode, status, ended.stderr)
        return ended

    def last(self, program):
        return self.machine.calls(program)[-1]

    def test_a_build_that_fails_is_an_error_and_nothing_is_started(self):
        for step, fails in (("configure", 'case "$*" in *--build*) ;; *) echo "CMake Error: x"; exit 1 ;; esac'), ("build", 'case "$*" in *--build*) echo "FAILED: x"; exit 1 ;; esac')):
            self.machine.add("cmake", fails)
            for command in (("build",), ("test",), ("test", "--asan"), ("demo",), ("decode",), ("info", "-n", "2"), ("fuzz",), ("test", "--compiled"), ("bench", "--backend", "cuda")):
                with self.subTest(step=step, command=command):
                    ended = self.run_it(*command, status=1, CUDACXX="/bin/sh")
                    self.assertIn("FAILED: x" if step == "build" else "CMake Error: x", ended.stderr)
                    self.assertIn("run: failed: ", ended.stderr)
                    self.assertIn(f"/{step}.log)", ended.stderr)
                    self.assertNotRegex(ended.stdout, "Built|demo|measured --backend")
        self.assertEqual(self.machine.calls("mpirun"), [])
        self.assertEqual([call for call in self.machine.calls("ctest") if "--help" not in call], [])

    def test_ranks_up_to_the_cores_are_bound_and_more_share_them(self):
        self.machine.add("mpirun", 'case "$*" in --version) echo "mpirun (Open MPI) 4.1.4" ;; esac')
        for ranks in (2, 4):
            self.run_it("decode", "-n", str(ranks))
            self.assertEqual(self.last("mpirun"), f"mpirun -n {ranks} build/tree_attn decode")
        self.run_it("decode", "-n", "5")
        self.assertEqual(self.last("mpirun"), "mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n 5 build/tree_attn decode")
        for ranks in ("0", "08", "-1", "10000", "1.5", ""):
            self.assertEqual(self.run_it("decode", "-n", ranks, status=2).stderr, f"run: -n takes a number of ranks, not '{ranks}'\n")
        self.run_it("decode", "-n", "9999")
        self.assertRegex(self.last("mpirun"), " -n 9999 ")

    def test_as_many_compilers_run_as_cores_and_memory_allow(self):
        real = {name: shutil.which(name) for name in ("cat", "awk")}
        # (cores, GiB that are available, limit of the container): compilers
        for (cores, available, limit), jobs in {(4, 64, "max"): 4, (64, 16.1, "max"): 8, (64, 16.1, 6.1 * 2**30): 3, (64, 5, 6 * 2**30): 2, (4, 64, 64 * 2**30): 4, (64, 64, 2**30): 1, (64, 1, "max"): 1, (64, 64, ""): 32}.items():
            memory = limit if isinstance(limit, str) else f"{limit:.0f}"
            self.machine.add("nproc", f"echo {cores}")
            self.machine.add("cat", f'case "$*" in /sys/fs/cgroup/memory.max) test "{memory}" && echo {memory} ;; *) exec {real["cat"]} "$@" ;; esac')
            self.machine.add("awk", f'''exec bash -c 'exec {real["awk"]} "${{@/#\\/proc\\/meminfo/$0.meminfo}}"' "$0" "$@"\n''')
            (self.machine.bin / "awk.meminfo").write_text(f"MemTotal: 999999999 kB\nMemAvailable: {available * 2**20:.0f} kB\n")
            with self.subTest(cores=cores, available=available, limit=limit):
                self.run_it("build")
                self.assertRegex(self.last("cmake"), rf"--parallel {jobs} --target tree_attn$")

    def test_tests_run_with_the_options_of_their_set(self):
        for words, preset, folder, limit, at_once, all_tests in (((), "cpu", "build", 300, 8, ""), (("--all",), "cpu", "build", 1800, 8, "1"), (("--asan",), "cpu-asan", "build-asan", 300, 5, ""),
                                                                 (("--tsan",), "cpu-tsan", "build-tsan", 300, 5, ""), (("--tsan", "--all"), "cpu-tsan", "build-tsan", 1800, 5, "1")):
            with self.subTest(words=words):
                self.run_it("test", *words, "--tests-regex=x", "--timeout", "7")
                configured, built = self.machine.calls("cmake")[-2:]
                self.assertRegex(configured, rf"^cmake --preset {preset} -DTREE_ATTN_WITH_EMULATOR=ON -DTREE_ATTN_ALL_TESTS={'ON' if all_tests else 'OFF'}\b")
                self.assertRegex(built, rf"^cmake --build --preset {preset} ")
                self.assertEqual(self.last("ctest"), f"ctest --test-dir {folder} --output-on-failure --no-tests=error --timeout {limit} --parallel {at_once} --tests-regex=x --timeout 7")
                self.assertEqual((self.machine.bin / "ctest.all").read_text(), all_tests)

    def test_the_emulator_is_compiled_once_a_command_names_it(self):
        def options():
            return self.machine.calls("cmake")[-2].split()[3:]

        for command, emulator in ((("demo",), "OFF"), (("decode", "-n", "2"), "OFF"), (("info", "-n", "2", "--backend=emulated"), "ON"), (("decode", "-n", "2", "--backend", "emulated"), "ON"), (("build",), "ON"), (("test",), "ON")):
            self.run_it(*command)
            # The last one of two has its way.
            self.assertEqual([option for option in options() if "EMULATOR" in option][-1], f"-DTREE_ATTN_WITH_EMULATOR={emulator}", command)
        (self.machine.tree / "build").mkdir(exist_ok=True)
        (self.machine.tree / "build" / "CMakeCache.txt").write_text("TREE_ATTN_WITH_EMULATOR:BOOL=ON\n")
        self.run_it("decode", "-n", "2")
        self.assertEqual(options()[-1], "-DTREE_ATTN_WITH_EMULATOR=ON")

    def test_options_that_ctest_does_not_have_are_refused(self):
        for option in ("--tests", "--tests-rege", "--regex=x", "--timeouts=5", "-Z"):
            ended = self.run_it("test", "-R", "x", option, status=2)
            self.assertEqual(ended.stderr, f"run: test accepts --all, --asan, --tsan, --compiled and options of ctest, not '{option}'\n")
        self.assertEqual(self.machine.calls("cmake"), [])
        for options in (("-R", "x"), ("--timeout=5",), ("--schedule-random",), ("-C", "x")):
            self.run_it("test", *options)

    def test_help_builds_nothing(self):
        self.assertIn("./run test [--all]", self.run_it("test", "--help").stdout)
        self.assertEqual(self.machine.calls("cmake"), [])

    def test_a_status_is_that_of_the_tests(self):
        self.machine.add("ctest", f"case $1 in --help) printf '%s' '{CTEST_HELP}' ;; *) exit 8 ;; esac")
        self.run_it("test", status=8)

    def test_chosen_tests_build_what_they_run(self):
        build, tests = self.machine.tree / "build", []
        build.mkdir()
        (build / "build.ninja").touch()
        for program, labels in (("test_a", ["cpu"]), ("test_b", ["cpu"]), (None, ["docs"])):
            tests.append({"command": [str(build / program) if program else "/usr/bin/python3", "-x"], "properties": [{"name": "LABELS", "value": labels}]})
        self.machine.add("python3", f'exec {sys.executable} "$@"')
        for chosen, targets in ((tests[:2], "test_a test_b"), (tests[2:], "tree_attn_state"), (tests, "test_a test_b"), ([], "all"), (tests[:1] + [{"command": ["sh"], "properties": []}], "all")):
            self.machine.add("ctest", f"case \"$*\" in *--help*) printf '%s' '{CTEST_HELP}' ;; *--show-only*) echo '{json.dumps({'tests': chosen})}' ;; esac")
            self.run_it("test", "-R", "x")
            self.assertRegex(self.last("cmake"), f" --target {targets}$")
        self.run_it("test")
        self.assertRegex(self.last("cmake"), " --target all$")

    def test_fuzzers_run_for_the_seconds_that_were_asked_for(self):
        for words, seconds in (((), 60), (("1",), 1), (("999999",), 999999)):
            self.run_it("fuzz", *words)
            self.assertRegex(self.machine.calls("cmake")[-2], rf"-DTREE_ATTN_FUZZ_SECONDS={seconds}$")
        for word in ("0", "08", "1000000", "-1", "1.5", "x"):
            self.assertEqual(self.run_it("fuzz", word, status=2).stderr, f"run: fuzz accepts a number of seconds, not '{word}'\n")


if __name__ == "__main__":
    unittest.main()
