#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""./run on machines where packages are missing: what is there in another way is taken, and nothing else goes unsaid.

A machine is a folder of programs that do nothing. The command is mostly `./run bench --backend cuda`, in a copy of the source tree of two files.
"""
import os
import shutil
import subprocess
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
        measure = self.tree / "tests" / "gpu" / "time_ladder" / "measure"
        measure.parent.mkdir(parents=True)
        shutil.copy(ROOT / "run", self.tree / "run")
        measure.write_text('#!/bin/sh\necho "measured $*"\n')
        measure.chmod(0o755)

    def add(self, name, text):
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


if __name__ == "__main__":
    unittest.main()
