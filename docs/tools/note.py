#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The errata as a note of its own, to print and to cite: made from the page of the book, with the tests that it names.

Run: docs/tools/note.py SITE    writes SITE/errata_note.html from SITE/errata.html; docs/tools/pdf.py --note prints it

tests/docs/test_finish.py tests this file.
"""
import html
import pathlib
import re
import sys

import pdf

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STYLE = """
:root { color-scheme: light; }
html { background: #fff; }
body { max-width: 190mm; margin: 8mm auto; padding: 0 4mm; font: 9pt/1.3 "Liberation Serif", "Times New Roman", serif; color: #000; }
header { text-align: center; margin-bottom: 3mm; }
header h1 { font-size: 13.5pt; line-height: 1.2; margin: 0 0 1.5mm 0; }
header p { margin: 0.5mm 0; text-align: center; }
main { columns: 2; column-gap: 6mm; }
h2 { font-size: 9.2pt; margin: 2mm 0 0.6mm 0; break-after: avoid; }
p { margin: 0 0 0.8mm 0; hyphens: auto; }
div.cited { font-size: 7pt; line-height: 1.2; color: #444; margin: 0 0 0.8mm 0; overflow-wrap: anywhere; }
p.formulaDsp { margin: 0.6mm 0; text-align: center; }
.MathJax_SVG_Display { margin: 0.4em 0 !important; }
.MathJax_SVG g { stroke: none; }
pre { font-size: 6.8pt; line-height: 1.2; margin: 0; white-space: pre-wrap; break-inside: avoid; }
a { color: inherit; text-decoration: none; }
@media screen and (max-width: 700px) { main { columns: 1; } }
@page { size: A4; margin: 13mm 12mm; }
@media print { body { margin: 0; padding: 0; max-width: none; } }
"""


def citation():
    """Version of the implementation and title of the paper, from CITATION.cff."""
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    version, titles = re.search(r"^version: (\S+)$", text, re.MULTILINE)[1], re.findall(r"^\s*title: \"(.*)\"$", text, re.MULTILINE)
    arxiv = re.search(r"arXiv:([\d.]+)", text)[1]
    return version, titles[-1], arxiv


def items(page):
    """Introduction, and [(number, title, text)] of the errata page."""
    title, text = pdf.contents(page)
    text = re.sub(r'<div class="toc">.*?</div>|<div class="neighbours">.*?</div>', "", text, flags=re.DOTALL)
    before, *parts = re.split(r"<h1>", text)
    introduction = re.findall(r"<p >(.*?)</p>", before, re.DOTALL)[0]
    found = []
    for part in parts:
        number, name, rest = re.fullmatch(r'.*?<a class="anchor" id="slip_(\d+)"></a>\s*\d+\. (.*?)</h1>(.*)', part, re.DOTALL).groups()
        cited = re.search(r'<div class="cited">Shown by: (.*?)</div>', rest, re.DOTALL)
        body = rest.replace(cited[0], "").replace("</div><!-- fragment -->", "").rstrip()
        # What closes the page after the last item is no part of it.
        while body.endswith("</div>"):
            body = body[: -len("</div>")].rstrip()
        found.append((int(number), name.strip(), body, cited[1]))
    return introduction, found


def bibtex(version, title, arxiv):
    return (f"@misc{{tree_attention_errata,\n  title  = {{Errata of ``{title}''}},\n  author = {{{{The developers of Tree Attention, the reference implementation}}}},\n"
            f"  note   = {{On version 4 of arXiv:{arxiv}. Note of version {version} of the implementation}}\n}}")


def note(page):
    """The page of the note. @throws ValueError if it has not as many items as the book"""
    version, title, arxiv = citation()
    introduction, found = items(page)
    if [number for number, *_ in found] != list(range(1, len(found) + 1)) or not found:
        raise ValueError(f"errata.html: the items are {[number for number, *_ in found]}")
    scripts = "".join(script for script in re.findall(r"<script.*?</script>", page.partition("</head>")[0], re.DOTALL) if "MathJax" in script)
    out = [f"<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
           f"<title>Errata of Tree Attention</title>{scripts}<style>{STYLE}</style></head><body>",
           f"<header><h1>Errata of “{html.escape(title)}”</h1><p>The developers of Tree Attention, the reference implementation</p>"
           f"<p>On version 4 of arXiv:{arxiv}. Note of version {version} of the implementation.</p></header><main>",
           f"<p>{introduction} Chapters in Roman numbers are those of the book of the implementation; tests are named by their titles.</p>"]
    for number, name, body, tests in found:
        out += [f'<h2 id="slip_{number}">{number}. {name}</h2>{body}<div class="cited">Shown by: {tests}</div>']
    out += [f"<h2>How to cite</h2><p>The developers of Tree Attention: <em>Errata of “{html.escape(title)}”</em>. Version {version}.</p>"
            f"<pre>{html.escape(bibtex(version, title, arxiv))}</pre></main></body></html>"]
    return pdf.relinked("\n".join(out), [])


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    site = pathlib.Path(sys.argv[1])
    (site / "errata_note.html").write_text(note((site / "errata.html").read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
