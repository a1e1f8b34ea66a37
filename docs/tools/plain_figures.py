#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures of the chapters as files of the tree, docs/figures/, with colours of their own, and the tables and excerpts of code that
chapters request, as text between markers: so they show where no site is built.

Run: docs/tools/plain_figures.py GENERATED           a line for each one that the build makes otherwise, and status 1
     docs/tools/plain_figures.py GENERATED --write   writes them; GENERATED is build-docs/docs/generated
     docs/tools/plain_figures.py --write             writes excerpts, and tables that need no build

The site makes each of them itself, figures in the colours of the page (docs/tools/filter.py). In a page a fenced block "cpp FILE" or
"table NAME" is a request too, which --write replaces.
"""
import os
import pathlib
import re
import sys

import book
import index
import kernel_tables
import network

REQUEST = re.compile(r"^```(cpp|table) (\S+)\n((?:.*\n)*?)```$", re.MULTILINE)
DOCS = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(figures/(\w+\.svg)\)")
COLOURS = {"page-secondary-foreground-color": "#5b5b5b", "page-foreground-color": "#222222", "separator-color": "#d0d0d0", "side-nav-background": "#f6f6f6",
           "page-background-color": "#ffffff", "font-family": "sans-serif"}


def style():
    """The rules of docs/book.css for figures, with light colours in the place of those of a page."""
    rules = re.findall(r"figure\.drawn ((?:text|\.)[^{]*\{[^}]*\})", (DOCS / "book.css").read_text(encoding="utf-8"))
    return re.sub(r"var\(--([\w-]+)\)", lambda m: COLOURS[m[1]], " ".join(" ".join(rule.split()) for rule in rules))


def standalone(text):
    """A figure with its style and a white ground."""
    head, rest = re.match(r"(<svg[^>]*>)(.*)", text, re.DOTALL).groups()
    return f'{head}<style>{style()}</style><rect width="100%" height="100%" fill="#ffffff"/>{rest}'


def named():
    return sorted({name for path in DOCS.glob("*.md") for name in LINK.findall(path.read_text(encoding="utf-8"))})


def excerpt(file, lines):
    """A link to a file, and the code that a request names in a fenced block; a whole file is behind its link."""
    code = "\n\n".join("\n".join(index.excerpt(file, line)).strip("\n") for line in lines if line.strip())
    link = f"[`{file}`](../{file})"
    return f"{link}\n\n```cpp\n{code}\n```" if code else link


def made(kind, name, lines):
    """(text, whether it can be made here): of some tables only a build has the facts."""
    if kind == "excerpt":
        return excerpt(name, lines), True
    rows = kernel_tables.TABLES[name]()
    needs_build = rows in (network.missing(), kernel_tables.not_asked())
    return "\n".join(rows).strip("\n"), not needs_build


def shown(text):
    """A page with every request followed by what it asks for; what cannot be made here stays as it is."""
    def block(match):
        kind, name, lines = match[1], match[2], match[3]
        new, can = made(kind, name, lines.splitlines())
        if not can:
            return match[0]
        return f"<!-- {kind}: begin {name}\n{lines}-->\n{new}\n<!-- {kind}: end -->"

    def requested(match):
        if match[1] == "cpp" and not index.EXCERPT.match(f"```cpp {match[2]}"):
            return match[0]
        kind = "excerpt" if match[1] == "cpp" else "table"
        return f"<!-- {kind}: begin {match[2]}\n{match[3]}-->\n<!-- {kind}: end -->"

    return book.SHOWN.sub(block, REQUEST.sub(requested, text))


def pages():
    """Pages whose text would change, with that text."""
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if (new := shown(text)) != text:
            yield path, new


def main():
    write, arguments = "--write" in sys.argv, [argument for argument in sys.argv[1:] if argument != "--write"]
    faults = []
    if arguments:
        generated = pathlib.Path(arguments[0]).resolve()
        os.environ |= {"TREE_ATTN_DOCS_HOLDERS": str(generated / "holders.json"), "TREE_ATTN_DOCS_SCHEDULES": str(generated / "schedules.json")}
        faults += figures(generated, write)
    for path, new in pages():
        if write:
            path.write_text(new, encoding="utf-8")
        else:
            faults.append(f"{path.relative_to(DOCS.parent)} shows other tables or excerpts: docs/tools/plain_figures.py {' '.join(arguments)} --write")
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults and not write else 0


def figures(generated, write):
    """Writes the figures, or returns what is to be said of them."""
    folder, faults = DOCS / "figures", []
    for name in named():
        if not (generated / name).is_file():
            faults.append(f"docs/figures/{name} is not drawn yet: ./run docs draws it")
            continue
        text, path = standalone((generated / name).read_text(encoding="utf-8")), folder / name
        if write:
            folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            faults.append(f"docs/figures/{name} is not what the build draws: docs/tools/plain_figures.py {generated} --write")
    return faults


if __name__ == "__main__":
    sys.exit(main())
