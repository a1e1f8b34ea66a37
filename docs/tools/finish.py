#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes to a built site that Doxygen leaves to be done.

Run: docs/tools/finish.py FOLDER    writes search/text.js, the sections of the book for docs/book.js; and in listings of code makes
                                  citations of the paper links to the derivations

tests/docs/test_finish.py tests this file.
"""
import html
import html.parser
import json
import pathlib
import re
import sys

from index import CITATION, ITEMS

MENTION = re.compile(r"\b(eqs?\.\s\((\w+)\)|(Alg|Thm|Obs)\.\s(\d+)|(slip)\s(\d+))")
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
# Parts of a page that are not its text: code and tests beside formulas, the table of contents, tooltips, drawings.
LEFT_OUT = {"beside", "toc", "ttc", "neighbours", "cited"}


def words_of(tex):
    """A formula as words that one would search for: \\zeta is zeta, braces and signs of TeX are gone."""
    tex = re.sub(r"\\(?:mathrm|operatorname|text|displaystyle|left|right|tag|quad|qquad)\b", " ", tex)
    return re.sub(r"\s+", " ", re.sub(r"[{}\\&]", " ", tex)).strip()


class Sections(html.parser.HTMLParser):
    """The text of one page by its headings: [[anchor, title of the section, text]]."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.title, self.sections, self.anchors = "", [["", "", ""]], set()
        self.stack, self.heading = [], False
        self.feed(text)

    def inside(self, *kinds):
        return any(kind in kinds for _, kinds_of in self.stack for kind in kinds_of)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if attrs.get("id"):
            self.anchors.add(attrs["id"])
        if tag not in VOID:
            self.stack.append((tag, set((attrs.get("class") or "").split()) | ({tag} if tag in ("script", "style", "svg") else set())))
        if not self.inside("textblock") or self.inside(*LEFT_OUT):
            return
        if tag in ("h1", "h2", "h3", "h4"):
            self.heading = True
            self.sections.append(["", "", ""])
        if self.heading and tag == "a" and attrs.get("id"):
            self.sections[-1][0] = attrs["id"]

    def handle_endtag(self, tag):
        while self.stack and self.stack.pop()[0] != tag:
            pass
        if tag in ("h1", "h2", "h3", "h4"):
            self.heading = False

    def handle_data(self, data):
        if self.stack and self.stack[-1][0] == "div" and "title" in self.stack[-1][1] and not self.inside("textblock"):
            self.title += data
        if not self.inside("textblock") or self.inside(*LEFT_OUT, "script", "style", "svg"):
            return
        self.sections[-1][1 if self.heading else 2] += data if self.heading else data + ("" if data.endswith(" ") else " ")

    def found(self):
        tidy = lambda text: re.sub(r"\s+", " ", re.sub(r"\\\((.*?)\\\)|\\\[(.*?)\\\]", lambda m: words_of(m[1] or m[2]), text, flags=re.DOTALL)).strip()
        return [[anchor, tidy(title), re.sub(r" (?=[.,;:)])", "", tidy(text))] for anchor, title, text in self.sections if text.strip() or title.strip()]


def text_of(pages):
    """Sections of all pages of text: [[link, title of the page, title of the section, text]]. pages: {name: text}."""
    result = []
    for name, text in sorted(pages.items()):
        page = Sections(text)
        for anchor, section, words in page.found():
            result.append([name + ("#" + anchor if anchor else ""), page.title.strip(), section, words])
    return result


def places(pages):
    """{key: page#anchor} of the items of the paper."""
    return {key: f"{name}#{key}" for name, text in pages.items() for key in re.findall(r'id="(\w+)"', text) if key in ITEMS}


def linked_listing(text, where):
    """A listing whose citations of the paper, and mentions of equations in comments, are links."""

    def link(key, label):
        return f'<a class="code" href="{where[key]}">{label}</a>' if key in where else label

    def mention(match):
        return link(f"eq_{match[2]}" if match[2] else f"{(match[3] or match[5]).lower()}_{match[4] or match[6]}", match[1])

    def comment(match):
        if "@paper" in match[2] or "@tested" in match[2]:
            return match[1] + CITATION.sub(lambda m: f"@{m[1]} " + link(m[2], m[3]), match[2]) + match[3]
        return match[1] + MENTION.sub(mention, match[2]) + match[3]

    return re.sub(r'(<span class="comment">)([^<]*)(</span>)', comment, text)


def main():
    site = pathlib.Path(sys.argv[1])
    texts = {path.name: path.read_text(encoding="utf-8") for path in site.glob("*.html")}
    pages = {name: text for name, text in texts.items() if "<!-- PageDoc -->" in text}
    where = places(pages)
    missing = set(ITEMS) - set(where)
    if missing:
        sys.exit(f"finish.py: no page has {', '.join(sorted(missing))}")
    sections = text_of({name: text for name, text in pages.items() if name not in ("paper.html", "tested.html")})
    (site / "search" / "text.js").write_text("var bookText = " + json.dumps(sections, ensure_ascii=False, indent=0) + ";\n", encoding="utf-8")
    n_links = 0
    for name, text in texts.items():
        if name.endswith("_source.html"):
            linked = linked_listing(text, where)
            n_links += linked.count('<a class="code" href="') - text.count('<a class="code" href="')
            (site / name).write_text(linked, encoding="utf-8")
    print(f"finish.py: {len(sections)} sections of {len(pages)} pages for the search, {n_links} links from listings to derivations")


if __name__ == "__main__":
    main()
