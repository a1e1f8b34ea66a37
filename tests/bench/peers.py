# SPDX-License-Identifier: Apache-2.0
"""PyTorch and llama.cpp for `./run bench --peers`: as installed, or in a virtual environment of their own, build-peers/."""
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
ENVIRONMENT = ROOT / "build-peers"
# Where it comes from, options of pip, and the free space that an installation takes at its height, in GB. The first is for
# CPUs only; the second, the default registry, brings the libraries of CUDA too.
SOURCES = [
    ("download.pytorch.org", ["--index-url", "https://download.pytorch.org/whl/cpu", "--timeout", "15", "--retries", "1"], 3),
    ("the default registry", [], 10),
]


def imports(python, module):
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def install(python, package, *options):
    """Returns what is wrong afterwards, in one line; nothing if all is well."""
    command = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", *options, package]
    pip = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if pip.returncode == 0 else (pip.stderr.strip().splitlines() or ["pip failed"])[-1]


def commands():
    """{name: command} of the programs that time them. llama.cpp's kernels come as a source package, which takes CMake and minutes; where they do not
    install they are left out, with the reason."""
    python = python_with_torch()
    found = {"PyTorch": [python, FOLDER / "baseline_torch.py"]}
    fault = ""
    if not imports(python, "ggml"):
        print(f"Compiling ggml for {python} ...", file=sys.stderr)
        fault = install(python, "ggml-python")
    if not fault and imports(python, "ggml"):
        return found | {"llama.cpp": [python, FOLDER / "baseline_ggml.py"]}
    print(f"bench: llama.cpp is left out: {fault or 'ggml cannot be imported'}", file=sys.stderr)
    return found


def python_with_torch():
    """An interpreter that imports torch; installs it where there is none. @throws SystemExit with what is missing"""
    own = ENVIRONMENT / "bin" / "python"
    for python in (own, Path(sys.executable)):
        if python.exists() and imports(python, "torch"):
            return python

    faults = []
    if not own.exists() and subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], capture_output=True, check=False).returncode != 0:
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        raise SystemExit("bench: --peers needs virtual environments of Python: apt-get install python3-venv")
    for name, options, gigabytes in SOURCES:
        free = shutil.disk_usage(ENVIRONMENT).free / 1e9
        if free < gigabytes:
            faults.append(f"from {name} it takes {gigabytes} GB in {ENVIRONMENT.name}/, {free:.0f} GB are free")
            continue
        print(f"Installing PyTorch from {name} in {ENVIRONMENT.name}/ ...", file=sys.stderr)
        fault = install(own, "torch", *options)
        if not fault and imports(own, "torch"):
            return own
        faults.append(f"{name}: {fault or 'what it has cannot be imported'}")
    raise SystemExit("bench: no PyTorch for --peers: " + "; ".join(faults))
