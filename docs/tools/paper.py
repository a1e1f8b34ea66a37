# SPDX-License-Identifier: Apache-2.0
"""The paper's items, from docs/paper.toml, and whether the chapters state them under the paper's own numbers.

    "eq_6"  eq. (6)      "alg_3"  Alg. 3      "fig_3a"  Fig. 3(a)    "app_d"   app. D
    "obs_1" Obs. 1       "thm_1"  Thm. 1      "table_1" Table 1      "slip_2"  slip 2: an entry of docs/errata.md

"eq_cov" is eq. (cov), a formula of ours that the paper does not number. tests/docs/test_paper.py tests this file.
"""
import pathlib
import re
import tomllib

FILE = pathlib.Path(__file__).resolve().parent.parent / "paper.toml"

# What the paper has: 38 equations, an observation, a theorem, algorithms of so many lines, figures, tables, appendices; and
# the slips of version 4 that docs/errata.md lists.
N_LINES = {"alg_1": 8, "alg_2": 7, "alg_3": 6}
STATEMENTS = {f"eq_{n}" for n in range(1, 39)} | {"obs_1", "thm_1"} | set(N_LINES)
EXHIBITS = {f"fig_{n}" for n in ("1", "2", "3a", "3b", "4")} | {"table_1", "table_2"} | {f"app_{x}" for x in "abcdefg"}
SLIPS = {f"slip_{n}" for n in range(1, 14)}

FIELDS = {"where", "says", "formula", "printed", "slip", "lines", "place", "absent", "untested"}
TAG = re.compile(r"\\tag\{(\w+)\}")
HEADING = re.compile(r"^#+ .*\{#(\w+)\}", re.MULTILINE)
NUMBERED = re.compile(r"(?:eq|obs|thm|alg|slip)_\d+")
EQUATION = re.compile(r"\beqs?\. \((\w+)\)", re.IGNORECASE)
LINE = re.compile(r"\bAlg\. (\d),(?:\s|///?)+lines? (\d+)(?:(?:-| and | to )(\d+))?")


class Paper:
    """The list: items by key in the order of the file, notation, and the names of our own formulas."""

    def __init__(self, text):
        raw = tomllib.loads(text)
        self.notation = raw.pop("notation", [])
        self.ours = {f"eq_{name}": item for name, item in raw.pop("ours", {}).items()}
        self.items = raw

    def cited(self):
        """Returns what code and tests may cite and a chapter has to derive, in order; then the slips, which tests cite."""
        statements = {key: item for key, item in self.items.items() if key in STATEMENTS}
        return statements | self.ours | self.slips()

    def exhibits(self):
        return {key: item for key, item in self.items.items() if key in EXHIBITS}

    def slips(self):
        return {key: item for key, item in self.items.items() if key in SLIPS}

    def replacements(self, key):
        return [(entry["paper"], entry["ours"]) for entry in self.notation if key in entry.get("in", [key])]


def read():
    return Paper(FILE.read_text(encoding="utf-8"))


def label_of(key):
    """eq_6 -> eq. (6), alg_3 -> Alg. 3, fig_3a -> Fig. 3(a), app_d -> app. D, slip_2 -> slip 2."""
    kind, number = key.rsplit("_", 1)
    if kind == "fig" and len(number) > 1:
        number = f"{number[0]}({number[1:]})"
    return {"eq": f"eq. ({number})", "table": f"Table {number}", "app": f"app. {number.upper()}", "slip": f"slip {number}"}.get(
        kind, f"{kind.capitalize()}. {number}")


def tokens(tex):
    """A formula as a list of its symbols, without what only sets it: spaces, sizes of brackets, the full stop at its end."""
    tex = re.sub(r"\\(?:left|right)\s*\.", "", TAG.sub("", tex))
    found = re.findall(r"\\(?:mathrm|operatorname|text)\s*\{[^{}]*\}|\\[a-zA-Z]+|\\.|\S", tex)
    spaces = {"\\left", "\\right", "\\,", "\\;", "\\:", "\\!", "\\ ", "\\quad", "\\qquad"}
    found = [re.sub(r"\s", "", token) for token in found if token not in spaces]
    while found and found[-1] in (".", ",", ";"):
        found.pop()
    # x_{i} is x_i.
    result = []
    for i, token in enumerate(found):
        single = i >= 2 and found[i - 2] in "_^" and found[i - 1] == "{" and found[i + 1 : i + 2] == ["}"]
        if single:
            result.pop()
        elif token == "}" and i >= 3 and found[i - 3] in "_^" and found[i - 2] == "{":
            continue
        result.append(token)
    return result


def replaced(symbols, pairs):
    """The symbols with every occurrence of a pair's first formula written as its second, pair by pair."""
    for paper, ours in pairs:
        old, new, result, i = tokens(paper), tokens(ours), [], 0
        while i < len(symbols):
            if symbols[i : i + len(old)] == old:
                result += new
                i += len(old)
            else:
                result.append(symbols[i])
                i += 1
        symbols = result
    return symbols


def in_our_letters(formula, pairs):
    return replaced(tokens(formula), pairs)


def prose_tokens(text, pairs):
    """A line of an algorithm: words as they are, formulas in our letters."""
    result = []
    for i, part in enumerate(text.split("$")):
        result.append(in_our_letters(part, pairs) if i % 2 else part.split())
    return result


def displays(text):
    """[(line, formula)] of the displayed formulas of a chapter, outside of quoted code."""
    found, begin, fenced = [], None, False
    lines = text.splitlines()
    for i, line in enumerate(lines):
        fenced ^= line.lstrip().startswith("```") and begin is None
        if line.strip() == "$$" and not fenced:
            if begin is not None:
                found.append((begin + 1, "\n".join(lines[begin + 1 : i])))
            begin = i if begin is None else None
    return found


def anchors(text):
    """Keys of the items that a chapter derives: tags of its displays, and headings."""
    return [f"eq_{tag}" for _, shown in displays(text) for tag in TAG.findall(shown)] + [
        anchor for anchor in HEADING.findall(text) if NUMBERED.fullmatch(anchor)]


def table_below(text, anchor):
    """Second column of the first table below a heading, {first column: second column}."""
    part = re.split(rf"^#+ .*\{{#{anchor}\}}\s*$", text, flags=re.MULTILINE)[1]
    rows = re.search(r"(?:^\|.*\n)+", part, re.MULTILINE)
    cells = [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in rows[0].splitlines()] if rows else []
    return {row[0]: row[1] for row in cells[2:]}


def list_faults(paper):
    """Names what docs/paper.toml itself lacks, or has too much."""
    for key in sorted((STATEMENTS | EXHIBITS | SLIPS) - set(paper.items)):
        yield f"the list has no {key}, {label_of(key)} of the paper"
    for key in sorted(set(paper.items) - (STATEMENTS | EXHIBITS | SLIPS)):
        yield f"{key}: the paper has no such item"
    for key, item in paper.items.items():
        for field in sorted(set(item) - FIELDS):
            yield f"{key}: there is no field '{field}'"
        if not item.get("says") or not item.get("where"):
            yield f"{key}: 'where' and 'says' belong to every item"
        if key.startswith("eq_") and not item.get("formula"):
            yield f"{key}: a numbered equation has a formula"
        if key in N_LINES and len(item.get("lines", [])) != N_LINES[key]:
            yield f"{key}: {label_of(key)} has {N_LINES[key]} lines, here are {len(item.get('lines', []))}"
        if key in EXHIBITS and bool(item.get("place")) == bool(item.get("absent")):
            yield f"{key}: either 'place' names an anchor of the book, or 'absent' says why there is none"
        if item.get("slip") and f"slip_{item['slip']}" not in SLIPS:
            yield f"{key}: there is no slip {item['slip']}"
    for key in paper.ours:
        if not re.fullmatch(r"eq_[a-z]+", key):
            yield f"{key}: a formula of ours has a name in small letters"
    for entry in paper.notation:
        stale = [key for key in entry.get("in", []) if key not in paper.items]
        used = any(tokens(item.get("formula", "")) != in_our_letters(item.get("formula", ""), [(entry["paper"], entry["ours"])])
                   or any(prose_tokens(line, []) != prose_tokens(line, [(entry["paper"], entry["ours"])]) for line in item.get("lines", []))
                   for key, item in paper.items.items() if key in entry.get("in", [key]))
        if stale or not used:
            yield f"notation '{entry['paper']}': no item of the list has it"


def chapter_faults(paper, chapters):
    """Formulas under a wrong number, and items that no chapter states. chapters: {name: text}."""
    stated = {}
    for name, text in chapters.items():
        numbered = [(line, "eq_" + tag, formula) for line, formula in displays(text) for tag in TAG.findall(formula)]
        if len(numbered) != len(TAG.findall(re.sub(r"`[^`]*`", "", text))):
            yield f"{name}: a \\tag outside of a display between two lines $$"
        for key in anchors(text):
            if key not in paper.cited():
                yield f"{name}: the paper has no {key}"
            elif key in stated:
                yield f"{name}: {label_of(key)} is derived in {stated[key]} already"
            stated.setdefault(key, name)
        for line, key, formula in numbered:
            want = paper.items.get(key, {}).get("formula")
            if want and tokens(formula) != in_our_letters(want, paper.replacements(key)):
                yield (f"{name}:{line}: this is not {label_of(key)} of the paper: {' '.join(TAG.sub('', formula).split())}\n"
                       f"    docs/paper.toml has: {want}")
        for key in (key for key in anchors(text) if key in N_LINES and key in paper.items):
            table, pairs = table_below(text, key), paper.replacements(key)
            lines = {str(i): line for i, line in enumerate(paper.items[key].get("lines", []), start=1)}
            for i in sorted(set(table) | set(lines), key=lambda i: i.zfill(3)):
                if i not in lines or i not in table or prose_tokens(table[i], []) != prose_tokens(lines[i], pairs):
                    yield f"{name}: {label_of(key)}, line {i}: '{table.get(i)}', the paper has '{lines.get(i)}'"
    for key in paper.cited():
        if key not in stated:
            yield f"no chapter has {label_of(key)}: a display with \\tag, or a heading with {{#{key}}}"
    for key, item in paper.exhibits().items():
        holders = [text for text in chapters.values() if f"{{#{item.get('place')}}}" in text]
        if item.get("place") and not any(label_of(key).lower() in text.lower() for text in holders):
            yield f"{key}: no page with the anchor '{item['place']}' mentions {label_of(key)}"


def mention_faults(paper, name, text):
    """Numbers that a text mentions and the paper does not have."""
    for number in EQUATION.findall(text):
        if f"eq_{number}" not in paper.cited():
            yield f"{name}: the paper has no eq. ({number}), and docs/paper.toml no formula of that name"
    for algorithm, first, last in LINE.findall(text):
        if f"alg_{algorithm}" not in N_LINES or max(int(first), int(last or 0)) > N_LINES[f"alg_{algorithm}"]:
            yield f"{name}: Alg. {algorithm} has no line {last or first}"
