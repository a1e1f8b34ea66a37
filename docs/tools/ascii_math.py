#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Formulas of doc comments as TeX. In the sources they are plain text, indented by five columns; on the pages of functions they are typeset.

A formula is translated as a whole or not at all: a word that is not known here leaves it as it is.

Run: docs/tools/ascii_math.py     prints every formula of the headers, and what becomes of it

tests/docs/test_ascii_math.py tests this file.
"""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GREEK = {"alpha", "beta", "gamma", "delta", "epsilon", "zeta", "lambda", "mu", "xi", "phi", "Gamma", "Delta", "Omega"}
OPERATORS = {"sum": r"\sum", "sup": r"\sup", "max": r"\max", "min": r"\min", "exp": r"\exp", "log": r"\log", "ln": r"\ln", "log2": r"\log_2",
             "cov": r"\operatorname{cov}", "softmax": r"\operatorname{softmax}", "merge": r"\operatorname{merge}", "owner": r"\operatorname{owner}",
             "slot": r"\operatorname{slot}", "bitrev": r"\operatorname{bitrev}", "adjoint": r"\operatorname{adjoint}", "lse": r"\mathrm{lse}",
             "scale": r"\mathrm{scale}\,", "far": r"\mathrm{far}", "mod": r"\bmod", "in": r"\in", "dv": r"\delta v"}
WORDS = {"with", "for", "or", "and", "since", "at"}
ROMAN = {"tot", "steps", "out"}
AROUND = {"ceil": (r"\lceil ", r" \rceil"), "floor": (r"\lfloor ", r" \rfloor")}
SYMBOLS = {"<=": r"\le", ">=": r"\ge", "<-": r"\leftarrow", "->": r"\to", "...": r"\dots", "*": r"\cdot", "+=": r"\mathrel{+}=", "<": r"\langle", ">": r"\rangle",
           "<>": "<"}
DERIVATIVE = re.compile(r"(?<![\w'])d(?:\^(\w))?\s?([A-Zf]?)\s?/\s?(d\^?\w+(?:\^T)?(?: (?:\.\.\. )?d[a-z]\w*(?:\^T)?)*)")
TOKEN = re.compile(r"\s+|\d+(?:/[A-Za-z\d]+!?)?|[A-Za-z]+2?'*|<=|>=|<-|->|\.\.\.|\+=|[-+*/=,.;:!|()\[\]{}<>^_]")


class Unknown(Exception):
    """A word or a sign that has no translation."""


def closing(text, start):
    """Index of the bracket that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += text[i] in "({["
        depth -= text[i] in ")}]"
        if depth == 0:
            return i
    raise Unknown(text[start:])


def name(word):
    """An identifier."""
    stem = word.rstrip("'")
    if stem in OPERATORS:
        return OPERATORS[stem] + word[len(stem):]
    if stem in GREEK:
        return "\\" + word
    if stem in WORDS:
        return rf"\ \text{{{word}}}\ "
    if len(stem) == 1:
        return word
    raise Unknown(word)


def script(text, start):
    """Returns what stands below or above, and where it ends: a group in brackets, or a word."""
    if text[start] in "({":
        end = closing(text, start)
        return translated(text[start + 1 : end]), end + 1
    if text[start] == "*":
        return "*", start + 1
    word = re.compile(r"[A-Za-z]+|\d+|-\d+").match(text, start)
    if not word:
        raise Unknown(text[start:])
    # A letter with a number after it, as in zeta_A1: an index of an index.
    if (number := re.compile(r"\d+|n\b").match(text, word.end())) and word[0].isalpha():
        return f"{{{word[0]}_{number[0]}}}", number.end()
    if word[0] in ROMAN:
        return rf"\mathrm{{{word[0]}}}", word.end()
    if len(word[0]) > 1 and word[0] == word[0].capitalize() and word[0][1:] == "n":
        return f"{{{word[0][0]}_n}}", word.end()
    return ("\\" + word[0] if word[0] in GREEK else word[0]), word.end()


def derivative(match):
    """d^2 F / dzeta_A dzeta_B as a fraction, in the plain text that translated() leaves alone."""
    order, of, below = match[1], match[2], match[3]
    top = r"\partial" + (f"^{order}" if order else "") + (f" {of}" if of else "")
    parts = [r"\dots" if part == "..." else r"\partial " + translated(part[1:]) for part in below.split(" ")]
    return rf"\frac{{{top}}}{{{' '.join(parts)}}}"


def translated(text):
    """TeX. @throws Unknown"""
    if match := DERIVATIVE.search(text):
        return f"{translated(text[: match.start()])} {derivative(match)} {translated(text[match.end() :])}".strip()
    out, i = [], 0
    while i < len(text):
        token = TOKEN.match(text, i)
        if not token:
            raise Unknown(text[i:])
        word = token[0]
        before, after = text[i - 1 : i], text[token.end() : token.end() + 1]
        i = token.end()
        if word.isspace():
            out.append(r"\qquad " if len(word) > 1 and out and out[-1] == "," else " ")
        elif word in ("_", "^"):
            inside, i = script(text, i)
            out.append(f"{word}{{{inside}}}")
        elif word in AROUND and after == "(":
            end = closing(text, i)
            out += [AROUND[word][0], translated(text[i + 1 : end]), AROUND[word][1]]
            i = end + 1
        elif word[0].isalpha():
            out.append(name(word))
        elif "/" in word and len(word) > 1:
            above, below = word.split("/")
            out.append(rf"\tfrac{{{above}}}{{{translated(below)}}}")
        elif word == "." and before and after and before not in " ." and after not in " .":
            out.append(r" \cdot ")
        elif word in "<>" and len(word) == 1:
            # With room on both sides they compare, else they are the brackets of a mean.
            out.append(word if before == " " and after == " " else SYMBOLS[word] + " ")
        elif word == "*" and before.isalpha() and after == "(":
            out.append("^*")
        elif word in "{}":
            raise Unknown(word)
        else:
            out.append(SYMBOLS.get(word, word) + (" " if word in SYMBOLS else ""))
    return re.sub(r" {2,}", " ", "".join(out)).strip()


def formula_of(line):
    """TeX of one line: a formula, and after some room words about it. @throws Unknown"""
    try:
        return translated(line)
    except Unknown:
        said = re.fullmatch(r"(.*\S) {3,}([A-Za-z][\w ,;.:()'=-]*)", line)
        if not said or "_" in said[2] or not re.search(r"=| -> ", said[1]):
            raise
        return rf"{translated(said[1])}\qquad \text{{{said[2]}}}"


def formulas(lines):
    """Lines of TeX for the lines of one formula, or None if any of them has something unknown."""
    lines = [line.strip() for line in lines]
    if any(line.count(left) != line.count(right) for line in lines for left, right in ("()", "[]", "{}")):
        return None
    try:
        return [formula_of(line) for line in lines]
    except Unknown:
        return None


def blocks(lines):
    """(first, end) of the formulas in the lines of a file: neighbouring lines of a comment that are indented by five columns."""
    formula = re.compile(r"\s*///( {5,})\S")
    start = 0
    while start < len(lines):
        end = start
        while end < len(lines) and formula.match(lines[end]):
            end += 1
        if end > start:
            yield start, end
        start = max(end, start + 1)


def main():
    for room in ("reference", "gpu", "distributed"):
        for path in sorted(path for path in (ROOT / room).rglob("*") if path.suffix in {".hpp", ".cuh", ".cu"}):
            lines = path.read_text(encoding="utf-8").splitlines()
            for start, end in blocks(lines):
                texts = [line.strip()[3:] for line in lines[start:end]]
                for text, tex in zip(texts, formulas(texts) or ["(as it is)"] * len(texts)):
                    print(f"{text.strip()}\n    {tex}")


if __name__ == "__main__":
    main()
