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
     docs/tools/notebook.py --readme FOLDER [--write]              what all printed as notebooks_cpp/README.md, for readers without a site;
                                                                   without --write, status 1 if it is another

A cell is marked by its number among all cells, so that a page can be written again after its prose has changed.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import book

README = book.DOCS.parent / "notebooks_cpp" / "README.md"
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


def printed_in(text):
    """{number of a notebook: what it prints}, of the text of README.md."""
    return {int(number): printed for number, printed in re.findall(r"^## \[(\d+)\. .*?^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)}


def readme(printed):
    """The text of README.md: title, purpose and output of every notebook."""
    known, pages = book.titles()
    files = {name: path for path, name in pages.items()}

    def link(match):
        path = files.get(match[1], "")
        return f"[{known[match[1]]}]({path.removeprefix('../notebooks_cpp/') if path.startswith('..') else f'../docs/{path}'})"

    out = ["# Notebooks", "", "Programs to read, run and change: `./run notebook 5` builds one and runs it. On the site each is a page, with what its parts print beside them.",
           "Their [exercises](exercises) are functions to write: `./run exercise 5.2`."]
    for number in sorted(printed):
        (path,) = README.parent.glob(f"{number}_*.cpp")
        text = re.sub(r"^// ?", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        title, purpose = re.search(r"^# Notebook \d+: (.*) \{#", text, re.MULTILINE)[1], re.search(r"\*\*What\s+you\s+get:\*\*\s(.*?)\n\n", text, re.DOTALL)[1]
        out += ["", f"## [{number}. {title}]({path.name})", "", "What you get: " + re.sub(r"@ref (\w+)", link, " ".join(purpose.split())), "",
                "<details><summary>What it prints</summary>", "", "```", *printed[number].rstrip("\n").split("\n"), "```", "", "</details>"]
    return "\n".join(out) + "\n"


def write_readme(folder, write):
    """Compares README.md with the output in a folder of a build, or writes it."""
    printed = {int(path.parent.name.split("_")[0]): re.sub(rf"^{MARK}\d+\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
               for path in folder.glob("[0-9]*_*/printed.txt")}
    if write:
        README.write_text(readme(printed), encoding="utf-8")
    elif README.read_text(encoding="utf-8") != readme(printed):
        sys.exit(f"notebooks_cpp/README.md is not what the notebooks print: docs/tools/notebook.py --readme {folder} --write")


def main():
    if sys.argv[1:2] == ["--readme"] and len(sys.argv) in (3, 4):
        return write_readme(Path(sys.argv[2]), sys.argv[3:] == ["--write"])
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
