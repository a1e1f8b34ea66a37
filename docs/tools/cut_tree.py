#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figure of the tree whose cuts can be moved: its facts, inside the page that docs/cut_the_tree.js draws into.

Run: docs/tools/cut_tree.py FACTS.json PAGE.html    FACTS.json is what docs/tools/cut_tree.cpp has written, and must be docs/cut_the_tree.json
"""
import json
import pathlib
import sys

FACTS = pathlib.Path(__file__).resolve().parent.parent / "cut_the_tree.json"


def snippet(facts):
    shown = {key: facts[key] for key in ("state_size", "keys")}
    return (f'<div id="cut_the_tree">This figure is drawn by a script.</div>\n<script>const cutTheTreeFacts = {json.dumps(shown)};</script>\n'
            f'<script src="cut_the_tree.js"></script>\n')


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    found, kept = (json.loads(pathlib.Path(path).read_text(encoding="utf-8")) for path in (sys.argv[1], FACTS))
    if found != kept:
        sys.exit(f"docs/tools/cut_tree.py: error: {sys.argv[1]} differs from docs/cut_the_tree.json: copy it there")
    pathlib.Path(sys.argv[2]).write_text(snippet(kept), encoding="utf-8")


if __name__ == "__main__":
    main()
