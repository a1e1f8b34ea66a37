#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The map of the paper: numbered item -> derivation -> code -> tests, and the check that it has no holes.

Run: docs/tools/index.py --check               the map against docs/not_yet.txt, and other rules of the text: exit status 1 and one line a fault
     docs/tools/index.py --write PAGE.md       write the map as a page of the docs
     docs/tools/index.py --links FOLDER        every link of a built site leads to a file and an anchor that are there

docs/paper.toml lists the items of the paper. An item is derived where a chapter has its formula (\\tag{6} in a display is
eq. (6), and the display must be that formula, see docs/tools/paper.py) or its heading (named alg_3). Code cites it as
@paper{eq_6, eq. (6)}, a test as @tested{eq_6, eq. (6)}. A slip of the paper is an entry of docs/errata.md that tests cite.
"""
import argparse
import html.parser
import pathlib
import re
import sys
import urllib.parse
from collections import defaultdict

import book
import paper
from paper import label_of

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CHAPTERS = ROOT / "docs"
ROOMS = ["reference", "gpu", "distributed", "notebooks_cpp"]
SOURCES = {".hpp", ".cpp", ".cuh", ".cu"}
NOT_YET = CHAPTERS / "not_yet.txt"

PAPER = paper.read()
# What code and tests cite and chapters derive: the paper's statements, the formulas of ours that have a name, the slips.
ITEMS = PAPER.cited()

CITATION = re.compile(r"@(paper|tested)\{(\w+),\s*([^}]*)\}")
TEST_CASE = re.compile(r'^\s*(?:\w+_)*TEST_CASE\w*\(\s*"((?:[^"\\]|\\.)*)"')


def anchor_of(path, name):
    """Anchor that filter.py puts beside what cites the paper, so that the map can link to it."""
    return re.sub(r"\W+", "_", f"{path} {name}").strip("_")


def plain(text):
    """Text that Doxygen shows as it is."""
    text = text.replace('\\"', "'").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\#%])", r"\\\1", text).replace("@", "@@")


def sources(*folders):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SOURCES and path.is_file():
                yield path


def chapters():
    return sorted(CHAPTERS.glob("*.md"))


class Citation:
    """One @paper or @tested: where it stands and what it stands above; `begin` is the first line of that, from 0."""

    def __init__(self, path, name, begin):
        self.path, self.name, self.begin = path, name, begin

    def link(self, text=None):
        return f'@ref {anchor_of(self.path, self.name)} "{plain(text or self.name)}"'


def line_below(lines, start):
    """The line on which that begins which a comment belongs to."""
    return next((i for i in range(start, len(lines)) if lines[i].strip() and not lines[i].lstrip().startswith(("//", "#"))), len(lines))


def name_below(lines, start):
    """Returns what a comment belongs to: the name of the next test case, function, class or constant."""
    declaration = ""
    for line in lines[line_below(lines, start):]:
        text = line.strip()
        if text.startswith(("//", "#")) or not text:
            continue
        if case := TEST_CASE.match(text):
            return case.group(1)
        declaration += " " + text
        if re.search(r"[({;]", re.sub(r"template\s*<[^{;]*?>(?=\s)", "", declaration)):
            break
    declaration = re.sub(r"template\s*<[^{;]*?>(?=\s)|__launch_bounds__\([^()]*\)", "", declaration)
    if found := re.search(r"\b(?:struct|class|enum class)\s+(\w+)", declaration.split("(")[0]):
        return found.group(1)
    if found := re.search(r"([~\w]+|operator\S+)\s*\(", declaration):
        return found.group(1) + "()"
    found = re.search(r"(\w+)\s*[={;]", declaration)
    return found.group(1) if found else "here"


def citations(alias, folders, faults):
    """{key: [Citation]} of all files of the folders; unknown keys and wrong labels are faults."""
    found = defaultdict(list)
    for path in sources(*folders):
        lines = path.read_text(encoding="utf-8").splitlines()
        where = path.relative_to(ROOT)
        for i, line in enumerate(lines):
            for kind, key, label in CITATION.findall(line):
                if kind != alias:
                    faults.append(f"{where}:{i + 1}: @{kind} belongs into {'tests/' if kind == 'tested' else 'code'}")
                elif key not in ITEMS:
                    faults.append(f"{where}:{i + 1}: the paper has no {key}")
                elif label != label_of(key):
                    faults.append(f"{where}:{i + 1}: {key} is {label_of(key)}, not {label}")
                else:
                    name = name_below(lines, i + 1)
                    if all(c.path != where or c.name != name for c in found[key]):
                        found[key].append(Citation(where, name, line_below(lines, i + 1)))
    return found


def derivations(faults):
    """{key: chapter} of all anchors in the chapters. Faults: whatever the chapters state otherwise than the paper does."""
    texts = {str(path.relative_to(ROOT)): book.read(path) for path in chapters()}
    faults += [f"docs/paper.toml: {fault}" for fault in paper.list_faults(PAPER)]
    faults += paper.chapter_faults(PAPER, texts)
    for path in [ROOT / "README.md", *chapters(), *sources(*ROOMS, "tests")]:
        faults += paper.mention_faults(PAPER, path.relative_to(ROOT), path.read_text(encoding="utf-8"))
    return {key: ROOT / name for name, text in reversed(texts.items()) for key in paper.anchors(text)}


def not_yet(faults):
    """{key: {what it lacks}} as docs/not_yet.txt admits it."""
    admitted = {}
    for i, line in enumerate(NOT_YET.read_text(encoding="utf-8").splitlines()):
        text = line.split("#")[0].strip()
        if not text:
            continue
        key, _, lacks = text.partition(":")
        admitted[key] = {word.strip() for word in lacks.split(",")}
        if key not in ITEMS or not admitted[key] <= {"docs", "code", "test"}:
            faults.append(f"{NOT_YET.relative_to(ROOT)}:{i + 1}: expected 'eq_20: docs, code, test', found '{text}'")
    return admitted


def excerpt(name, first):
    """The code of a file from one of its lines on: to the end of the block that the line opens, or of the paragraph.

    A chapter quotes code by a fenced block that names the file, and holds the first line of each paragraph it wants. A line
    that opens a block and closes it stands for itself.
    """
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = [i for i, line in enumerate(lines) if line.strip() == first.strip()]
    if len(found) != 1:
        raise ValueError(f"{name} has {len(found)} lines like '{first.strip()}', and not one")
    begin = end = found[0]
    indent = len(lines[begin]) - len(lines[begin].lstrip())
    if lines[begin].rstrip().endswith("}"):
        return [lines[begin][indent:]]
    block = lines[begin].rstrip().endswith("{")
    while end < len(lines) and (block or lines[end].strip()):
        depth = len(lines[end]) - len(lines[end].lstrip())
        if end > begin and lines[end].strip() and (depth < indent or block and depth == indent):
            end += block
            break
        end += 1
    # That loops are unrolled is no part of the idea.
    return [line[indent:] for line in lines[begin:end] if line.strip() != "TREE_ATTN_UNROLL"]


def whole(name):
    """The code of a file, without the line of the licence: what a fenced block stands for that names no line."""
    return (ROOT / name).read_text(encoding="utf-8").splitlines()[1:]


EXCERPT = re.compile(r"```cpp ((?:reference|distributed|gpu|tests)/[\w./-]+)$")
TABLE = re.compile(r"```table (\w+)$")


def quotes_are_sound(path, faults):
    """Tests that a chapter quotes what is there: paragraphs of code, and tables that docs/tools/kernel_tables.py makes."""
    import kernel_tables

    file = None
    for i, line in enumerate(book.requests(path.read_text(encoding="utf-8")).splitlines()):
        if match := EXCERPT.match(line):
            file = match[1]
            if not (ROOT / file).is_file():
                faults.append(f"{path.relative_to(ROOT)}:{i + 1}: there is no {file}")
        elif line.startswith("```"):
            file = None
        elif file and line.strip():
            try:
                excerpt(file, line)
            except (ValueError, OSError) as fault:
                faults.append(f"{path.relative_to(ROOT)}:{i + 1}: {fault}")
        if match := TABLE.match(line):
            try:
                kernel_tables.TABLES[match[1]]()
            except (KeyError, ValueError, OSError) as fault:
                faults.append(f"{path.relative_to(ROOT)}:{i + 1}: table {match[1]}: {fault!r}")


def chapters_are_sound(faults):
    """Files that chapters name are there, functions too, and no formula is cut by the end of a line: filter.py relies on all three."""
    functions = {name for path in sources(*ROOMS) for name in re.findall(r"\b(\w+)\(", path.read_text(encoding="utf-8"))}
    for path in chapters():
        quotes_are_sound(path, faults)
        fenced = False
        for i, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
            fenced ^= line.startswith("```")
            for name in re.findall(r"`((?:reference|distributed|gpu|docs|tests|notebooks_cpp)/[\w./-]+\.\w+)`", line):
                if not (ROOT / name).is_file():
                    faults.append(f"{path.relative_to(ROOT)}:{i + 1}: there is no {name}")
            for name in re.findall(r"`(?:\w+::)*(\w+)\(\)`", line):
                if name not in functions:
                    faults.append(f"{path.relative_to(ROOT)}:{i + 1}: {name}() is no function of ours; others are named without parentheses")
            if not fenced and re.sub(r"`[^`]*`|\\\$", "", line).count("$") % 2:
                faults.append(f"{path.relative_to(ROOT)}:{i + 1}: a formula that does not end on its line")


def notebooks_are_sound(faults):
    """A notebook has the parts that docs/contributing.md lists, an answer to every question, and no formula that a line cuts."""
    import notebook

    for path in sorted((ROOT / "notebooks_cpp").glob("[0-9]*_*.cpp")):
        where = path.relative_to(ROOT)
        prose = [line for kind, lines in notebook.cells(path.read_text(encoding="utf-8").splitlines()) if kind == "[markdown]" for line in lines]
        text = "\n".join(prose)
        flat = re.sub(r"\s*\n\s*//\s*", " ", text)
        for part in ("**What you need:**", "**What you get:**", "**Predict:**", "## What to take home", "## Questions"):
            if part not in flat:
                faults.append(f"{where}: there is no {part}")
        questions = re.findall(r"^// (\d+)\. ", text.partition("## Questions")[2], re.MULTILINE)
        if len(questions) != text.count("<summary>Answer</summary>"):
            faults.append(f"{where}: {len(questions)} questions and {text.count('<summary>Answer</summary>')} answers")
        for line in prose:
            # Markdown would make a list of it.
            if re.match(r"\s*// (?: {3,}\d+|\d{2,})\. ", line):
                faults.append(f"{where}: a line of a paragraph begins with a number and a point: {line.strip()}")
            if re.sub(r"`[^`]*`|\\\$", "", line).count("$") % 2:
                faults.append(f"{where}: a formula that does not end on its line: {line.strip()}")


def undocumented(faults):
    """Whatever stands in a namespace of a header has a comment; members may speak for themselves.

    A comment counts for all that follows it without a blank line: overloads, specialisations, both directions of something.
    The words of kernels are described once, by the tables of gpu/platform/device.hpp and gpu/platform/launch.hpp, and not in each platform.
    """
    described = {ROOT / "gpu" / platform / name for platform in ("platform/cuda", "emulator") for name in ("device.hpp", "launch.hpp", "stream.hpp", "wgmma.hpp")}
    for path in sources(*ROOMS):
        if path.suffix not in {".hpp", ".cuh"} or path in described:
            continue
        depth, begins, documented, grouped = 0, True, False, False
        for i, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
            text = line.strip()
            grouped = grouped and text != ""
            code = re.sub(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)\'|//.*', "", text)
            if depth == 0 and text.startswith("///"):
                documented = True
            if not code or text.startswith("#"):
                continue
            if code.startswith("namespace") or code.strip() == "}" and depth == 0:
                documented = False
                continue
            forward = re.fullmatch(r"(?:struct|class) \w+;", code.strip()) is not None
            if depth == 0 and begins and documented:
                grouped = True
            if depth == 0 and begins and not documented and not grouped and not forward and "///<" not in line:
                faults.append(f"{path.relative_to(ROOT)}:{i + 1}: no comment says what this is: {code.strip()}")
            depth += code.count("{") - code.count("}")
            begins = depth == 0 and code.rstrip().endswith((";", "}"))
            documented = documented and not begins


def comparisons(faults):
    """Comparisons that would accept too much.

    A doctest::Approx without an epsilon has 1.2e-5, which lets pass in double what F32 would get right. Eigen's maxCoeff()
    drops a NaN anywhere but in the first place: below a limit stands maxCoeff<Eigen::PropagateNaN>().
    """
    for path in sources("tests", *ROOMS):
        text = path.read_text(encoding="utf-8")
        for found in re.finditer(r"\bmaxCoeff\(\)\s*<", text):
            line = text.count("\n", 0, found.start()) + 1
            faults.append(f"{path.relative_to(ROOT)}:{line}: maxCoeff() drops NaN: maxCoeff<Eigen::PropagateNaN>()")
        for found in re.finditer(r"\bApprox\(", text):
            end, depth = found.end(), 1
            while depth:
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
            if not re.match(r"\s*\.epsilon\(", text[end:]):
                line = text.count("\n", 0, found.start()) + 1
                faults.append(f"{path.relative_to(ROOT)}:{line}: doctest::Approx without .epsilon()")


def notebooks():
    """{key: [(anchor, title)]} of the notebooks whose prose mentions an item."""
    found = defaultdict(list)
    for path in sorted((ROOT / "notebooks_cpp").glob("[0-9]*_*.cpp")):
        text = path.read_text(encoding="utf-8")
        if title := re.search(r"^// # (.*) \{#(\w+)\}$", text, re.MULTILINE):
            for key in ITEMS:
                if re.search(rf"(?<!\w){re.escape(label_of(key))}(?!\d)", text):
                    found[key].append((title[2], title[1]))
    return found


def survey():
    """Everything there is, and every fault in it."""
    faults = []
    derived = derivations(faults)
    coded = citations("paper", ROOMS, faults)
    tested = citations("tested", ["tests"], faults)
    admitted = not_yet(faults)
    chapters_are_sound(faults)
    notebooks_are_sound(faults)
    undocumented(faults)
    comparisons(faults)
    import beside
    faults += beside.faults()
    for key, item in ITEMS.items():
        # A slip is no code, and some slips no program can show.
        needs = {"docs"} | (set() if key in paper.SLIPS else {"code"}) | (set() if item.get("untested") else {"test"})
        lacks = {what for what, where in (("docs", derived), ("code", coded), ("test", tested)) if not where.get(key)} & needs
        surprise, stale = lacks - admitted.get(key, set()), admitted.get(key, set()) - lacks
        if surprise:
            faults.append(f"{label_of(key)} has no {' and no '.join(sorted(surprise))}")
        if stale:
            now = " and ".join(sorted(stale))
            faults.append(f"{label_of(key)} has {now} now: take that off {NOT_YET.relative_to(ROOT)}")
    return derived, coded, tested, faults


def formula(tex):
    return rf"\f$\displaystyle {tex}\f$"


def words(text):
    """Our words for an item: mathematics between dollars becomes formulas, and a mention of another item a link."""
    keys = {label_of(key): key for key in ITEMS}
    text = re.sub(r"\$([^$]+)\$", lambda m: rf"\f${m[1]}\f$", text)
    return re.sub(r"eq\. \(\w+\)|(?:Alg|Thm|Obs)\. \d", lambda m: f'@ref {keys[m[0]]} "{m[0]}"' if m[0] in keys else m[0], text)


def place_of(item):
    """Section or appendix of an item."""
    if "where" not in item:
        return ""
    return f"<br/><small>{'section' if item['where'][0].isdigit() else 'app.'} {words(item['where'])}</small>"


def statement(key, item):
    """Returns what the paper says under this number, in its own letters."""
    parts = [words(item["says"])]
    if "formula" in item:
        parts.append(formula(item["formula"]))
    if "lines" in item:
        parts.append("<ol>" + "".join(f"<li>{words(line)}</li>" for line in item["lines"]) + "</ol>")
    if "printed" in item:
        parts.append("<small>printed:</small> " + formula(item["printed"]))
    if "slip" in item:
        parts.append(f'<small>see @ref slip_{item["slip"]} "slip {item["slip"]}"</small>')
    return "<br/>".join(parts).replace("<br/><ol>", "<ol>")


def map_rows(keys, derived, coded, tested):
    seen_in, none = notebooks(), "<em>not yet</em>"
    for key in keys:
        label = f'@ref {key} "{label_of(key)}"' if key in derived else label_of(key)
        code = "<br/>".join(f"{c.link()} <small>{c.path}</small>" for c in coded.get(key, []))
        test = "<br/>".join(f"{c.link()}" for c in tested.get(key, []))
        books = "<br/>".join(f'@ref {anchor} "{plain(title)}"' for anchor, title in seen_in.get(key, []))
        # The formula has the width of the page, and what cites it stands below.
        yield f'<tr class="statement"><td rowspan="2">{label}{place_of(ITEMS[key])}</td><td colspan="3">{statement(key, ITEMS[key])}</td></tr>'
        yield f"<tr><td>{code or none}</td><td><div>{test or none}</div></td><td>{books}</td></tr>"


def write(page, derived, coded, tested):
    """The map: the paper's items, with its own formulas, beside what derives, computes and tests them."""
    statements = [key for key in ITEMS if key in paper.STATEMENTS]
    n_whole = sum(1 for key in statements if derived.get(key) and coded.get(key) and tested.get(key))
    head = '<table class="markdownTable paper_index">\n<tr><th>Paper</th><th>Code</th><th>Tests</th><th>Notebooks</th></tr>'
    out = ["# From the paper to code and tests {#paper_index}", "",
           "Made by `docs/tools/index.py` from `docs/paper.toml`, which lists the items of the paper with their formulas, from the",
           "formulas of the chapters and from the citations in code and tests. The build fails where a chapter states",
           "something else under a number of the paper, and where a citation leads nowhere.",
           f"{n_whole} of the {len(statements)} equations, statements and algorithms have a derivation, code and a test. Those",
           "that do not are listed in `docs/not_yet.txt`, with what they lack.", "",
           "## Equations, statements, algorithms", "",
           "Formulas are the paper's, in its letters; the book's differ from them by the notation below and by nothing else.", "",
           head, *map_rows(statements, derived, coded, tested), "</table>", "",
           "## Notation", "", '<table class="markdownTable">', "<tr><th>the paper writes</th><th>the book writes</th><th>in</th><th>why</th></tr>"]
    for entry in PAPER.notation:
        places = ", ".join(f'@ref {key} "{label_of(key)}"' for key in entry.get("in", [])) or "all formulas"
        out.append(f"<tr><td>{formula(entry['paper'])}</td><td>{formula(entry['ours'])}</td><td>{places}</td><td>{words(entry['why'])}</td></tr>")
    out += ["</table>", "", "## Figures, tables, appendices", "", '<table class="markdownTable">',
            "<tr><th>Paper</th><th>What it shows</th><th>In the book</th></tr>"]
    for key, item in PAPER.exhibits().items():
        place = f"@ref {item['place']}" if "place" in item else f"<em>nowhere: {item.get('absent')}</em>"
        out.append(f"<tr><td>{label_of(key)}{'' if key.startswith('app_') else place_of(item)}</td><td>{words(item['says'])}</td><td>{place}</td></tr>")
    out += ["</table>", "", "## Formulas of ours", "", "The paper does not number them; they have a name here.", "",
            head, *map_rows(PAPER.ours, derived, coded, tested), "</table>", ""]
    page.write_text("\n".join(out) + "\n", encoding="utf-8")


class Page(html.parser.HTMLParser):
    """Anchors and links of one page of the site."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.parts = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors.update(attrs[name] for name in ("id", "name") if attrs.get(name))
        if tag == "a" and attrs.get("href"):
            self.links.add(attrs["href"])
        if part := attrs.get({"script": "src", "img": "src", "link": "href"}.get(tag, "")):
            self.parts.add(part)


def dead_links(site):
    """Links of a built site that lead nowhere, and parts of pages that are not in it, as lines."""
    pages = {path.name: Page(path.read_text(encoding="utf-8")) for path in site.glob("*.html")}
    for name, page in sorted(pages.items()):
        for part in sorted(page.parts):
            if not (site / part.split("?")[0]).exists():
                yield f"{name}: {part}: not part of the site, so the page needs a network"
        for link in sorted(page.links):
            url = urllib.parse.urlsplit(link)
            if url.scheme in ("http", "https", "mailto", "javascript"):
                continue
            target = url.path or name
            if not (site / target).exists():
                yield f"{name}: {link}: no such file"
            elif url.fragment.endswith("-members"):
                continue  # Doxygen's own table of contents, which also names tables that it leaves out
            elif url.fragment and target in pages and urllib.parse.unquote(url.fragment) not in pages[target].anchors:
                yield f"{name}: {link}: no such anchor"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", type=pathlib.Path, metavar="PAGE.md")
    parser.add_argument("--links", type=pathlib.Path, metavar="FOLDER")
    arguments = parser.parse_args()
    faults = []
    if arguments.check or arguments.write:
        derived, coded, tested, found = survey()
        faults += found if arguments.check else []
        if arguments.write:
            write(arguments.write, derived, coded, tested)
    if arguments.links:
        faults += dead_links(arguments.links)
    for fault in faults:
        print(f"docs/tools/index.py: error: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
