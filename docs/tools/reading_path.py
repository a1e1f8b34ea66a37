#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reading path: the files in which a reader sees all that decides a bit, from eq. (6) to kernels and to two levels over MPI.

Run: docs/tools/reading_path.py            check docs/reading_path.txt: exit status 1 and one line for each fault
     docs/tools/reading_path.py --write    and write the path into the pages that show it

The files are read whole and in order, so a file includes only what stands above it, or a header that decides no bit. What these headers include
is followed too: every file of the house that is reached stands on the path, or among the exceptions, by name or by a folder without a file of the
path. The plain edition has limits of its own: what grows past them belongs in the engine.
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIST = "docs/reading_path.txt"

# Most files and lines of the path, and most lines beside it and of single files.
MOST_FILES, MOST_LINES, MOST_EXCEPTIONS = 25, 2500, 18
BESIDE = {"kernels": 500, "tensor cores": 360, "nccl": 120}
PLAIN = {"reference/decode/plain.hpp": 100, "distributed/exchange/plain_two_level.cpp": 80,
         "distributed/exchange/plain_two_level_nccl.cu": 120, "gpu/ladder/04_split.cu": 200}
SECTIONS = ["mathematics", "states", "tensors", "decode", "ranks", *BESIDE, "exceptions"]

LINES_A_MINUTE = 20
# The pages that show the path, and a file as a link from there.
PAGES = {"docs/reading_guide.md": "`{}`"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"(?:tree_attn/)?([^"]+)"', re.MULTILINE)


def read(text):
    """({section: {file: what it is}}, faults) of a list."""
    sections, faults, files = {}, [], None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if found := re.fullmatch(r"\[(.+)\]", line):
            files = sections.setdefault(found[1], {})
            continue
        name, _, what = line.partition(" ")
        if files is None or not what.strip():
            faults.append(f"{LIST}:{number}: {name} stands in no section or without what it is")
        elif any(name in others for others in sections.values()):
            faults.append(f"{LIST}:{number}: {name} is listed twice")
        else:
            files[name] = what.strip()
    if list(sections) != SECTIONS:
        faults.append(f"{LIST}: its sections are {', '.join(sections)}, not {', '.join(SECTIONS)}")
    return sections, faults


def n_lines(name):
    return (ROOT / name).read_text(encoding="utf-8").count("\n")


def path_of(sections):
    """The files of the path itself."""
    return [name for section in SECTIONS[:-1] if section not in BESIDE for name in sections[section]]


def includes(name):
    return INCLUDE.findall((ROOT / name).read_text(encoding="utf-8"))


def check(sections):
    """Everything that is wrong with the files, one line each."""
    faults, exceptions, used, above = [], sections["exceptions"], set(), set()
    listed = [name for section in SECTIONS[:-1] for name in sections[section]]
    for name in [*listed, *exceptions]:
        if not (ROOT / name).is_dir() if name.endswith("/") else not (ROOT / name).is_file():
            return [f"{LIST}: {name} is not there"]
        if name.endswith("/") and any(each.startswith(name) for each in listed):
            return [f"{LIST}: {name} is an exception, and holds files of the path"]

    def exception_of(header):
        return next((name for name in exceptions if header == name or name.endswith("/") and header.startswith(name)), None)
    reached = []
    for name in listed:
        above.add(name)
        for header in includes(name):
            if header in listed and header not in above:
                faults.append(f"{name}: includes {header}, which stands below it in {LIST}")
            reached.append((name, header))
    # What is reached through the exceptions decides no bit either, or stands on the path.
    followed = set(listed)
    for name, header in reached:
        if header in followed:
            continue
        followed.add(header)
        if exception_of(header) is None:
            faults.append(f"{name}: includes {header}, which is neither on the path nor an exception of {LIST}")
            continue
        used.add(exception_of(header))
        reached.extend((header, below) for below in includes(header))
    faults += [f"{LIST}: no file of the path reaches the exception {name}" for name in exceptions if name not in used]

    def limit(what, n, most):
        faults.extend([f"{what}, at most {most}"] if n > most else [])
    path = path_of(sections)
    lines = sum(map(n_lines, path))
    limit(f"{LIST}: {len(path)} files on the path", len(path), MOST_FILES)
    limit(f"{LIST}: {lines} lines on the path", lines, MOST_LINES)
    limit(f"{LIST}: {len(exceptions)} exceptions", len(exceptions), MOST_EXCEPTIONS)
    for section, most in BESIDE.items():
        lines = sum(map(n_lines, sections[section]))
        limit(f"{LIST}: {lines} lines under [{section}]", lines, most)
    for name, most in PLAIN.items():
        limit(f"{name}: {n_lines(name)} lines", n_lines(name), most)
        if name not in listed:
            faults.append(f"{name}: is not on the path")
    return faults + [f"{LIST}: [{section}] is empty" for section in SECTIONS if not sections[section]]


def minutes(names):
    """Rounded up to five, so that the pages stay as they are when a few lines change."""
    return -(-sum(map(n_lines, names)) // (5 * LINES_A_MINUTE)) * 5


def table(sections, link):
    """The path as a page shows it."""
    parts = [(section, sections[section]) for section in SECTIONS[:-1]]
    total = sum(minutes(names) for section, names in parts if section not in BESIDE)
    out = [f"{len(path_of(sections))} files; {total} minutes, at {LINES_A_MINUTE} lines a minute.", "", "| part | minutes | read | what it is |", "| --- | ---: | --- | --- |"]
    for section, files in parts:
        for name, what in files.items():
            begins = name == next(iter(files))
            out.append(f"| {section * begins}{', beside the path' * (begins and section in BESIDE)} | {minutes(files) if begins else ''} | {link.format(name)} | {what} |")
    return "\n".join(out)


def shown(page, text):
    """A page with the path between its marks; None if it has none."""
    found = re.search(r"(<!-- path: begin \(docs/tools/reading_path\.py\) -->\n).*?(<!-- path: end -->)", page, re.DOTALL)
    return found and page[:found.start()] + found[1] + text + "\n" + found[2] + page[found.end():]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    sections, faults = read((ROOT / LIST).read_text(encoding="utf-8"))
    faults = faults or check(sections)
    for name, link in {} if faults else PAGES.items():
        page = (ROOT / name).read_text(encoding="utf-8")
        now = shown(page, table(sections, link))
        if arguments.write and now:
            (ROOT / name).write_text(now, encoding="utf-8")
        elif now != page:
            faults.append(f"{name}: does not show the path of {LIST}; docs/tools/reading_path.py --write writes it")
    for line in faults:
        print(line)
    if not faults:
        path = path_of(sections)
        print(f"{len(path)} files, {sum(map(n_lines, path))} lines")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
