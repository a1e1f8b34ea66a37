#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bits of a decode are the same on an Arm processor: decode_digest, compiled for aarch64, is run by an emulator.

Run: test_aarch64.py SOURCE_FOLDER NATIVE_DECODE_DIGEST
Skipped without a compiler for aarch64 and qemu (Debian: g++-aarch64-linux-gnu, qemu-user).
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

COMPILER, EMULATOR, LIBRARIES = "aarch64-linux-gnu-g++", "qemu-aarch64", "/usr/aarch64-linux-gnu"


def digests(*command):
    """Returns what decode_digest prints."""
    return subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True).stdout


def main():
    source, native = (pathlib.Path(word) for word in sys.argv[1:])
    for program in (COMPILER, EMULATOR):
        if shutil.which(program) is None:
            print(f"skipped: no {program}")
            return 77
    with tempfile.TemporaryDirectory() as build:
        for command in (["cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={COMPILER}", "-DCMAKE_SYSTEM_NAME=Linux",
                         "-DCMAKE_SYSTEM_PROCESSOR=aarch64", "-DTREE_ATTN_WITH_CUDA=OFF"],
                        ["cmake", "--build", build, "--target", "decode_digest"]):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if done.returncode:
                print(done.stdout)
                return 1
        here, there = digests(native), digests(EMULATOR, "-L", LIBRARIES, pathlib.Path(build, "decode_digest"))
    print(f"here:\n{here}\naarch64:\n{there}")
    return int("tiny values" not in here or here != there)


if __name__ == "__main__":
    sys.exit(main())
