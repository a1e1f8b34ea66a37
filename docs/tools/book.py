# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/ are plain Markdown that any viewer shows; Doxygen has words of its own for places and links.

    # Title <a id="tree"></a>           # Title {#tree}          a page, or a section, with its name
    <a id="bib_liu23"></a>              @anchor bib_liu23        any other place
    [Title](II.2-tree.md#tree_leaf)     @ref tree_leaf           a link with the title of its target
    [words](II.2-tree.md)               [words](@ref tree)       a link with other words
    [Title](../notebooks_cpp/9_x.cpp)   @ref notebook_kernel     the page of a notebook
    [Title](paper.toml)                 @ref paper_index         the page that docs/tools/index.py makes of the list of items

What docs/tools/plain_figures.py writes between markers, for readers without a site, is a request again:

    <!-- excerpt: begin gpu/x.cuh       ```cpp gpu/x.cuh         code of the lines named, or of the whole file
    a line -->                          a line
    ... <!-- excerpt: end -->           ```
    <!-- table: begin ladder            ```table ladder          a table of docs/tools/kernel_tables.py
    a caption -->                       a caption
    ... <!-- table: end -->             ```
    <!-- live: begin my_cluster         ![a caption](my_cluster.html)    a figure that readers change; without a site a still of it
    a caption -->
    ... <!-- live: end -->

A link is @subpage where the book is put together: in the first column of a table of a part, in the paragraph "To run and change" of a
chapter, and, the first time, from the main page to a part and to the two pages that belong to none.
"""
import functools
import pathlib
import re

DOCS = pathlib.Path(__file__).resolve().parent.parent
# Where .github/workflows/ci.yml publishes the site: the pages of the repository, https://OWNER.github.io/REPOSITORY/. While this is empty, for no
# repository has published it yet, README.md and stills lead to the pages of docs/ and say how the site is built. docs/tools/readme --site sets it.
SITE = ""
HEADING = re.compile(r'^(#+ (.*?)) <a id="(\w+)"></a>$', re.MULTILINE)
PLACE = re.compile(r'<a id="(\w+)"></a>')
LINK = re.compile(r"(\| )?\[([^][]+)\]\(((?:\.\./notebooks_cpp/)?[\w.-]+\.(?:md|cpp|toml)|)(?:#(\w+))?\)")
SHOWN = re.compile(r"^<!-- (excerpt|table|live): begin (\S+)\n((?:.*\n)*?)-->\n(?:.*\n)*?<!-- \1: end -->$", re.MULTILINE)
KEPT = re.compile(r"```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
FROM_MAIN = re.compile(r"(part-.*|ten-minutes|reading_guide)\.md")


@functools.cache
def titles():
    """{place: title} of all headings with a name, and {file: name of its page}."""
    found, pages = {"paper_index": "From the paper to code and tests"}, {"paper.toml": "paper_index"}
    for path in sorted(DOCS.glob("*.md")):
        for line, title, name in HEADING.findall(path.read_text(encoding="utf-8")):
            found[name] = title
            if line.startswith("# "):
                pages[path.name] = name
    for path in sorted((DOCS.parent / "notebooks_cpp").glob("[0-9]*_*.cpp")):
        title, name = re.search(r"^// # (.*) \{#(\w+)\}$", path.read_text(encoding="utf-8"), re.MULTILINE).groups()
        found[name], pages[f"../notebooks_cpp/{path.name}"] = title, name
    return found, pages


def on_the_site(words, page="", site=None):
    """Words that lead to a page of the site, or that say how it is built while it has no address."""
    site = SITE if site is None else site
    return f"[on the site]({site}{page}) {words}" if site else f"on the site (`./run docs`) {words}"


CHAPTER = re.compile(r"\]\(docs/([\w.-]+\.md)(#\w+)?\)")


def on_its_pages(text, site=None):
    """README.md with its links to chapters leading to the pages of the site, if it has an address."""
    site = SITE if site is None else site
    known = titles()[1] | {"mainpage.md": "index"}
    return CHAPTER.sub(lambda m: f"]({site}{known[m[1]]}.html{m[2] or ''})" if m[1] in known else m[0], text) if site else text


def in_the_tree(text, site=None):
    """The inverse of on_its_pages()."""
    site = SITE if site is None else site
    files = {page: name for name, page in (titles()[1] | {"mainpage.md": "index"}).items() if name.endswith(".md") and not name.startswith("../")}
    return re.sub(rf"\]\({re.escape(site)}(\w+)\.html(#\w+)?\)", lambda m: f"](docs/{files[m[1]]}{m[2] or ''})" if m[1] in files else m[0], text) if site else text


def requests(text):
    """A page with requests in the place of what a reader without a site sees."""
    def request(match):
        kind, name, lines = match.groups()
        return f"![{lines.strip()}]({name}.html)" if kind == "live" else f"```{'cpp' if kind == 'excerpt' else 'table'} {name}\n{lines}```"

    return SHOWN.sub(request, text)


def in_doxygen(text, file):
    """A page in the words of Doxygen, line by line. @param file its name in docs/"""
    known, pages = titles()
    placed = set()

    def link(match, runs):
        column, words, target, place = match.groups()
        # The main page has no name of its own, but places in it have.
        if not (place if target in ("", "mainpage.md") else target in pages):
            return match[0]
        name = place or pages[target]
        is_below = (bool(column) and match.start() == 0 and file.startswith("part-") or runs and target.startswith("../notebooks_cpp/")
                    or file == "mainpage.md" and FROM_MAIN.fullmatch(target) and name not in placed)
        title = known.get(name)
        if is_below and not place:
            placed.add(name)
            return (column or "") + f"@subpage {name}" + ("" if words == title else f' "{words}"')
        return (column or "") + (f"@ref {name}" if words == title else f"[{words}](@ref {name})")

    kept, runs, lines = [], False, []
    text = requests(text)
    text = KEPT.sub(lambda m: kept.append(m[0]) or f"\0{len(kept) - 1}\0", text)
    for line in HEADING.sub(r"\1 {#\3}", text).split("\n"):
        runs = line.startswith("**To run and change:**") or runs and line != ""
        lines.append(LINK.sub(lambda match: link(match, runs), PLACE.sub(r"@anchor \1", line)))
    return re.sub(r"\0(\d+)\0", lambda m: kept[int(m[1])], "\n".join(lines))


def read(path):
    """A page of docs/ as Doxygen reads it; any other file as it is."""
    text = path.read_text(encoding="utf-8")
    return in_doxygen(text, path.name) if path.suffix == ".md" and path.parent == DOCS else text
