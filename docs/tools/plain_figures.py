#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures of the chapters as files of the tree, docs/figures/, with colours of their own: so they show where no site is built.

Run: docs/tools/plain_figures.py GENERATED           a line for each one that the build draws otherwise
     docs/tools/plain_figures.py GENERATED --write   writes them; GENERATED is build-docs/docs/generated

The site draws each figure itself, in the colours of the page (docs/tools/filter.py).
"""
import pathlib
import re
import sys

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


def main():
    generated, folder = pathlib.Path(sys.argv[1]), DOCS / "figures"
    for name in named():
        if not (generated / name).is_file():
            print(f"docs/figures/{name} is not drawn yet: ./run docs draws it")
            continue
        text, path = standalone((generated / name).read_text(encoding="utf-8")), folder / name
        if "--write" in sys.argv:
            folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"docs/figures/{name} is not what the build draws: docs/tools/plain_figures.py {generated} --write")


if __name__ == "__main__":
    main()
