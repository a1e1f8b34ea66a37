#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures of the chapters as files of the tree, docs/figures/, with colours of their own, and the tables and excerpts of code that
chapters request, as text between markers: so they show where no site is built. Of a figure that readers change there is a still, if node is found.

Run: docs/tools/plain_figures.py GENERATED           a line for each one that the build makes otherwise, and status 1
     docs/tools/plain_figures.py GENERATED --write   writes them; GENERATED is build-docs/docs/generated
     docs/tools/plain_figures.py --write             writes excerpts, and tables that need no build

The site makes each of them itself, figures in the colours of the page (docs/tools/filter.py). In a page a fenced block "cpp FILE" or
"table NAME", and a figure NAME.html, is a request too, which --write replaces.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import book
import index
import kernel_tables
import live
import network

REQUEST = re.compile(r"^```(cpp|table) (\S+)\n((?:.*\n)*?)```$", re.MULTILINE)
DOCS = pathlib.Path(__file__).resolve().parent.parent
STILL = re.compile(r"^!\[(.*)\]\((\w+)\.html\)$", re.MULTILINE)
LINK = re.compile(r"\]\(figures/(\w+\.svg)\)")
COLOURS = {"page-secondary-foreground-color": "#5b5b5b", "page-foreground-color": "#222222", "separator-color": "#d0d0d0", "side-nav-background": "#f6f6f6",
           "page-background-color": "#ffffff", "font-family": "sans-serif"}


def style(name=""):
    """The rules of docs/book.css for figures, and for that of this name, with light colours in the place of those of a page."""
    places = rf"(?:figure\.drawn|#{name})" if name else r"figure\.drawn"
    rules = re.findall(rf"{places} ((?:text|\.)[^{{]*\{{[^}}]*\}})", (DOCS / "book.css").read_text(encoding="utf-8"))
    return re.sub(r"var\(--([\w-]+)\)", lambda m: COLOURS[m[1]], " ".join(" ".join(rule.split()) for rule in rules))


def standalone(text, name=""):
    """A figure with its style and a white ground."""
    head, rest = re.match(r"(<svg[^>]*>)(.*)", text, re.DOTALL).groups()
    return f'{head}<style>{style(name)}</style><rect width="100%" height="100%" fill="#ffffff"/>{rest}'


def still(name):
    """The first drawing of a figure that readers change, by node."""
    variable, facts = live.shown(name, json.loads((DOCS / f"{name}.json").read_text(encoding="utf-8")))
    drawn = subprocess.run(["node", DOCS / "tools" / "still.js", DOCS / f"{name}.js"], input=f"const {variable} = {json.dumps(facts)};", capture_output=True, text=True, check=True)
    return standalone(drawn.stdout, name)


def named():
    return sorted({name for path in DOCS.glob("*.md") for name in LINK.findall(path.read_text(encoding="utf-8"))})


def excerpt(file, lines):
    """A link to a file, and the code that a request names in a fenced block; a whole file is behind its link."""
    code = "\n\n".join("\n".join(index.excerpt(file, line)).strip("\n") for line in lines if line.strip())
    link = f"[`{file}`](../{file})"
    return f"{link}\n\n```cpp\n{code}\n```" if code else link


def page_of(name):
    """The page of the site that has a figure which readers change."""
    return next((f"{book.titles()[1][path.name]}.html#{name}" for path in sorted(DOCS.glob("*.md")) if f"live: begin {name}\n" in path.read_text(encoding="utf-8")), "")


def made(kind, name, lines):
    """(text, whether it can be made here): of some tables only a build has the facts."""
    if kind == "excerpt":
        return excerpt(name, lines), True
    if kind == "live":
        caption = " ".join(lines)
        return f"![{caption}](figures/{name}.svg)\n\n*A still: {book.on_the_site('this figure can be changed', page_of(name))}.*", True
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

    text = STILL.sub(lambda m: f"<!-- live: begin {m[2]}\n{m[1]}\n-->\n<!-- live: end -->", REQUEST.sub(requested, text))
    return book.SHOWN.sub(block, text)


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
        if (DOCS / f"{pathlib.Path(name).stem}.js").exists():
            if not shutil.which("node"):
                continue
            text = still(pathlib.Path(name).stem)
        elif not (generated / name).is_file():
            faults.append(f"docs/figures/{name} is not drawn yet: ./run docs draws it")
            continue
        else:
            text = standalone((generated / name).read_text(encoding="utf-8"))
        path = folder / name
        if write:
            folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            faults.append(f"docs/figures/{name} is not what the build draws: docs/tools/plain_figures.py {generated} --write")
    return faults


if __name__ == "__main__":
    sys.exit(main())
