#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs of the CUDA toolkit: where they are, and the disassembler from the registry for a toolkit without one.

install     where nvcc is found and cuobjdump is not, installs it in build-peers/toolkit/
self-test   checks that with programs that do nothing
"""

import os
import shutil
import subprocess
import sys
import tempfile
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


def self_test():
    """An environment whose pip installs two files, or fails."""
    global ENVIRONMENT
    with tempfile.TemporaryDirectory() as folder:
        ENVIRONMENT = Path(folder) / "toolkit"
        tools = Path(folder) / "bin"
        tools.mkdir()

        def add(name, text="exit 0"):
            (tools / name).write_text(f"#!/bin/sh\n{text}\n")
            (tools / name).chmod(0o755)
            return str(tools / name)

        os.environ.pop("TREE_ATTN_CUOBJDUMP", None)
        os.environ["PATH"] = "/usr/bin:/bin"
        os.environ["CUDACXX"] = add("nvcc")
        assert nvcc() == str(tools / "nvcc") and cuobjdump() is None
        # Without virtual environments, without a network, and with both.
        assert "python3-venv" in install(add("python", "exit 1")) and not ENVIRONMENT.exists()
        site = ENVIRONMENT / "lib" / "python3.99" / "site-packages" / "nvidia" / "cu99" / "bin"
        venv = f"mkdir -p {ENVIRONMENT}/bin && printf '#!/bin/sh\\n%s\\n' \"$PIP\" >{ENVIRONMENT}/bin/python && chmod +x {ENVIRONMENT}/bin/python"
        os.environ["PIP"] = "echo no network >&2; exit 1"
        assert install(add("python", venv)) == "no network"
        shutil.rmtree(ENVIRONMENT)
        os.environ["PIP"] = f"mkdir -p {site} && cp {tools}/nvcc {site}/cuobjdump"
        assert install(add("python", venv)) == "" and cuobjdump() == str(site / "cuobjdump")
        # One beside nvcc comes first, one that is named before that.
        beside = add("cuobjdump")
        assert cuobjdump() == beside
        os.environ["TREE_ATTN_CUOBJDUMP"] = add("another")
        assert cuobjdump() == str(tools / "another")
    print("toolkit: the self-test is well")


def main():
    if sys.argv[1:] == ["self-test"]:
        return self_test()
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
