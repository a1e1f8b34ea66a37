#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Texts that Doxygen reads instead of a chapter or a source file; lines keep their numbers.

Chapters are plain Markdown with mathematics between dollars, readable as they are. Here
* places and links get Doxygen's words, see book.py;
* $x$ and $$x$$ become formulas, and a display with \\tag{6} gets the anchor eq_6;
* below it, and below a heading of that name, stand the code that computes it and its tests, see beside.py;
* eq. (6), Alg. 3, Thm. 1, Obs. 1 and slip 2 become links to where they stand;
* ![caption](figures/figure.svg) puts the drawing itself into the page, a page.html what a script draws, and a plot of a notebook as an image;
* the end of a chapter leads to the next one;
* `merge()` becomes a link to the function, `reference/state/state.hpp` to the file;
* a fenced block "cpp gpu/engine/scalar.cuh" becomes the code itself, from each line of the block on, see excerpt() in index.py;
  a block without lines becomes the whole file;
* a fenced block "table seeded_bugs" becomes that table of kernel_tables.py;
* <details><summary>Answer</summary> and </details>, each on a line of its own, fold what is between them.
Source files: a test case becomes a function named after its subject, so that it has a place of its own; a citation gets an
anchor for the map of the paper; eq. (6) and the like become links in comments too; an indented formula is typeset, if ascii_math.py
knows all of it; the comment of a function ends with its tests.

Run: docs/tools/filter.py FILE                   prints it
     docs/tools/filter.py --all TARGET FOLDER..  writes every text of the folders to TARGET, below its whole path: Doxygen asks for 500 files,
                                                 and one process is ten times as fast as 500; docs/tools/filtered then prints them
"""
import pathlib
import re
import shutil
import sys

import ascii_math
import beside
import book
import kernel_tables
from index import (CITATION, EXCERPT, ITEMS, ROOMS, ROOT, TABLE, TEST_CASE, anchor_of, chapters, citations, excerpt, name_below,
                   plain, whole)
from paper import HEADING, SLIPS, TAG, anchors

MENTION = re.compile(r"\b(eqs?\. \((\w+)\)|(Alg|Thm|Obs)\. (\d+)|(slip) (\d+))", re.IGNORECASE)
CODE = re.compile(r"(`+)(.+?)\1")
INLINE = re.compile(r"(?<![\\$\w])\$(?!\s)([^$]+?)(?<![\s\\])\$(?![\w$])")
SUFFIXES = {".md", ".hpp", ".cpp", ".cuh", ".cu"}
FILE = re.compile(r"(?:reference|distributed|gpu|tests|notebooks_cpp)/[\w./-]+\.(?:hpp|cpp|cuh|cu)$")
FIGURE = re.compile(r"!\[(.*)\]\((?:figures/)?(\w+\.(?:svg|html))\)$")
FOLD = re.compile(r"(\s*)(<details><summary>.*</summary>|</details>)$")
# Emphasis with a formula in it; before it, what is left as it is: quoted code, displays, code spans.
EMPHASIS = re.compile(r"```.*?```|\$\$.*?\$\$|`[^`\n]*`|(?<![\w*\\^$])\*(?![\s*])((?:(?!\n\n)[^*`])*?\$[^$\n]*\$(?:(?!\n\n)[^*`])*?)(?<!\s)\*(?!\*)", re.DOTALL)
FUNCTION = re.compile(r"((?:\w+::)*\w+)\(\)$")
TITLE = re.compile(r"^# .*\{#(\w+)\}", re.MULTILINE)


def derived():
    return {key for path in chapters() for key in anchors(book.read(path))}


def link_mentions(text, known):
    """Links to derivations. The space behind the point would end a brief description, so it does not break."""

    def link(match):
        key = f"eq_{match[2]}" if match[2] else f"{(match[3] or match[5]).lower()}_{match[4] or match[6]}"
        shown = match[1].replace(" ", "&nbsp;")
        return f"[{shown}](@ref {key})" if key in known else shown

    return MENTION.sub(link, text)


def link_code(match):
    """A code span of a chapter: a file or a function becomes a link."""
    code = match[2]
    if code == "errata_note.html":
        return f'<a href="{code}">{code}</a>'
    if FILE.match(code):
        return f"[{code}](@ref {code})"
    if name := FUNCTION.match(code):
        return f'@ref tree_attn::{name[1]}() "{code.removeprefix("platform::")}"'
    return match[0]


def prose(line, known):
    """One line of a chapter: code, mathematics and the rest are each treated as what they are."""
    kept = []

    def keep(text):
        kept.append(text)
        return f"\0{len(kept) - 1}\0"

    line = CODE.sub(lambda m: keep(link_code(m)), line)
    line = INLINE.sub(lambda m: keep(rf"\f${m[1]}\f$"), line)
    line = re.sub(r"\[[^\]]*\]\([^)]*\)|\{#\w+\}", lambda m: keep(m[0]), line)
    if not line.startswith("#"):
        line = link_mentions(line, known)
    while "\0" in line:
        line = re.sub(r"\0(\d+)\0", lambda m: kept[int(m[1])], line)
    return line


def cited_by(key, coded, tested, seen):
    """Returns what stands below a numbered item: the code that computes it and its tests; below a slip, the tests that show it."""
    if key in SLIPS:
        tests = "; ".join(citation.link() for citation in tested.get(key, []))
        return [f'<div class="cited">Shown by: {tests or "no test: " + ITEMS[key].get("untested", "not yet")}</div>']
    return beside.beside(key, coded, tested, seen)


def emphasised(lines):
    """Lines in which Doxygen sees all emphasis: where a formula is inside, it misses the end of some."""
    return EMPHASIS.sub(lambda m: f"<em>{m[1]}</em>" if m[1] else m[0], "\n".join(lines)).splitlines()


def chapter(lines, known):
    fenced, display, tags = False, None, []
    coded, tested = citations("paper", ROOMS, []), citations("tested", ["tests"], [])
    quoted, file, seen = None, "", {}
    for line in emphasised(lines):
        if quoted is not None:
            # What a fenced block names takes its place.
            if line.startswith("```") and file:
                code = quoted[1:] or whole(file)
                yield from ['<div class="excerpt">', "", link_code(CODE.match(f"`{file}`")), "", "```cpp", *code, "```", "", "</div>"]
                quoted = None
            elif line.startswith("```"):
                yield from quoted
                quoted = None
            elif file and line.strip():
                quoted += ["", *excerpt(file, line)]
        elif (match := EXCERPT.match(line)) and not fenced:
            file, quoted = match[1], []
        elif (match := TABLE.match(line)) and not fenced:
            file, quoted = "", [prose(row, known) for row in kernel_tables.TABLES[match[1]]()]
        elif display is not None:
            display.append(line)
            if line.strip() == "$$":
                tags = TAG.findall("\n".join(display))
                yield "".join(f"@anchor eq_{n} " for n in tags) + "\\f["
                yield from display[1:-1]
                yield "\\f]"
                for n in tags:
                    yield from cited_by(f"eq_{n}", coded, tested, seen)
                display = None
        elif line.strip() == "$$" and not fenced:
            display = [line]
        elif (figure := FIGURE.match(line)) and figure[2].startswith("notebook_"):
            # A plot: an image of its own, on white.
            yield f'@image html {figure[2]} "{plain(figure[1])}"'
        elif (figure := FIGURE.match(line)) and (figure[2].endswith(".html") or (ROOT / "docs" / figure[2]).is_file()):
            # Not drawn in the colours of the book. One that is in docs/, so that a reader of the repository sees it, has a page too.
            yield rf'\htmlinclude[block] {pathlib.PurePath(figure[2]).stem}.html' + "\n" + rf'\htmlonly[block]<p class="drawn_caption">{figure[1]}</p>\endhtmlonly'
        elif figure := FIGURE.match(line):
            yield (rf'\htmlonly[block]<figure class="drawn">\endhtmlonly \htmlinclude[block] {figure[2]}' + "\n"
                   rf"\htmlonly[block]<figcaption>{figure[1]}</figcaption></figure>\endhtmlonly")
        elif (fold := FOLD.match(line)) and not fenced:
            # Doxygen does not know these tags.
            yield rf"{fold[1]}\htmlonly[block]{fold[2]}\endhtmlonly"
        else:
            fenced ^= line.lstrip().startswith("```")
            yield line if fenced or line.lstrip().startswith("```") else prose(line, known)
            if (heading := HEADING.match(line)) and heading[1] in ITEMS:
                yield from ["", *cited_by(heading[1], coded, tested, seen)]


def reading_order():
    """The pages of the book: the main page leads to its parts, a part to its chapters, and a chapter to its notebooks."""
    texts = {}
    for path in chapters():
        text = book.read(path)
        if title := TITLE.search(text):
            texts[title[1]] = text

    def below(text):
        for page in re.findall(r"@subpage (\w+)", text):
            yield page
            yield from below(texts.get(page, ""))

    return list(below(book.read(ROOT / "docs" / "mainpage.md")))


def neighbours(page):
    """Links to the pages before and after this one, in the order of the book."""
    book = reading_order()
    if page not in book:
        return []
    at = book.index(page)
    before = f'<span class="before">← @ref {book[at - 1]}</span>' if at > 0 else ""
    behind = f'<span class="behind">@ref {book[at + 1]} →</span>' if at + 1 < len(book) else ""
    return ["", f'<div class="neighbours">{before} {behind}</div>']


def block_anchors(lines, where):
    """{line: anchor} of comments that cite the paper: on the first line behind the brief description that can bear it."""
    anchors, used, start = {}, set(), 0
    while start < len(lines):
        end = start
        while end < len(lines) and lines[end].lstrip().startswith("///"):
            end += 1
        texts = [line.lstrip()[3:] for line in lines[start:end]]
        if any("@paper" in text and CITATION.search(text) for text in texts):
            anchor = anchor_of(where, name_below(lines, end))
            brief = True
            for i, text in enumerate(texts):
                brief = brief and text.strip() != "" and not text.startswith(" @")
                if not brief and re.match(r" [^\s-]", text) and anchor not in used:
                    used.add(anchor)
                    anchors[start + i] = anchor
        start = max(end, start + 1)
    return anchors


def tests_of_functions(lines, where):
    """{line: text}: at the end of the comment of a function, links to the tests that call it, in the file that mirrors this one."""
    test_file = beside.mirror(where)
    if where.parts[0] not in ROOMS or not (ROOT / test_file).is_file():
        return {}
    test_lines = beside.Source.lines(test_file)
    cases = [(case[1], "\n".join(beside.block(test_lines, i))) for i, line in enumerate(test_lines) if (case := TEST_CASE.match(line))]
    found, start = {}, 0
    while start < len(lines):
        end = start
        while end < len(lines) and lines[end].lstrip().startswith("///"):
            end += 1
        name = name_below(lines, end) if end > start else ""
        # The words of a member are too common, and an indented line at the end of a comment is a formula.
        if name.endswith("()") and not lines[start].startswith(" ") and not re.match(r"///\s{2,}", lines[end - 1]):
            links = [f'@ref {anchor_of(test_file, title)} "{plain(title)}"' for title, body in cases if beside.names(body, name)]
            if links:
                found[end - 1] = " @tests " + "; ".join(links[:6]) + (f"; and {len(links) - 6} more" if len(links) > 6 else "")
        start = max(end, start + 1)
    return found


def source(lines, where, known):
    names, anchors, tests = {}, block_anchors(lines, where), tests_of_functions(lines, where)
    tex, head = {}, False
    for start, end in ascii_math.blocks(lines):
        tex |= dict(enumerate(ascii_math.formulas(line.strip()[3:] for line in lines[start:end]) or [], start))
    for i, line in enumerate(lines):
        if head:
            # The head of a test case goes on: its types, and the brace that opens its body.
            head = "{" not in line
            yield line.partition("{")[2]
        elif i in tex:
            yield rf"{line.partition('///')[0]}/// \f[ {tex[i]} \f]"
        elif case := TEST_CASE.match(line):
            # A function named after the test case, and the whole name as its description; its body may be on the same line.
            _, brace, body = line[case.end():].partition("{")
            head = not brace
            words, name = re.findall(r"[A-Za-z0-9]+", case[1]), "test"
            while words and len(name) + len(words[0]) < 44:
                name += "_" + words.pop(0)
            names[name] = names.get(name, 0) + 1
            if names[name] > 1:
                name += f"_{names[name]}"
            yield f"/** @brief {plain(case[1])} @details @anchor {anchor_of(where, case[1])} */ void {name}() {{{body}"
        elif comment := re.match(r"(\s*///<? ?)(.*)", line):
            prefix, text = comment[1], comment[2]
            if text.startswith("@tested"):
                text = f"@details {text}"
            elif not CITATION.search(text) and not text.startswith("    "):
                text = link_mentions(text, known)
            yield prefix + (f"@anchor {anchors[i]} " if i in anchors else "") + text + tests.get(i, "")
        elif comment := re.match(r"(.*\S\s+///< )(.*)", line):
            yield comment[1] + link_mentions(comment[2], known)
        elif re.match(r"\s*using (\w+)::\1;$", line):
            yield ""  # Doxygen gives inherited constructors the line of the declaration in the file of the definition.
        else:
            yield line


def filtered(path, known):
    """Lines of a file as Doxygen reads it. @param path absolute"""
    lines = book.read(path).splitlines()
    if path.suffix != ".md":
        return source(lines, path.relative_to(ROOT), known)
    is_chapter = path.parent == ROOT / "docs" or path.name.startswith("notebook_")
    result = list(chapter(lines, known) if is_chapter else lines)
    if page := TITLE.search("\n".join(lines)):
        result += neighbours(page[1])
    return result


def write_all(target, folders):
    """Filters each file that Doxygen's INPUT and FILE_PATTERNS name."""
    known = derived() & set(ITEMS)
    shutil.rmtree(target, ignore_errors=True)
    for path in sorted({path for folder in folders for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file()}):
        copy = target / path.relative_to("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("\n".join(filtered(path, known)) + "\n", encoding="utf-8")


def main():
    if sys.argv[1] == "--all":
        target, *folders = (pathlib.Path(name).resolve() for name in sys.argv[2:])
        write_all(target, folders)
        return
    sys.stdout.reconfigure(encoding="utf-8")
    print("\n".join(filtered(pathlib.Path(sys.argv[1]).resolve(), derived() & set(ITEMS))))


if __name__ == "__main__":
    main()
