#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A notebook, which is a C++ file in jupytext's percent format, as a page of the docs with what each cell prints.

    // %% [markdown]     starts prose: comment lines, Markdown with mathematics between dollars
    // %%                starts code
    // %% Drawing        starts code that the page shows folded, under this title; its output is not folded
    A list of headers at the start of a cell is folded too.

Run: docs/tools/notebook.py --mark NOTEBOOK.cpp MARKED.cpp         the same program, printing a mark where a cell of code starts
     docs/tools/notebook.py --run PROGRAM PRINTED.txt              run the marked program and keep what it prints
     docs/tools/notebook.py --page NOTEBOOK.cpp PRINTED.txt PAGE.md  write the page, with what was printed last
     docs/tools/notebook.py --collect FOLDER TARGET                copy all pages and their figures to where Doxygen reads them

A cell is marked by its number among all cells, so that a page can be written again after its prose has changed.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

CELL = re.compile(r"^\s*// %%(?: (\[markdown\]|\w.*))?$")
MARK = "\x1eCELL "
SECONDS = 120
# As many headers, or more, at the start of a cell are folded.
HEADERS_TO_FOLD = 4


def cells(lines):
    """(kind, lines) of every cell: "[markdown]", the title of folded code, or None. Lines above the first cell are left out."""
    found = []
    for line in lines:
        if cell := CELL.match(line):
            found.append((cell[1], []))
        elif found:
            found[-1][1].append(line)
    return found


def mark(notebook, marked):
    """Prints a mark at every cell of code inside main(); earlier ones hold declarations and print nothing."""
    lines = notebook.read_text().splitlines()
    inside = False
    result = [f'#line 1 "{notebook}"']
    number = -1
    for line in lines:
        inside = inside or re.match(r"int main\(", line) is not None
        number += CELL.match(line) is not None
        if CELL.match(line) and "markdown" not in line and inside:
            line = f'std::fputs("\\x1e" "CELL {number}\\n", stdout);'
        result.append(line)
        inside = inside and line != "}"
    marked.write_text("\n".join(result) + "\n")


def run(program, target):
    result = subprocess.run([program], capture_output=True, text=True, timeout=SECONDS, check=False, cwd=target.parent)
    if result.returncode != 0:
        sys.exit(f"{program.name}: status {result.returncode}\n{result.stderr}")
    target.write_text(result.stdout)


def page(notebook, output, target):
    printed = {}
    for part in output.read_text().split(MARK)[1:]:
        number, _, text = part.partition("\n")
        printed[int(number)] = text.rstrip("\n")

    out = []

    def show(code, title=None):
        """Code without the blank lines around it; folded below a title."""
        code = code.strip("\n")
        indent = min((len(line) - len(line.lstrip()) for line in code.splitlines() if line.strip()), default=0)
        if code.strip():
            shown = ["", "```cpp", *(line[indent:] for line in code.splitlines()), "```", ""]
            out.extend(["", f"<details><summary>{title}</summary>", *shown, "</details>", ""] if title else shown)

    for number, (kind, lines) in enumerate(cells(notebook.read_text().splitlines())):
        if kind == "[markdown]":
            out += [re.sub(r"^\s*// ?", "", line) for line in lines]
            continue
        # A list of headers is folded; then the code, and what it printed.
        end = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#include ")), len(lines))
        if kind is None and sum(line.startswith("#include ") for line in lines[:end]) >= HEADERS_TO_FOLD:
            show("\n".join(lines[:end]), "Headers")
            lines = lines[end:]
        show("\n".join(lines), kind)
        if printed.get(number):
            out += ['<div class="printed">', "", "```", printed[number], "```", "", "</div>", ""]
    number = notebook.name.split("_")[0]
    out += ["", f"*This page is the program* `{notebook.name}` *of* `notebooks_cpp/`, *and what it printed when these pages were built.* "
            f"`./run notebook {number}` *builds and runs it.*"]
    target.write_text("\n".join(out) + "\n")


def collect(folder, target):
    for path in target.glob("notebook_*"):
        path.unlink()
    for path in sorted([*folder.glob("*/notebook_*.md"), *folder.glob("*/notebook_*.svg")]):
        shutil.copy(path, target)


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--mark":
        mark(Path(sys.argv[2]), Path(sys.argv[3]))
    elif len(sys.argv) == 4 and sys.argv[1] == "--run":
        run(Path(sys.argv[2]), Path(sys.argv[3]))
    elif len(sys.argv) == 5 and sys.argv[1] == "--page":
        page(Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
    elif len(sys.argv) == 4 and sys.argv[1] == "--collect":
        collect(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
