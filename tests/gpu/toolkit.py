#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs of the CUDA toolkit: where they are, and the disassembler from the registry for a toolkit without one.

install     where nvcc is found and cuobjdump is not, installs it in build-peers/toolkit/
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = Path(__file__).resolve().parent.parent.parent / "build-peers" / "toolkit"
# The first calls the second. They read the code of any nvcc that is not newer.
PACKAGES = ["nvidia-cuda-cuobjdump", "nvidia-cuda-nvdisasm"]


def nvcc():
    """The compiler, where gpu/platform/cuda/find.cmake looks, or None."""
    folders = [os.environ[name] + "/bin" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    tools = [os.environ.get("CUDACXX"), "nvcc", *(f"{folder}/nvcc" for folder in [*folders, "/usr/local/cuda/bin"])]
    return next((found for tool in tools if tool and (found := shutil.which(tool))), None)


def program(name):
    """Another program of the toolkit: beside nvcc, in the PATH, or installed here; or None."""
    beside = Path(nvcc()).resolve().parent / name if nvcc() else name
    installed = sorted(ENVIRONMENT.glob(f"lib/python3*/site-packages/nvidia/*/bin/{name}"))
    return next((found for tool in [beside, name, *installed] if (found := shutil.which(str(tool)))), None)


def cuobjdump():
    """The program, or None. TREE_ATTN_CUOBJDUMP names another."""
    return shutil.which(os.environ.get("TREE_ATTN_CUOBJDUMP") or "") or program("cuobjdump")


def install(python=sys.executable):
    """Why there is no cuobjdump here; empty if there is one, or no nvcc whose code it would print."""
    if nvcc() is None or cuobjdump():
        return ""
    own = ENVIRONMENT / "bin" / "python"
    if not own.exists() and subprocess.run([python, "-m", "venv", ENVIRONMENT], capture_output=True, check=False).returncode != 0:
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        return "no virtual environments of Python here: apt-get install python3-venv"
    pip = subprocess.run([own, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", "--only-binary=:all:",
                          "--timeout", "15", "--retries", "1", *PACKAGES], capture_output=True, text=True, check=False)
    return "" if cuobjdump() else (pip.stderr.strip().splitlines() or ["what was installed has no cuobjdump"])[-1]


def main():
    if sys.argv[1:] != ["install"]:
        print(__doc__, file=sys.stderr)
        return 2
    if nvcc() and not cuobjdump():
        print("Installing cuobjdump in build-peers/toolkit/ ...", file=sys.stderr)
    if why := install():
        print(f"toolkit: no cuobjdump, so that instructions are not counted: {why}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
