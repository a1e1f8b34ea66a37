# SPDX-License-Identifier: Apache-2.0
"""The lists of mutants: how they are read, and how all mutants of a file become switches in one copy of it.

A list is a text file. A section is a source file and the test that its mutants must fail; a mutant is a name and an excerpt
of the file with the change marked as `git diff --word-diff` marks it:

    [reference/state/state.hpp]
    killed by: test_reference -tc="state: *"

    low-side-not-scaled
      return high + [-r.factor * low-]{+low+};

The excerpt must occur once in the file; blanks and line breaks in it stand for any others. A mutant may name its own test
with a line `killed by:`. A mutant that changes nothing that a test could see has a line `survives:` with the reason.

An expression becomes `(mutated ? (NEW) : (OLD))` and must be one operand wherever it stands; one or more whole statements,
ending in ; or }, become `if (mutated) { NEW } else { OLD }`, where NEW may be empty.

A script, `run` or a file of Python, has no switches: NEW stands in the place of OLD, whatever they are, in a copy of the tree of its own.
Its test is a script of unittest, tests/test_run.py.
"""
import fnmatch
import re
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LISTS = sorted(Path(__file__).resolve().parent.glob("*.txt"))


class Fault(Exception):
    """A fault of a list, in one line that names the mutant."""


def is_operand(text):
    """Tests whether it may be one: not empty, brackets in pairs, no operator of two operands at its ends, no comma of a list."""
    bare = re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'', "0", text)
    while bare != (bare := re.sub(r"\([^()]*\)|\[[^][]*\]|\{[^{}]*\}", " 0 ", bare)):
        pass
    bare = re.sub(r"<[\w:, ]*>", "", bare)  # arguments of a template
    return bool(bare.strip()) and not re.search(r"^\s*(?:[<>=/%|^]|!=|&&|if\b)|[-+*/<=&|]\s*$|[][(){},;]", bare)


@dataclass
class Mutant:
    """A line `name` of a list and the lines under it."""
    name: str
    file: str
    test: str
    excerpt: str = ""
    survives: str = ""

    @property
    def key(self):
        """Returns what TREE_ATTN_MUTANT holds to switch it on; stays the same when the list grows."""
        return f"{zlib.crc32(self.name.encode()):#x}"

    @property
    def is_script(self):
        return Path(self.file).suffix in ("", ".py")

    def changes(self):
        """The excerpt in parts: text, old, new, text, old, new, ..., text."""
        parts = re.split(r"\[-(.*?)-\]\{\+(.*?)\+\}", self.excerpt, flags=re.DOTALL)
        if len(parts) < 4 or not all(old.strip() for old in parts[1::3]):
            raise Fault(f"{self.name}: no [-old-]{{+new+}} in its excerpt")
        for old, new in zip(parts[1::3], parts[2::3]):
            if not self.is_script and not (is_operand(old) and is_operand(new) if old[-1] not in ";}" else new.strip()[-1:] in ("", ";", "}")):
                raise Fault(f"{self.name}: [-{old}-]{{+{new}+}} is neither of whole statements nor of operands")
        return parts

    def places(self, text):
        """Returns where its changes stand in the text of its file: (begin, end, new)."""
        parts = self.changes()
        literal = lambda part: re.sub(r"(?:\\\s|\s)+", lambda _: r"\s+", re.escape(part))
        pattern = "".join(f"({literal(part)})" if i % 3 == 1 else literal(part) for i, part in enumerate(parts) if i % 3 != 2)
        found = list(re.finditer(pattern, text))
        if len(found) != 1:
            raise Fault(f"{self.name}: its excerpt occurs {len(found)} times in {self.file}, not once")
        places = [(*found[0].span(i + 1), new) for i, new in enumerate(parts[2::3])]
        if not self.is_script and any(text[end - 1] in ";}" and (text[begin] == "," or text[:begin].rstrip(" ")[-1] not in "\n;{}:)") for begin, end, _ in places):
            raise Fault(f"{self.name}: its change is a part of a statement, and ends one")
        return places

    def applied(self):
        """The text of its file with its changes, for a script."""
        text = source_of(self)
        for begin, end, new in reversed(self.places(text)):
            text = text[:begin] + new + text[end:]
        return text


def source_of(mutant):
    path = ROOT / mutant.file
    if not path.is_file():
        raise Fault(f"{mutant.name}: there is no {mutant.file}")
    return path.read_text(encoding="utf-8")


def read():
    """All mutants of all lists."""
    mutants = []
    for path in LISTS:
        file = test = ""
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = line.strip()
            if not words or words.startswith("#"):
                continue
            if line.startswith("[") and line.endswith("]"):
                file, test = line[1:-1], ""
            elif line.startswith("killed by: "):
                test = line.removeprefix("killed by: ")
            elif line[0] != " ":
                mutants.append(Mutant(words, file, test))
            elif not mutants or mutants[-1].file != file:
                raise Fault(f"{path.name}:{number}: no mutant is named above this line")
            elif words.startswith("killed by: "):
                mutants[-1].test = words.removeprefix("killed by: ")
            elif words.startswith("survives: ") or mutants[-1].survives:
                mutants[-1].survives += " " * bool(mutants[-1].survives) + words.removeprefix("survives: ")
            else:
                mutants[-1].excerpt += line + "\n"
    by_key = defaultdict(list)
    for mutant in mutants:
        mutant.excerpt = mutant.excerpt.strip()
        by_key[mutant.key].append(mutant.name)
        if not mutant.test:
            raise Fault(f"{mutant.name}: no line 'killed by:' for it or for {mutant.file}")
    for names in by_key.values():
        if len(names) > 1:
            raise Fault(f"two mutants with one name or key: {', '.join(names)}")
    return mutants


def switch(begin, end, text, places):
    """text[begin:end] with the places inside it, (begin, end, new, mutant), turned into switches."""
    out, at = "", begin
    while places:
        # The outermost place that comes first, all mutants of exactly that place, and the places inside it.
        first = min(places, key=lambda place: (place[0], -place[1]))
        here = [place for place in places if place[:2] == first[:2]]
        inside = [place for place in places if first[0] <= place[0] < first[1] and place not in here]
        for place in inside:
            if place[1] > first[1]:
                raise Fault(f"{place[3].name} and {first[3].name} change places that cross")
        places = [place for place in places if place[0] >= first[1]]
        old = switch(first[0], first[1], text, inside)
        if text[first[1] - 1] in ";}":
            old = "".join(f"if (::tree_attn_mutated({m.key})) {{ {new} }} else " for _, _, new, m in here) + f"{{ {old} }}"
        else:
            old = "(" + "".join(f"::tree_attn_mutated({m.key}) ? ({new}) : " for _, _, new, m in here) + f"({old}))"
        out += text[at:first[0]] + old
        at = first[1]
    return out + text[at:end]


def switched_files(mutants):
    """The text of every file of C++ that has a mutant, with all of them switched: {name: text}."""
    by_file = defaultdict(list)
    for mutant in mutants:
        if not mutant.is_script:
            by_file[mutant.file].append(mutant)
    files = {}
    for file, its_mutants in by_file.items():
        text = source_of(its_mutants[0])
        places = [(*place, mutant) for mutant in its_mutants for place in mutant.places(text)]
        files[file] = switch(0, len(text), text, places)
    return files


def check(mutants):
    """Every excerpt is found once, and every filter chooses a test case that is there. No build."""
    switched_files(mutants)
    for mutant in mutants:
        if mutant.is_script:
            mutant.applied()
            if not (ROOT / mutant.test).is_file():
                raise Fault(f"{mutant.name}: there is no {mutant.test}")
    cases = set()
    for path in (ROOT / "tests").rglob("*.cpp"):
        cases.update(re.findall(r'^TEST_CASE[A-Z_]*\("(.*?)"', path.read_text(), flags=re.MULTILINE))
    for mutant in mutants:
        filters = re.findall(r'-tc="(.*?)"', mutant.test)
        for pattern in re.split(r"(?<!\\),", filters[0]) if filters else []:
            if not any(fnmatch.fnmatchcase(case.lower(), pattern.replace("\\,", ",").lower()) for case in cases):
                raise Fault(f"{mutant.name}: no test case is called '{pattern}'")
