# SPDX-License-Identifier: Apache-2.0
"""Lines of code that compute a numbered item, and the body of a test, which stand beside it in a chapter.

Both follow from the citations, @paper in code and @tested in tests: the code is the function below a citation, up to its end. If
several files cite an item, the first of FOLDERS has the code that is shown, and the others are links. The test that is shown is
the first one of the file that mirrors the code, and among these the first that calls the function. tests/docs/test_beside.py
tests this file.
"""
import html
import re

from index import ROOMS, ROOT, TEST_CASE, citations
from paper import label_of

# Where the code that is shown comes from: the oracle before the library, and both before kernels and transport.
FOLDERS = ["reference/energy", "reference/oracle", "reference/state", "reference/decode", "gpu", "distributed"]
# Code and tests up to this length are shown; longer ones are folded.
SHOWN_LINES = 16


class Source:
    """A file of the tree and its lines."""

    cache = {}

    @staticmethod
    def lines(path):
        if path not in Source.cache:
            Source.cache[path] = (ROOT / path).read_text(encoding="utf-8").splitlines()
        return Source.cache[path]


def block(lines, begin):
    """Lines from one of them to the end of the declaration or definition that starts there; without the indentation."""
    indent = len(lines[begin]) - len(lines[begin].lstrip())
    end = begin
    while not lines[end].rstrip().endswith((";", "{", "}")):
        end += 1
    if lines[end].rstrip().endswith("{"):
        end += 1
        while not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > indent:
            end += 1
    return [line[indent:] for line in lines[begin : end + 1]]


def is_declaration(lines):
    """Tests whether this ends before a body: `int f(int x = {});`."""
    return lines[-1].endswith(";") and not any(line.rstrip().endswith("{") for line in lines)


def definition(citation):
    """(file, lines) of what a citation stands above; of a function that a header only declares, the definition in its folder."""
    here = block(Source.lines(citation.path), citation.begin)
    if not is_declaration(here) or not citation.name.endswith("()"):
        return citation.path, here
    start = re.compile(rf"[\w:<>&*,\s\[\]]*\b{re.escape(citation.name[:-2])}\(")
    for path in sorted((ROOT / citation.path).parent.glob("*.c*"), key=lambda path: path.stem != citation.path.stem):
        lines = Source.lines(path.relative_to(ROOT))
        for i, line in enumerate(lines):
            if line[:1].isalpha() and start.match(line) and not is_declaration(found := block(lines, i)):
                return path.relative_to(ROOT), found
    return citation.path, here


def folder_rank(path):
    return next((i for i, folder in enumerate(FOLDERS) if str(path).startswith(folder + "/")), len(FOLDERS))


def shown_code(found):
    """Selects of the code that cites an item what is shown: everything in the first file."""
    first = min(found, key=lambda citation: (folder_rank(citation.path), found.index(citation)))
    return [citation for citation in found if citation.path == first.path]


def mirror(path):
    """Name of the file that tests a file."""
    return ROOT.joinpath("tests", path).with_name(f"test_{path.stem}.cpp").relative_to(ROOT)


def names(text, name):
    """Tests whether code calls a function, `name()`, or names anything else."""
    return re.search(rf"\b{re.escape(name[:-2])}\s*[(<]" if name.endswith("()") else rf"\b{re.escape(name)}\b", text) is not None


def calls(citation, functions):
    text = "\n".join(block(Source.lines(citation.path), citation.begin))
    return any(names(text, name) for name in functions)


def shown_test(tests, code):
    """Selects the test of an item that is shown beside this code, or None."""
    mirrors, functions = {mirror(citation.path) for citation in code}, [citation.name for citation in code]
    by_value = [(citation.path not in mirrors, not calls(citation, functions), i) for i, citation in enumerate(tests)]
    return tests[min(by_value)[2]] if tests else None


def raw(tags):
    """Tags that enclose more than one paragraph: Doxygen would close and open them around each."""
    return ["", rf"\htmlonly[block]{tags}\endhtmlonly", ""]


def fold(summary, lines, kind):
    return [*raw(f'<details class="{kind}"><summary>{summary}</summary>'), *lines, *raw("</details>")]


def fenced(lines):
    return ["```cpp", *lines, "```"]


def count(n, what):
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def code_beside(key, code, seen):
    """The code of an item. What the page has shown already is folded; seen: {name of the code: item it stands below}."""
    for citation in code:
        path, lines = definition(citation)
        where = f'@ref {path} "{path}"'
        label = f"<b>{label_of(key)}</b> " if citation is code[0] else ""
        yield from ["", f'<div class="where">{label}{citation.link()} <small>{where}</small></div>', ""]
        before = seen.setdefault((path, citation.name), key)
        if before != key:
            yield from fold(f"the same lines as beside {label_of(before)}", fenced(lines), "again")
        elif len(lines) > SHOWN_LINES:
            yield from fold(f"{len(lines)} lines", fenced(lines), "source")
        else:
            yield from fenced(lines)


def beside(key, coded, tested, seen):
    """Markdown below a numbered item: what computes it and what tests it."""
    found, tests = coded.get(key, []), tested.get(key, [])
    if not found:
        return []
    code = shown_code(found)
    test = shown_test(tests, code)
    others = [citation for citation in found if citation not in code]
    out = [*raw('<div class="beside"><div class="source">'), *code_beside(key, code, seen), ""]
    if others:
        out += [f'<div class="others">{label_of(key)} also in ' + ", ".join(citation.link() for citation in others) + "</div>", ""]
    out += raw('</div><div class="test">')
    if test:
        lines = block(Source.lines(test.path), test.begin)
        title = f'<div class="where">{test.link(str(test.path))}</div>'
        before = seen.setdefault((test.path, test.name), key)
        same = "" if before == key else f" (as beside {label_of(before)})"
        out += fold(f"Test: {html.escape(test.name)}{same}", [title, "", *fenced(lines)], "again" if same else "test")
    rest = [citation for citation in tests if citation is not test]
    if rest:
        out += fold(f"{count(len(rest), 'more test')} of {label_of(key)}", [f"- {citation.link()}" for citation in rest], "tests")
    return [*out, *raw("</div></div>")]


def faults():
    """Items of the paper beside which no code or no test can stand, as lines."""
    found = []
    coded, tested = citations("paper", ROOMS, []), citations("tested", ["tests"], [])
    for key, cited in coded.items():
        for citation in shown_code(cited):
            if is_declaration(definition(citation)[1]):
                found.append(f"{citation.path}: {label_of(key)} is computed by {citation.name}, and no file of its folder has the body")
        test = shown_test(tested.get(key, []), shown_code(cited))
        if test and not TEST_CASE.match(Source.lines(test.path)[test.begin]):
            found.append(f"{test.path}:{test.begin + 1}: @tested of {label_of(key)} is not above a test case")
    return found
