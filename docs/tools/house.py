#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of the house that no compiler checks.

Run: docs/tools/house.py             arrows between sub-rooms, names, includes and comments: exit status 1 and one line a fault
     docs/tools/house.py --format    every C++ and CUDA file is as .clang-format has it: 77 if there is no clang-format 14
     docs/tools/house.py --fix       bring every file to that format, the order of its includes with it

What still breaks a rule is in KNOWN, with the reason. A line of KNOWN that nothing breaks any more is a fault too: the list shrinks.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
from collections import defaultdict

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SOURCES = (".hpp", ".cpp", ".cuh", ".cu")
FOLDERS = ["reference", "gpu", "distributed", "notebooks_cpp", "tests", "docs"]

# The sub-rooms, from the ground up, and the project files that each may include besides its own.
REFERENCE = ["reference/"]
ARROWS = {
    "reference/state": [],
    "reference/tensor": ["reference/state"],
    "reference/energy": ["reference/state"],
    "reference/oracle": ["reference/state", "reference/tensor", "reference/energy"],
    "reference/decode": ["reference/state", "reference/tensor", "reference/energy"],
    "reference/cpu": ["reference/state", "reference/tensor", "reference/energy", "reference/decode"],
    "reference/data": REFERENCE,
    "gpu/types": ["reference/state", "reference/tensor"],
    "gpu/emulator": ["reference/state", "reference/tensor", "gpu/types"],
    "gpu/platform": ["reference/state", "reference/tensor", "gpu/types", "gpu/emulator"],
    "gpu/engine": ["reference/state", "reference/tensor", "gpu/types", "gpu/platform"],
    "gpu/ladder": ["reference/state", "reference/tensor", "gpu/types", "gpu/platform", "gpu/engine"],
    "gpu/backend": REFERENCE + ["gpu/"],
    "distributed/transport": REFERENCE + ["gpu/backend"],
    "distributed/exchange*.cu": ["reference/state", "gpu/types", "gpu/platform", "distributed/transport"],
    "distributed/exchange": REFERENCE + ["gpu/backend", "distributed/transport"],
    "distributed/interface": REFERENCE + ["gpu/backend", "distributed/transport", "distributed/exchange"],
    "distributed/program": REFERENCE + ["gpu/backend", "distributed/transport", "distributed/exchange", "distributed/interface"],
    "distributed/language_model": REFERENCE + ["distributed/interface", "distributed/program"],
    "tests/reference": REFERENCE + ["tests/support"],
    "tests/gpu": REFERENCE + ["gpu/", "tests/support"],
}

# Libraries, and the only places that may include them. What needs them, directly or not, is not for the rest.
LIBRARIES = {
    r"(unsupported/)?Eigen/": ["reference/energy", "reference/oracle", "reference/decode/*.cpp", "reference/cpu/*.cpp", "reference/data/*.cpp", "distributed/language_model", "distributed/interface/*.cpp", "tests", "notebooks_cpp"],
    r"nlohmann/": ["reference/data", "distributed/language_model", "distributed/program", "tests"],
    r"CLI/": ["distributed/program", "distributed/language_model", "tests"],
    r"boost/": ["gpu/emulator", "tests/distributed/nccl"],
    r"cuda": ["gpu/platform/cuda", "tests/gpu/cuda", "tests/gpu/soft_gpu", "tests/bench/exchange", "tests/bench/on_a_card", "tests/bench/time_ladder"],
    r"simgrid/": ["tests/bench/simulated"],
    r"mpi\.h": ["distributed", "tests/distributed", "tests/docs", "tests/bench", "notebooks_cpp"],
}

# (rule, file, what) -> why it is still so.
KNOWN = {
    # What a descriptor does not say yet.
    ("by name", "docs/tools/holders.cpp", ""): "who holds what",
    # tests/gpu/cuda/test_host_bits.cpp holds both branches to the same bits.
    ("device branch", "reference/state/subtree.hpp", "__CUDA_ARCH__"): "counts bits of integers",
    ("device branch", "reference/tensor/dtype.hpp", "__CUDA_ARCH__"): "converts elements of 16 bits",
}

# A comment may name what the project does not hold: files of the user, of other projects, or of a build.
NOT_OURS = {"holders.json", "schedules.json"}

faults = []
broken = set()


def fault(rule, path, line, what, text):
    """A line of output, unless the list knows it."""
    known = (rule, path, "" if rule == "by name" else what)
    if known in KNOWN:
        broken.add(known)
    else:
        faults.append(f"{path}:{line}: {text}")


def tracked():
    """Files of the project: what git has, or would have; without git, what lies in its folders."""
    if shutil.which("git"):
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True)
        if listed.returncode == 0 and listed.stdout:
            return sorted({name for name in listed.stdout.splitlines() if (ROOT / name).is_file()})
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")] + list(ROOT.glob("*"))
    return sorted(str(path.relative_to(ROOT)) for path in found if path.is_file() and "__pycache__" not in path.parts)


def sources(files):
    return [name for name in files if name.endswith(SOURCES) and name.split("/")[0] in FOLDERS]


def lines_of(name):
    return (ROOT / name).read_text(encoding="utf-8").splitlines()


INCLUDE = re.compile(r'\s*#\s*include\s+([<"])([^>"]+)[>"]')


ROOMS = ("reference/", "gpu/", "distributed/", "notebooks_cpp/", "tests/", "docs/")


def includes(name):
    """(line number, quoted, file) of each #include; of a file of the project, its path in the tree."""
    for number, line in enumerate(lines_of(name), 1):
        if found := INCLUDE.match(line):
            yield number, found[1] == '"', found[2]


def check_paths(names):
    """A file of the project is included by its path from the root, between quotes; all else between brackets. A consumer includes what
    is installed."""
    for name in names:
        if name.startswith("tests/package/"):
            continue
        for number, quoted, target in includes(name):
            if quoted != target.startswith(ROOMS):
                fault("path", name, number, target, f'{target} is not included as "<room>/..."')


def is_in(name, places):
    """Tests whether a file lies in one of the places: a folder, a prefix that ends with '/', or a folder with *.ending."""
    for place in places:
        folder, star, ending = place.partition("*")
        if name.startswith(folder.rstrip("/") + "/") and (not star or name.endswith(ending)):
            return True
    return False


def check_arrows(names):
    """Sub-rooms include what lies below them."""
    for name in names:
        room = next((room for room in ARROWS if is_in(name, [room])), None)
        if room is None:
            if name.split("/")[0] in ("reference", "gpu", "distributed"):
                faults.append(f"{name}:1: lies in no sub-room; there are: {', '.join(ARROWS)}")
            continue
        for number, quoted, target in includes(name):
            if quoted and "/" in target and not is_in(target, ARROWS[room] + [room]):
                fault("arrow", name, number, target, f"{room} may not include {target}")


def check_libraries(names):
    """Eigen, MPI and the rest are included where they belong, and reached from nowhere else."""
    direct, below = defaultdict(set), {}
    for name in names:
        for number, quoted, target in includes(name):
            if quoted and (ROOT / target).is_file():
                direct[name].add((number, target))
    library_of = defaultdict(dict)
    for name in names:
        for number, quoted, target in includes(name):
            for library, places in LIBRARIES.items():
                if not quoted and re.match(library, target):
                    library_of[name][library] = (number, target)
                    if not is_in(name, places):
                        fault("library", name, number, target, f"<{target}> is not for {name.rsplit('/', 1)[0]}")

    def reached(name):
        if name not in below:
            below[name] = set(library_of[name])
            for _, target in direct[name]:
                below[name] |= reached(target)
        return below[name]

    # What a kernel needs is free of Eigen, and the reference of MPI, however it is included.
    for name in names:
        if is_in(name, ["reference/state", "reference/tensor/*.hpp", "reference/decode/*.hpp", "gpu"]):
            for number, target in sorted(direct[name]):
                if r"(unsupported/)?Eigen/" in reached(target):
                    fault("library", name, number, target, f"{target} brings Eigen, which nothing here may need")


# A std header has neither a slash nor a dot.
def kind_of(name, quoted, target):
    """0 the header that a source is named after, 1 the project's, 2 libraries and the system, 3 std."""
    if quoted:
        stem = target.rsplit("/", 1)[-1].split(".")[0]
        return 0 if not name.endswith((".hpp", ".cuh")) and stem == name.rsplit("/", 1)[-1].split(".")[0] else 1
    return 3 if re.fullmatch(r"[a-z_0-9]+", target) else 2


def check_include_order(names):
    """Own, project, libraries, std: each a block, sorted."""
    for name in names:
        chunk = []
        for number, line in enumerate(lines_of(name) + ["end"], 1):
            if found := INCLUDE.match(line):
                chunk.append((number, kind_of(name, found[1] == '"', found[2]), found[2]))
            elif line.strip():
                for (above, kind, target), (at, next_kind, next_target) in zip(chunk, chunk[1:]):
                    if kind > next_kind:
                        fault("order", name, at, next_target, f"{next_target} stands after {target}; the order is own, project, libraries, std")
                    elif kind == next_kind and (target >= next_target or at != above + 1):
                        fault("order", name, at, next_target, f"{next_target} does not follow {target} in a sorted block")
                    elif kind != next_kind and at != above + 2:
                        fault("order", name, at, next_target, f"no empty line between {target} and {next_target}")
                chunk = []


PATH = re.compile(r"(?<![\w/.$*<>~{}-])((?:[\w.+-]+/)*[\w+-][\w.+-]*\.(?:hpp|cpp|cuh|cu|py|md|txt|json|toml|cmake))(?![\w/*(])")


def comments(name):
    """(line number, text) of the comments of a file."""
    # Anything before // that is in quotes is no comment.
    mark = re.compile(r'^(?:[^"/]|"(?:[^"\\]|\\.)*"|/(?!/))*?//(.*)$') if name.endswith(SOURCES) else re.compile(r"""^(?:[^"'#]|"[^"]*"|'[^']*')*?#(.*)$""")
    for number, line in enumerate(lines_of(name), 1):
        if found := mark.match(line):
            yield number, found[1]


def check_comments(files, names):
    """A file that a comment names exists: by its path, or by its bare name."""
    endings = {"/" + name for name in files}
    bare = {name.rsplit("/", 1)[-1] for name in files}
    scripts = [name for name in files if name.endswith((".py", ".cmake", "CMakeLists.txt")) or name in ("run", ".ci/run", "tests/mutants/run")]
    for name in names + scripts:
        for number, text in comments(name):
            for found in PATH.findall(text):
                known = found in bare if "/" not in found else any(ending.endswith("/" + found) for ending in endings)
                if not known and found not in NOT_OURS:
                    fault("comment", name, number, found, f"the comment names {found}, which is not there")


# Words of other languages in English clothes; threads, ranks and programs are no persons.
BANNED = re.compile(r"(?<![`\w])(behind|nobody|somebody|everybody|everyone|whoever|in vain|who)\b(?!`)", re.IGNORECASE)


def check_words(names):
    """Comments are plain technical English: "after" or "past" instead of "behind", the thread or the rank instead of "who"."""
    for name in names:
        if is_in(name, ["reference", "gpu", "distributed"]):
            for number, text in comments(name):
                for word in BANNED.findall(text):
                    fault("word", name, number, word, f"'{word}' in a comment: say which thread or rank, and after or past")


# The first word of a doc comment that leaves its reader without the thing.
FIRST = re.compile(r'\s*(?:///|/\*\*|""")\s*(@brief\s+)?(The same|What|Of|Whether|Where|How|Which|Who|Those|That)\b')


def check_first_words(names):
    """A doc comment begins with a verb or the thing: a page of the reference is read out of order, and names what it is about."""
    for name in names:
        inside = False
        for number, line in enumerate(lines_of(name), 1):
            found = FIRST.match(line)
            if found and (found[1] or not inside):
                fault("first word", name, number, found[2], f"a doc comment begins with '{found[2]}': begin with a verb or the thing")
            inside = line.lstrip().startswith("///")


# Turns of other languages in the running text of a page, and what to write.
PROSE = [
    (re.compile(r"(?:^|(?<=[.!:;] ))What (?![^.?]*\?)"), "names the thing only afterwards: begin with the thing"),
    (re.compile(r"(?:^|(?<=[.!] ))(?:Those|That) of\b"), "leaves the reader to find the noun: write it"),
    (re.compile(r"(?<![Tt]here )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|such\b|other\b|need\b|\w+er\b)\w+"), "is 'is not a'"),
    (re.compile(r"\b(?:stands?|stood)\b(?!-| for\b|: )"), "is 'is', 'lies' or 'is written': only what has feet stands"),
    (re.compile(r"\d (?:of the \w+ )?(?:is|are) left\b"), "is 'reaches' or 'remains'"),
    (re.compile(r"\b(?:came|comes|come) in\b"), "is 'arrives' or 'was added'"),
    (re.compile(r"\bso (?:do|does|did|is|are) (?:they|it|the|a|those|all)\b"), "is 'and ... too'"),
    (re.compile(r"\b(?:in vain|whoever|nobody|somebody|everybody)\b", re.IGNORECASE), "stands for a rank, a thread or a reader: name it"),
]


def prose(text):
    """(line number, paragraph) of the running text of a page: without headings, code, formulas and what a script has written."""
    for gone in (r"<!-- (\w+): begin.*?<!-- \1: end -->", r"^```.*?^```", r"<!--.*?-->", r"\$\$.*?\$\$", r"^#.*?$"):
        text = re.sub(gone, lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", lambda match: ("x" if match[0][0] == "`" else "]") + "\n" * match[0].count("\n"), text)
    line = 1
    for paragraph in re.split(r"(\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) |\|))", text):
        if paragraph.strip():
            yield line, re.sub(r"^(?:[*-]|\d+\.|\|) ", "", " ".join(paragraph.split()))
        line += paragraph.count("\n")


def check_prose(files):
    """Pages of the book say the thing first, in the field's verbs."""
    for name in files:
        if re.fullmatch(r"docs/[^/]+\.md|README\.md|CONTRIBUTING\.md", name):
            for number, paragraph in prose((ROOT / name).read_text(encoding="utf-8")):
                for pattern, instead in PROSE:
                    for found in pattern.finditer(paragraph):
                        words = paragraph[found.start():found.end() + 24].strip()
                        fault("prose", name, number, found[0], f"'{words}' {instead}")


def check_kernel_heads(names):
    """A reader of a kernel finds its template parameters, its grid and block, and what it reads and writes, above it."""
    for name in names:
        if not is_in(name, ["gpu"]) or is_in(name, ["gpu/emulator", "gpu/platform"]):
            continue
        lines = lines_of(name)
        for number, line in enumerate(lines, 1):
            if not line.startswith("__global__"):
                continue
            at = number - 1
            is_template = lines[at - 1].startswith("template")
            at -= is_template
            head = []
            while at > 0 and lines[at - 1].startswith("///"):
                at -= 1
                head.append(lines[at])
            for what in ["@tparam"] * is_template + ["- Grid:", "- Block:", "- Reads:", "- Writes:"]:
                if not any(what in each for each in head):
                    fault("kernel head", name, number, what, f"the comment of this kernel has no '{what}'")


def check_pages(names):
    """A source beside a header with @file has it too: the site has links from the one to the other."""
    for name in names:
        stem, _, ending = name.rpartition(".")
        header = f"{stem}.hpp"
        if ending in ("cpp", "cu") and header in names and any("@file" in line for line in lines_of(header)) and not any("@file" in line for line in lines_of(name)):
            fault("page", name, 1, "@file", f"no @file and @brief, which {header} has")


def registered():
    """The names of algorithms, steps and backends, and the files that may compare them: their registries."""
    names = {"cpu", "emulated", "cuda"}
    for folder, ending, least in (("distributed/exchange", "*.cpp", 7), ("gpu/ladder", "*.cu", 7)):
        found = set()
        for path in sorted((ROOT / folder).glob(ending)):
            found |= set(re.findall(r'(?:\{\s*|\.name = )"([a-z][a-z_-]*)"', path.read_text(encoding="utf-8")))
        if len(found) < least:
            faults.append(f"{folder}: {len(found)} names found of at least {least}; docs/tools/house.py does not know the registry any more")
        names |= found
    return names


def check_names(names):
    """Refuses code that matches an algorithm, a step or a backend by its name: each says itself what it is like."""
    listed = "|".join(sorted(registered()))
    by_name = re.compile(rf'[=!]= *"({listed})"|"({listed})" *[=!]=|[=!]= *&(?:\w+::)*(k[A-Z]\w+)|&device::(k[A-Z]\w+) *[=!]=')
    for name in names:
        for number, line in enumerate(lines_of(name), 1):
            # A test may well say what the name is.
            if re.match(r"\s*(//|CHECK(_MESSAGE)?\(|REQUIRE)", line):
                continue
            for found in by_name.finditer(line):
                what = next(group for group in found.groups() if group)
                fault("by name", name, number, what, f"{what} is matched by its name; what it is like belongs in its descriptor")


def check_test_names(names):
    """CTest runs every test case by its name: a semicolon would divide it, and a name on a line of its own is not found."""
    for name in names:
        for number, line in enumerate(lines_of(name), 1):
            if re.match(r'TEST_CASE\("[^"]*;', line):
                fault("test name", name, number, ";", "CMake divides the name of this test case at the semicolon")
            if re.match(r"TEST_CASE\($", line):
                fault("test name", name, number, "(", "the name of this test case is too long for the line of TEST_CASE")


def check_device_branches(names):
    """Hosts and devices compute what they share by the same operations: a state may be finished on either."""
    for name in names:
        for number, line in enumerate(lines_of(name), 1):
            if is_in(name, ["reference"]) and "__CUDA_ARCH__" in line:
                fault("device branch", name, number, "__CUDA_ARCH__", "code of the reference is the same on hosts and devices")


def clang_format():
    """Version 14 alone: others break lines elsewhere."""
    for program in ("clang-format-14", "clang-format"):
        if path := shutil.which(program):
            version = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
            if re.search(r"version 14\.", version):
                return path
    return None


def check(files):
    """Every rule but the format."""
    names = sources(files)
    check_paths(names)
    check_arrows(names)
    check_libraries(names)
    check_include_order(names)
    check_comments(files, names)
    check_words(names)
    check_first_words(names + [name for name in files if name.endswith((".h", ".py")) and not name.startswith("python/")])
    check_prose(files)
    check_kernel_heads(names)
    check_pages(names)
    check_names(names)
    check_test_names(names)
    check_device_branches(names)
    for rule, path, what in sorted(set(KNOWN) - broken):
        faults.append(f"{path}:1: KNOWN in docs/tools/house.py lists ({', '.join(filter(None, (rule, what)))}), which is no longer so: take the line out")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", action="store_true")
    parser.add_argument("--fix", action="store_true")
    arguments = parser.parse_args()
    files = tracked()
    names = sources(files)
    if arguments.format or arguments.fix:
        program = clang_format()
        if program is None:
            print("skipped: there is no clang-format 14 (apt-get install clang-format-14)")
            return 77
        how = ["-i"] if arguments.fix else ["--dry-run", "-Werror", "--ferror-limit=1"]
        return min(1, subprocess.run([program, *how, *names], cwd=ROOT).returncode)

    check(files)
    for line in faults:
        print(line)
    print(f"{len(faults)} faults, {len(KNOWN)} known" if faults else f"The house stands; {len(KNOWN)} known exceptions.", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
