#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The book as one PDF, from the pages of a built site: chapters and notebooks in their order, printed by headless Chromium.

Run: docs/tools/pdf.py SITE BOOK.pdf
     docs/tools/pdf.py --note SITE ERRATA.pdf    prints the note of docs/tools/note.py

Links between chapters lead inside the PDF; links to code keep their words alone. tests/docs/test_finish.py tests this file.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from book import read

CHAPTERS = pathlib.Path(__file__).resolve().parent.parent
STYLE = """
html, body { background: #fff !important; color: #000; height: auto !important; overflow: visible !important; --code-font-size: 8.5px; --fragment-lineheight: 11px; }
body { font-size: 10.5px; --content-line-height: 15px; --table-line-height: 13px; }
section.page { break-before: page; }
div.contents, div.textblock { display: block !important; max-width: none !important; margin: 0; padding: 0; }
div.toc, div.neighbours, div.ttc, doxygen-awesome-fragment-copy-button { display: none !important; }
div.contents p, div.contents li { line-height: 15px !important; }
div.fragment { overflow: visible !important; break-inside: auto; }
div.line { white-space: pre-wrap; }
.MathJax_SVG g { stroke: none; }
h1, h2, h3 { break-after: avoid; }
figure, p.formulaDsp, tr { break-inside: avoid; }
div.contents table, div.contents td, div.contents th { font-size: 11px !important; }
div.contents table.markdownTable td, div.contents table.markdownTable th { padding: 3px 8px; }
div.contents p code, div.contents li code, div.contents td code { font-size: 11px; }
@page { size: A4; margin: 18mm 16mm; }
"""
# A figure that a script draws: docs/tools/live.py.
LIVE = re.compile(r'<div id="(\w+)">This figure is drawn by a script\.</div>\s*<script>.*?</script>\s*<script src="\1\.js"></script>', re.DOTALL)


def order():
    """Names of the pages of the book: the first page, and below each page those that it leads to."""
    texts = {}
    for path in CHAPTERS.glob("*.md"):
        text = read(path)
        texts |= {name: text for name in re.findall(r"^# .*\{#(\w+)\}", text, re.MULTILINE)}

    def below(text):
        for name in re.findall(r"@subpage (\w+)", text):
            yield name
            yield from below(texts.get(name, ""))

    return ["index", *below(read(CHAPTERS / "mainpage.md"))]


def contents(text):
    """Title and text of a page."""
    title = re.search(r'<div class="title">(.*?)</div>', text, re.DOTALL)[1].strip()
    return title, text[text.index('<div class="contents">') : text.index("</div><!-- contents -->")] + "</div>"


def relinked(text, pages):
    """Links to pages of the book lead to their place in the one page, links to anything else on the site are words."""

    def link(match):
        target, _, anchor = match[1].partition("#")
        if match[1].startswith(("http:", "https:", "#")):
            return match[0]
        if target.removesuffix(".html") in pages:
            return f'href="#{anchor or "page_" + target.removesuffix(".html")}"'
        return ""

    return re.sub(r'href="([^"]*)"', link, text)


def book(site, names):
    """The pages as one. Tests and repeated code stay folded, answers are open."""
    texts = {name: (site / f"{name}.html").read_text(encoding="utf-8") for name in names}
    head = re.search(r"<head>(.*?)</head>", texts[names[0]], re.DOTALL)[1]
    # Of the scripts of the site only the mathematics is needed.
    scripts = "".join(script for script in re.findall(r"<script.*?</script>", head, re.DOTALL) if "MathJax" in script)
    head = re.sub(r"<script.*?</script>", "", head, flags=re.DOTALL)
    out = [f"<!DOCTYPE html><html class='light-mode'><head>{head}{scripts}<style>{STYLE}</style></head><body>"]
    for name, text in texts.items():
        title, body = contents(text)
        body = re.sub(r"<details>", "<details open>", relinked(body, names))
        if name == names[0]:
            # What the first page borrows from a chapter has one place in a document.
            body = LIVE.sub("", body)
        out.append(f'<section class="page" id="page_{name}"><h1>{title}</h1>{body}</section>')
    return "\n".join([*out, "</body></html>"])


def print_page(page, target):
    """Prints a page of a site by Chromium."""
    chromium = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
    if chromium is None:
        sys.exit("pdf.py: there is no Chromium. Install with: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        result = subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--no-pdf-header-footer",
                                 "--virtual-time-budget=1000000", f"--print-to-pdf={target}", page.as_uri()],
                                capture_output=True, text=True, timeout=900, check=False)
    if result.returncode != 0 or not target.is_file():
        sys.exit(f"pdf.py: Chromium printed nothing:\n{result.stderr[-1000:]}")


def main():
    arguments = [name for name in sys.argv[1:] if name != "--note"]
    if len(arguments) != 2:
        sys.exit(__doc__)
    site, target = (pathlib.Path(name).resolve() for name in arguments)
    if "--note" in sys.argv:
        print_page(site / "errata_note.html", target)
        return
    # Beside the other pages, for their figures and scripts.
    page = site / "whole_book.html"
    page.write_text(book(site, order()), encoding="utf-8")
    try:
        print_page(page, target)
    finally:
        page.unlink()


if __name__ == "__main__":
    main()
