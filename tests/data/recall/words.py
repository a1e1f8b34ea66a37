#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The text that the model is trained on and asked about: prose, words, records and questions, all from one random generator.

Needs the standard library alone. Equal seeds give equal text; the order of the calls is part of the recipe.
"""
import pathlib
import random

PROSE = pathlib.Path(__file__).resolve().parent.parent / "minilm" / "text.txt"

LETTERS, VOWELS, CONSONANTS = "abcdefghijklmnopqrstuvwxyz", "aeiou", "bcdfghjklmnprstvwxz"
PRINTABLE = "".join(map(chr, range(32, 127)))
LEADS = ["The code of ", "The word of ", "The number of ", "The name of ", "code of ", "of ", "", "And ", "\n", "Q: "]


class Prose:
    """Endless text: every word is followed by one that follows it in a short public-domain text."""
    def __init__(self, path):
        self.words = pathlib.Path(path).read_text().split()
        self.after = {}
        for a, b in zip(self.words, self.words[1:]):
            self.after.setdefault(a, []).append(b)
        self.values = sorted({w for w in self.words if w.isascii() and w.isalpha() and w.islower() and 4 <= len(w) <= 8})

    def sentence(self, rng, n):
        a = rng.choice(self.words)
        out = [a]
        for _ in range(n - 1):
            a = rng.choice(self.after.get(a) or self.words)
            out.append(a)
        return " ".join(out)


def syllables(rng, n):
    return "".join(rng.choice(VOWELS if i % 2 else CONSONANTS) for i in range(n))


def any_word(rng, n):
    return syllables(rng, n) if rng.random() < 0.5 else "".join(rng.choice(LETTERS) for _ in range(n))


def value(rng, prose):
    r = rng.random()
    if r < 0.6:
        return "".join(rng.choice("0123456789") for _ in range(6))
    return rng.choice(prose.values) if r < 0.7 else any_word(rng, rng.randrange(4, 9))


def neighbour(rng, key):
    i = rng.randrange(len(key))
    kind = VOWELS if key[i] in VOWELS and rng.random() < 0.7 else LETTERS
    return key[:i] + rng.choice(kind) + key[i + 1:]


def make_keys(rng, n, near):
    keys, have = [], set()
    while len(keys) < n:
        k = neighbour(rng, rng.choice(keys)) if keys and rng.random() < near else any_word(rng, 6)
        if k not in have:
            have.add(k)
            keys.append(k)
    return keys


def twin(rng, v):
    """Another value with the same beginning."""
    i = rng.randrange(1, len(v))
    n = len(v) - i if v.isdigit() else rng.randrange(1, 9 - i)
    return v[:i] + "".join(rng.choice("0123456789" if v.isdigit() else LETTERS) for _ in range(n))


def filler(rng, prose, keys, kind, twins=0.0, values=()):
    if twins and values and rng.random() < 0.3 * twins:  # a value, or its beginning, that is not the answer
        v = rng.choice(values)
        v = v if rng.random() < 0.3 else twin(rng, v)
        return rng.choice(["", "is ", any_word(rng, 6) + " is ", prose.sentence(rng, 2) + " "]) + v + rng.choice([" ", ". ", ", "])
    r = rng.random()
    if r < 0.15 and keys:  # a key, or nearly one, that is only mentioned
        k = rng.choice(keys)
        return (neighbour(rng, k) if rng.random() < 0.7 else "of " + k) + rng.choice([" ", " was ", ", ", " as "])
    if kind == 0:
        return prose.sentence(rng, rng.randrange(2, 9)) + " "
    if kind == 1:
        return any_word(rng, rng.randrange(2, 9)) + rng.choice([" ", " ", " ", ". ", ", ", " is ", "\n"])
    return "".join(rng.choice(PRINTABLE) for _ in range(rng.randrange(2, 9))) + " "


def lesson(rng, prose, N, pool, Q, fill, lead, near, twins):
    """A haystack of N characters with up to `pool` records; Q questions; where the answers start; answer lengths."""
    keys = make_keys(rng, pool, near)
    parts, have, values, n = [], {}, [], 0
    kind = rng.choice([0, 0, 1, 1, 2])
    todo = list(keys)
    while n < N:
        if todo and rng.random() > fill:
            k = todo.pop()
            v = twin(rng, rng.choice(values)) if twins and values and rng.random() < twins else value(rng, prose)
            p = rng.choice(LEADS) + k + " is " + v + "." + rng.choice(" \n")
            if n + len(p) <= N:
                have[k] = v
                values.append(v)
        else:
            p = filler(rng, prose, keys, kind, twins, values)
            kind = rng.choice([0, 0, 1, 1, 2]) if rng.random() < 0.1 else kind
        parts.append(p)
        n += len(p)
    asks = []
    for k in rng.choices(list(have), k=Q) if have else []:
        before = parts[rng.randrange(len(parts))] + rng.choice(LEADS)
        asks.append(((" " * lead + before)[-lead:] + k + " is ", have[k] + "."))
    return "".join(parts)[:N], asks


def encode(s):
    return [b if b < 128 else 63 for b in s.encode("utf-8", "replace")]
