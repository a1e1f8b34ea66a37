#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""On a machine with nvcc and without Boost, all is configured that `./run bench --backend cuda` and a card take; the emulator is left out.

Run: tests/gpu/without_boost.py NINJA SOURCE [CMake options..]
"""
import subprocess
import sys
import tempfile

WANTED = {"exchange_on_parts_cuda", "time_ladder", "tree_attn"}
UNWANTED = {"exchange_on_parts", "test_gpu"}
BACKENDS = "gpu/CMakeFiles/tree_attn_backends.dir/backend/backends.cpp.o"


def output(*command):
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"without_boost: {' '.join(command)} failed:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    return ended.stdout


def main():
    ninja, source, *options = sys.argv[1:]
    with tempfile.TemporaryDirectory() as build:
        output("cmake", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DTREE_ATTN_WITH_CUDA=ON",
               "-DTREE_ATTN_REQUIRE=program;tests", "-DCMAKE_DISABLE_FIND_PACKAGE_Boost=ON", *options)
        targets = {line.split(":")[0] for line in output(ninja, "-C", build, "-t", "targets", "all").splitlines()}
        if missing := WANTED - targets:
            sys.exit(f"without_boost: no target {', '.join(sorted(missing))}")
        if left := UNWANTED & targets:
            sys.exit(f"without_boost: {', '.join(sorted(left))} needs the emulator")
        output("cmake", "--build", build, "--target", BACKENDS)


if __name__ == "__main__":
    main()
