# SPDX-License-Identifier: Apache-2.0
"""PyTorch for `./run bench --peers`: as installed, or in a virtual environment of its own, build-peers/."""
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ENVIRONMENT = ROOT / "build-peers"
# Where it comes from, options of pip, and the free space that an installation takes at its height, in GB. The first is for
# CPUs only; the second, the default registry, brings the libraries of CUDA too.
SOURCES = [
    ("download.pytorch.org", ["--index-url", "https://download.pytorch.org/whl/cpu", "--timeout", "15", "--retries", "1"], 3),
    ("the default registry", [], 10),
]


def imports_torch(python):
    return subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0


def python_with_torch():
    """An interpreter that imports torch; installs it where there is none. @throws SystemExit with what is missing"""
    own = ENVIRONMENT / "bin" / "python"
    for python in (own, Path(sys.executable)):
        if python.exists() and imports_torch(python):
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
        command = [own, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", *options, "torch"]
        pip = subprocess.run(command, capture_output=True, text=True, check=False)
        if pip.returncode == 0 and imports_torch(own):
            return own
        faults.append(f"{name}: " + (pip.stderr.strip().splitlines() or ["what it has cannot be imported"])[-1])
    raise SystemExit("bench: no PyTorch for --peers: " + "; ".join(faults))
