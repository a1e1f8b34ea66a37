# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/on_a_card with programs that are made up: some end well, one fails, one hangs, one dies, one computes something wrong."""
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ON_A_CARD = Path(__file__).resolve().parent / "on_a_card"
SHAPE = {"part": "shape", "shape": "BF16, 16/16 heads, 512 keys", "lengths": [512]}
STEP = {"part": "step", "shape": SHAPE["shape"], "graph_seconds": 1e-5, "read_seconds": 1e-6}
WELL = {
    "test_gpu_cuda": """case "$*" in
        --list*) printf '[doctest] listing\\n===\\na, one\\nb\\nc\\n===\\n[doctest] 3 cases\\n' ;;
        --first=2*) echo '{this is no JSON'; exit 1 ;;
        --first=3*) echo before; sleep 60 ;;
        esac""",
    "time_ladder": f"""echo '{json.dumps(SHAPE)}'
        case "$*" in *fused*) kill -SEGV $$ ;; *naive*) echo '{json.dumps(STEP | {"step": "naive", "note": "WRONG: off by 1"})}' ;;
        *) echo '{json.dumps(STEP)}' ;; esac""",
    "exchange_on_parts_cuda": """echo '{"part": "bits", "parts": 2, "wrong": 1}'""",
}


def run(folder, command, *options):
    out = folder / "out"
    ended = subprocess.run([sys.executable, ON_A_CARD, command, "--programs", folder, "--out", out, *options], capture_output=True, text=True, check=False, timeout=60)
    lines = [json.loads(line) for line in (out / f"{command}.jsonl").read_text(encoding="utf-8").splitlines()]
    return ended, lines, {line["name"]: line for line in lines if line["part"] == "experiment"}


def pack(folder, programs):
    (folder / "source.txt").write_text(f"{folder}/nowhere/source\n", encoding="utf-8")
    with tarfile.open(folder / "programs.tar.xz", "w:xz") as tar:
        for name, text in programs.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
            (folder / name).chmod(0o755)
            tar.add(folder / name, name)
            (folder / name).unlink()


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    pack(folder, WELL)
    ended, lines, found = run(folder, "right", "--seconds", "4")
    assert ended.returncode == 1 and "something is wrong" in ended.stdout, ended
    assert (folder / "nowhere" / "source" / "README.md").exists()
    assert found["case 1: a, one"]["status"] == 0
    assert found["case 2: b"]["status"] == 1 and found["case 2: b"]["said"] == ["{this is no JSON"]
    assert "no end within" in found["case 3: c"]["status"] and found["case 3: c"]["said"] == ["before"]
    # The hanging case has used up the time: what comes after it is left out, and said to be.
    assert all("left out" in line["status"] for name, line in found.items() if name.startswith(("memcheck", "ladder")))
    assert "No such file" in found["copies"]["status"]

    ended, lines, found = run(folder, "fast", "--seconds", "20")
    assert ended.returncode == 1
    assert found["ladder fused"]["status"] == -11 and found["ladder split"]["status"] == 0
    # Lines that a program printed stand before that of its end; a wrong result is no status of the program.
    at = [line.get("name") for line in lines].index("ladder naive")
    assert lines[at - 1]["note"] == "WRONG: off by 1" and found["ladder naive"]["status"] == 0 and "WRONG" in ended.stdout

    ended, lines, found = run(folder, "together", "--seconds", "20")
    assert ended.returncode == 1 and found["two parts"]["status"] == 0 and "two parts: 0 in" in ended.stdout
print("on_a_card: the record has every experiment")
