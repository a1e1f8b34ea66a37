#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A haystack of exactly LENGTH characters of prose with records in it: make_haystack.py LENGTH haystack.txt [--questions 60].

Next to it goes haystack.txt.tsv, a line for each of the questions drawn: question, answer, and the position of the answer's
first character. `tree_attn generate MODEL haystack.txt --questions haystack.txt.tsv` asks them. Needs the standard library alone.
"""
import argparse
import random

from words import PROSE, Prose, any_word, make_keys, syllables, value


def haystack(length, seed, share=0.25, near=0.0, text=None, letters=False):
    """Text and records. share: part of the pieces of text that are records; near: part of the keys that differ in one letter from another;
    text: the file whose word pairs the prose follows; letters: words of random letters instead of prose."""
    rng = random.Random(seed)
    prose = Prose(text or PROSE)
    guess = int(length / 30) + 10
    keys = iter(make_keys(rng, guess, near)) if near else None
    used, parts, records, n, column = set(), [], [], 0, 0
    while n < length:
        if rng.random() < share:
            k = next(keys) if near else syllables(rng, 6)
            if k in used:
                continue
            used.add(k)
            v = value(rng, prose)
            lead = question(k, v)
            p = lead + v + ". "
            if n + len(p) <= length:
                records.append((k, v, n + len(lead)))
        else:
            words = rng.randrange(4, 14)
            p = (" ".join(any_word(rng, rng.randrange(2, 9)) for _ in range(words)) if letters else prose.sentence(rng, words)) + " "
        if column + len(p) > 100:
            p, column = p[:-1] + "\n", 0
        parts.append(p)
        n, column = n + len(p), column + len(p)
    return "".join(parts)[:length], records


def question(key, value):
    """Returns what precedes the value of a record, in the text and in a question about it."""
    return ("The code of " if value.isdigit() else "The word of ") + key + " is "


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("length", type=int)
    ap.add_argument("out")
    ap.add_argument("--seed", type=int, default=5)
    ap.add_argument("--share", type=float, default=0.25)
    ap.add_argument("--near", type=float, default=0.0)
    ap.add_argument("--text")
    ap.add_argument("--letters", action="store_true")
    ap.add_argument("--questions", type=int, default=60)
    a = ap.parse_args()
    text, records = haystack(a.length, a.seed, a.share, a.near, a.text, a.letters)
    asked = random.Random(7).sample(records, min(len(records), a.questions))
    with open(a.out, "w") as file:
        file.write(text)
    with open(a.out + ".tsv", "w") as file:
        file.writelines(f"{question(k, v)}\t{v}\t{at}\n" for k, v, at in asked)
    print(f"{len(text)} characters, {len(records)} records, {len(asked)} questions")
