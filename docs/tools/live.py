#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The parts of pages that scripts draw and that a reader can change: their facts, inside what docs/NAME.js draws into.

Run: docs/tools/live.py NAME FACTS.json PAGE.html    NAME is cut_the_tree or my_cluster. FACTS.json is what docs/tools/cut_tree.cpp or
                                                     docs/tools/my_cluster.cpp has written, and must be docs/NAME.json

With cut_the_tree goes docs/tools/layouts.cpp as WebAssembly, where clang, lld, wasi-libc, libc++-dev-wasm32 and libclang-rt-dev-wasm32 are.
"""
import base64
import functools
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import network

DOCS = pathlib.Path(__file__).resolve().parent.parent


def cut_the_tree(facts):
    return "cutTheTreeFacts", {key: facts[key] for key in ("state_size", "keys")}


def paper_points(table):
    """Tables 1 and 2 of the paper: the seconds of a prefill and ten tokens, over the layers and the tokens."""
    n_layers, measured = network.LLAMAS[table][2], network.LLAMAS[table][-1]
    return [{"keys": keys, "us": seconds * 1e6 / (10 * n_layers), "kind": kind, "label": f"{name}, {keys // 1000}k keys"}
            for keys, pair in measured.items() for (seconds, _), kind, name in zip(pair, ("b", "d"), ("tree", "ring"))]


def presets():
    """Clusters of the paper with what it measured on them, and two others."""
    h100 = {"batch": 1, "headDim": 128, "elementBytes": 2, "dealt": 0, "inside": 450, "insideUs": 1.5, "between": 50, "betweenUs": 3, "overhead": 0,
            "memory": 3000, "perNode": 8, "heads": 16, "kvHeads": 16}
    upper = ["Tables of the paper: tree and ring, seconds per token and layer,", "with the prefill and all of the model: an upper bound"]
    return [
        {"name": "128 H100, Fig. 3", "values": h100 | {"keys": 5_120_000, "ranks": 128},
         "points": [{"keys": 5_120_000, "ringOver": 8, "kind": "b", "label": "an eighth of the ring"}],
         "note": ["the paper's factor, Fig. 3(a): an eighth of the ring", "at 5.12M keys"]},
        {"name": "8 H100, Table 1", "values": h100 | {"keys": 160_000, "ranks": 8, "heads": 32, "kvHeads": 8}, "points": paper_points("table_1"), "note": upper},
        {"name": "2 RTX 4090, Table 2", "values": h100 | {"keys": 20_000, "ranks": 2, "perNode": 2, "heads": 32, "kvHeads": 8, "headDim": 64, "inside": 25,
                                                            "insideUs": 10, "memory": 1008}, "points": paper_points("table_2"), "note": upper},
        {"name": "72 GPUs in one node", "values": h100 | {"keys": 1_280_000, "ranks": 72, "perNode": 72, "inside": 900, "insideUs": 1.5, "memory": 6000, "heads": 64, "kvHeads": 8},
         "points": [], "note": []},
        {"name": "4 servers on 10 GbE", "values": h100 | {"keys": 160_000, "ranks": 4, "perNode": 1, "between": 1.25, "betweenUs": 20, "overhead": 1, "memory": 200, "heads": 32, "kvHeads": 8},
         "points": [], "note": []},
    ]


def my_cluster(_):
    return "myClusterFacts", {"presets": presets()}


def shown(name, facts):
    """(variable, value) that the script of a figure reads."""
    return {"cut_the_tree": cut_the_tree, "my_cluster": my_cluster}[name](facts)


@functools.cache
def program():
    """The bytes of docs/tools/layouts.cpp for a browser, or None where packages are missing. Other failures end with what the compiler says."""
    if not shutil.which("clang++"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        out, trial = pathlib.Path(folder, "layouts.wasm"), pathlib.Path(folder, "trial.cpp")
        trial.write_text("#include <vector>\nint main() { return static_cast<int>(std::vector<int>(3).size()); }\n", encoding="utf-8")
        # What would throw traps: there are no exceptions. Without them the C++ library still has system calls, to print.
        command = ["clang++", "--target=wasm32-wasi", "-std=c++20", "-O2", "-stdlib=libc++", "-ffp-contract=off", "-fno-rtti",
                   "-fignore-exceptions", "-mexec-model=reactor", "-Wl,--strip-all", "-o", out, "-I", DOCS.parent]
        if subprocess.run([*command, trial], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode:
            return None
        subprocess.run([*command, DOCS / "tools" / "layouts.cpp", DOCS.parent / "reference" / "tensor" / "convert.cpp"], check=True)
        return out.read_bytes()


def snippet(name, facts):
    variable, value = shown(name, facts)
    if name == "cut_the_tree" and program():
        value["program"] = base64.b64encode(program()).decode()
    return (f'<div id="{name}">This figure is drawn by a script.</div>\n<script>const {variable} = {json.dumps(value)};</script>\n'
            f'<script src="{name}.js"></script>\n')


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    name, found_path, page = sys.argv[1:]
    found, kept = (json.loads(pathlib.Path(path).read_text(encoding="utf-8")) for path in (found_path, DOCS / f"{name}.json"))
    if found != kept:
        sys.exit(f"docs/tools/live.py: error: {found_path} differs from docs/{name}.json: copy it there")
    pathlib.Path(page).write_text(snippet(name, kept), encoding="utf-8")


if __name__ == "__main__":
    main()
