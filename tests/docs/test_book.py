#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages of the book: each has its place, says what it needs and gives, and cites works that the bibliography has."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import book
import filter as pages
import plain_figures

RAW = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
TEXTS = {path.name: book.read(path) for path in sorted((ROOT / "docs").glob("*.md"))}
NOTEBOOKS = [re.search(r"^// # .* \{#(\w+)\}$", path.read_text(encoding="utf-8"), re.MULTILINE)[1]
             for path in sorted((ROOT / "notebooks_cpp").glob("[0-9]*_*.cpp"))]
# Pages that are for looking things up.
LISTS = {"mainpage.md", "reading_guide.md", "notation.md", "glossary.md", "cheat_sheet.md", "bibliography.md", "measured.md", "part-5-reference.md"}

# Words of all pages.
MOST_WORDS = 57_200
# Words of a chapter, but for those with a reason for more.
MOST_OF_CHAPTER = 2_600
LONGER = {
    "II.2-tree.md": 3_400,  # the theorem on equal bits with its proofs, and both orders of leaves
    "IV.1-algorithms.md": 2_900,  # three algorithms of the paper and six variants
}
# Words of the ladder and of the library kernel, which are one subject.
MOST_OF_KERNELS = 4_600
# Average words of the longest tenth of the sentences of a chapter.
MOST_OF_SENTENCES = 34
CHAPTER = re.compile(r"(?:I|II|III|IV)\.\d")

def words(text):
    """Words that a reader has before the eyes: without code, generated tables and folds."""
    for kept in (r"<!-- (\w+): begin.*?<!-- \1: end -->", r"<details>.*?</details>", r"^```.*?^```"):
        text = re.sub(kept, "", text, flags=re.DOTALL | re.MULTILINE)
    return sum(bool(re.search(r"\w", word)) for word in re.sub(r"\]\([^)]*\)", "]", text).split())

def sentences(text):
    """Words of each sentence of the running text: a formula or a piece of code counts as one, lists and paragraphs end sentences."""
    for gone in (r"<!-- (\w+): begin.*?<!-- \1: end -->", r"<details>.*?</details>", r"^```.*?^```", r"<!--.*?-->", r"\$\$.*?\$\$", r"^[|#].*?$"):
        text = re.sub(gone, "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\$[^$]*\$|`[^`]*`", "x", re.sub(r"\]\([^)]*\)", "]", text))
    for paragraph in re.split(r"\n\s*\n|\n(?=[*-] |\d+\. )", text):
        for sentence in re.split(r"(?<=[.?!:])[*\")]*\s+(?=[A-Z*(\[x\"])", paragraph.strip()):
            if n := sum(bool(re.search(r"\w", word)) for word in sentence.split()):
                yield n

def longest_tenth(text):
    """Average words of the longest tenth of its sentences."""
    longest = sorted(sentences(text), reverse=True)
    longest = longest[:max(1, len(longest) // 10)]
    return sum(longest) / len(longest)

def is_place(place, text):
    """Tests whether a link may lead there: a name, or a heading in small letters with hyphens."""
    slugs = {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    return f'<a id="{place}"></a>' in text or place in slugs

def markdown_faults(name, text, folder):
    """Returns what a viewer of Markdown shows as text, and links of the file that lead nowhere."""
    for word in re.findall(r"@(?:ref|subpage|anchor) \w+|\{#\w+\}", book.KEPT.sub("", text)):
        yield f"{name}: {word} is for Doxygen alone, see docs/tools/book.py"
    for target, place in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([\w-]+))?\)", book.KEPT.sub("", text)):
        file = folder / target if target else folder / name
        if not file.exists():
            yield f"{name}: there is no {target}"
        elif place and not is_place(place, file.read_text(encoding="utf-8")):
            yield f"{name}: {target or name} has no {place}"

def place_faults(order, names):
    """Pages that the book does not lead to, or leads to twice."""
    for name in sorted(set(order) | set(names)):
        n = order.count(name)
        if n != 1 or name not in names:
            yield f"{name}: {n} times in the book" if name in names else f"{name}: there is no such page"

def head_faults(name, text):
    for part in (r"\*\*What you need:\*\*", r"\*\*After this (?:chapter|page|part) you can\*\*"):
        if not re.search(part, text):
            yield f"{name}: there is no {part}"

def citation_faults(bibliography, texts):
    """Works without a citation, citations of works that are not listed, and numbers that differ from their links."""
    defined, cited = re.findall(r"@anchor (bib_\w+)", bibliography), {key for text in texts for key in re.findall(r"\(@ref (bib_\w+)\)", text)}
    for key in sorted(set(defined) ^ cited | {key for key in defined if defined.count(key) > 1}):
        yield f"{key}: {defined.count(key)} times in the bibliography, {'cited' if key in cited else 'not cited'}"
    for text in [bibliography, *texts]:
        for shown, linked in re.findall(r"\[arXiv:([\d.]+)\]\(https://arxiv\.org/abs/([\d.]+)\)", text):
            if shown != linked:
                yield f"arXiv:{shown} leads to {linked}"

def glossary_faults(text):
    """Words twice, or out of order in their table."""
    words = []
    for table in text.split("\n## ")[1:]:
        part = [row.split("|")[1].strip() for row in table.splitlines() if row.startswith("| ")][2:]
        words += part
        for word, after in zip(part, part[1:]):
            if word.lower() > after.lower():
                yield f"{after} stands after {word}"
    yield from (f"{word} stands there {words.count(word)} times" for word in sorted(set(words)) if words.count(word) > 1)

def list_faults(name, text):
    """Lines inside a paragraph that Markdown would take for items of a list."""
    lines = re.sub(r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL).splitlines()
    for i in range(1, len(lines)):
        above = lines[i - 1]
        if re.match(r"\s*(?:\d+\.|[-+]) ", lines[i]) and above.strip() and not re.match(r"\s*(?:\d+\.|[*+-]) |   |\||```", above):
            yield f"{name}:{i + 1}: {lines[i].strip()[:40]}"
        if re.match(r"\s+\d+\. ", lines[i]) and re.match(r"\s*\* ", above):
            yield f"{name}:{i + 1}: {lines[i].strip()[:40]}"

class Book(unittest.TestCase):
    def test_every_page_has_one_place(self):
        names = [match[1] for text in TEXTS.values() if (match := pages.TITLE.search(text))] + NOTEBOOKS + ["paper_index"]
        order = pages.reading_order()
        self.assertEqual(list(place_faults(order, names)), [])
        self.assertEqual(len(list(place_faults(order[1:] + order[2:3], names))), 2)
        self.assertEqual(len(list(place_faults([*order, "none"], names))), 1)

    def test_pages_are_plain_markdown(self):
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        self.assertEqual(list(markdown_faults("README.md", readme, ROOT)), [])
        for name, text in RAW.items():
            self.assertEqual(list(markdown_faults(name, text, ROOT / "docs")), [])
        for wrong in ("see @ref tree", "## A section {#tree}", "[a file](none.md)", "[a place](glossary.md#none)", "[here](#none)"):
            self.assertEqual(len(list(markdown_faults("notation.md", wrong, ROOT / "docs"))), 1, wrong)

    def test_the_book_is_short(self):
        pages = {name: words(text) for name, text in RAW.items()}
        self.assertLessEqual(sum(pages.values()), MOST_WORDS, pages)
        self.assertEqual(words("One [two three](x.md).\n```sh\nfour\n```\n<details><summary>Five</summary>\n\nsix\n\n</details>\n$x$ |"), 4)

    def test_chapters_and_their_sentences_are_short(self):
        for name in filter(CHAPTER.match, RAW):
            self.assertLessEqual(words(RAW[name]), LONGER.get(name, MOST_OF_CHAPTER), name)
            self.assertLessEqual(longest_tenth(RAW[name]), MOST_OF_SENTENCES, name)
        self.assertLessEqual(words(RAW["III.1-kernels.md"]) + words(RAW["III.3-library.md"]), MOST_OF_KERNELS)
        self.assertEqual(list(sentences("One $x + y$ is `a b`. Two words\nhere:\n\n* three\n* [four five](x.md)\n\n| no | row |\n")), [4, 3, 1, 2])
        self.assertEqual(longest_tenth("One two three. " + "One. " * 19), 2)

    def test_microseconds_have_their_unit(self):
        for name, text in RAW.items():
            self.assertNotRegex(re.sub(r"^```.*?^```|^    .*?$", "", text, flags=re.DOTALL | re.MULTILINE), r"[\d$] us\b|\bin us\b", name)

    def test_walks(self):
        """Every question of the three walks is answered within two clicks of README.md, in the minutes that the table says."""
        def linked(path):
            targets = re.findall(r"\]\((?!\w+:)([^)#\s]+\.md)", book.in_the_tree(path.read_text(encoding="utf-8")))
            return {(path.parent / target).resolve() for target in targets if (path.parent / target).is_file()}
        one = linked(ROOT / "README.md")
        near = one | {page for path in one for page in linked(path)}
        rows = re.findall(r"^\|[^|]*\| ([^|]+\?) \| \[[^]]+\]\(([\w.-]*)(?:#(\w+))?\) \| (\d+) \|$", RAW["reading_guide.md"], re.MULTILINE)
        self.assertGreaterEqual(len(rows), 15)
        for question, name, place, minutes in rows:
            self.assertIn((ROOT / "docs" / (name or "reading_guide.md")).resolve(), near, question)
            text = RAW[name or "reading_guide.md"]
            if place:
                heading = re.search(rf'^(#* ?).*<a id="{place}"></a>', text, re.MULTILINE)
                text = re.split(rf"^#{{1,{len(heading[1].strip()) or 3}}} ", text[heading.end():], flags=re.MULTILINE)[0]
            self.assertLessEqual(abs(words(text) / 220 + 0.5 - int(minutes)), 1.5, question)

    def test_figures_are_files_of_the_tree(self):
        files = sorted(path.name for path in (ROOT / "docs" / "figures").iterdir())
        self.assertEqual(files, plain_figures.named())
        self.assertNotIn("var(", plain_figures.style())
        if shutil.which("node"):
            # The other still takes seconds: ./run docs compares it.
            self.assertEqual((ROOT / "docs" / "figures" / "cut_the_tree.svg").read_text(encoding="utf-8"), plain_figures.still("cut_the_tree"))
        with tempfile.TemporaryDirectory() as folder:
            for script, *data in (("figures",), ("ideas",), ("levels",), ("decode_speed", "decode_speed.json")):
                subprocess.run([sys.executable, "-B", ROOT / "docs" / "tools" / f"{script}.py", *(ROOT / "docs" / name for name in data), folder], check=True)
            drawn = {path.name: path.read_text(encoding="utf-8") for path in pathlib.Path(folder).iterdir() if path.name in files}
        self.assertGreater(len(drawn), 10)
        for name, figure in drawn.items():
            self.assertEqual((ROOT / "docs" / "figures" / name).read_text(encoding="utf-8"), plain_figures.standalone(figure), f"{name}: docs/tools/plain_figures.py")
        self.assertIn(".node {", plain_figures.style())

    def test_tables_and_code_show_where_no_site_is_built(self):
        """No request is left, none has another answer, and tables of which only a build has the facts are there."""
        self.assertEqual([path.name for path, _ in plain_figures.pages()], [], "docs/tools/plain_figures.py --write writes them")
        found = [match for text in RAW.values() for match in book.SHOWN.finditer(text)]
        self.assertGreater(sum(match[1] == "table" for match in found), 20)
        self.assertGreater(sum(match[1] == "excerpt" for match in found), 40)
        for name, text in RAW.items():
            self.assertEqual(re.findall(r"^```(?:table|cpp) \S+|^!\[.*\.html\)$", text, re.MULTILINE), [], name)
            self.assertEqual(text.count("<!-- table: begin") + text.count("<!-- excerpt: begin") + text.count("<!-- live: begin"), len(book.SHOWN.findall(text)), name)
            self.assertNotRegex(text, r"-->\n<!-- (?:table|excerpt|live): end", name)
        self.assertEqual(plain_figures.made("table", "lengths", [])[1], False)
        self.assertEqual(len([match for match in found if match[1] == "live"]), 3)
        for request in ("```table ladder\nA caption.\n```", "![A caption.](my_cluster.html)", "```cpp gpu/ladder/01_naive.cu\n```", "```cpp reference/state/state.hpp\nTREE_ATTN_HOST_DEVICE inline Rescale<Real> rescale(Real e_left, Real e_right) {\n```"):
            shown = plain_figures.shown(f"A line.\n\n{request}\n\nAnother.\n")
            self.assertNotIn(request, shown)
            self.assertEqual(plain_figures.shown(shown), shown)
            self.assertEqual(book.requests(shown), f"A line.\n\n{request}\n\nAnother.\n")
        self.assertEqual(book.on_the_site("it moves", "tree.html", "https://x/"), "[on the site](https://x/tree.html) it moves")
        readme, site = (ROOT / "README.md").read_text(encoding="utf-8"), "https://x/"
        linked = book.on_its_pages(book.in_the_tree(readme), site)
        self.assertIn(f"({site}tree.html#tree_leaf)", linked)
        self.assertNotRegex(linked, r"\]\(docs/[\w.-]*\.md")
        self.assertEqual(book.in_the_tree(linked, site), book.in_the_tree(readme))
        self.assertEqual(plain_figures.page_of("cut_the_tree"), "tree.html#cut_the_tree")
        self.assertIn("| --- |", plain_figures.shown("```table ladder\n```"))

    def test_links_become_those_of_doxygen(self):
        page = "# Part I. The mathematics <a id=\"part_mathematics\"></a>\n\n| [I.1 Attention as a stream](I.1-stream.md) | `[x](tree.md)` |\n"
        self.assertEqual(book.in_doxygen(page, "part-1-mathematics.md"),
                         "# Part I. The mathematics {#part_mathematics}\n\n| @subpage stream | `[x](tree.md)` |\n")
        for text, shown in (("[I.1 Attention as a stream](I.1-stream.md)", "@ref stream"), ("[a stream](I.1-stream.md)", "[a stream](@ref stream)"),
                            ("$[0, 1)$ and [Alg. 3](IV.1-algorithms.md#alg_3)", "$[0, 1)$ and [Alg. 3](@ref alg_3)"),
                            ("* <a id=\"bib_x\"></a> X", "* @anchor bib_x X"), ("[out](https://a.md)", "[out](https://a.md)"), ("[write](mainpage.md#exercises)", "[write](@ref exercises)")):
            self.assertEqual(book.in_doxygen(text, "I.2-energy.md"), shown)

    def test_no_script_has_the_name_of_a_page(self):
        # Doxygen writes the navigation below the page X as X.js.
        scripts = set(re.findall(r"docs/(\w+)\.js", (ROOT / "docs" / "Doxyfile.in").read_text(encoding="utf-8")))
        self.assertGreaterEqual(len(scripts), 3)
        self.assertEqual(scripts & set(pages.reading_order()), set())

    def test_every_chapter_says_what_it_needs_and_gives(self):
        for name in sorted(set(TEXTS) - LISTS):
            self.assertEqual(list(head_faults(name, TEXTS[name])), [])
            self.assertEqual(len(list(head_faults(name, re.sub(r"\*\*(?:What|After) .*", "", TEXTS[name])))), 2)

    def test_works_and_citations(self):
        bibliography, texts = TEXTS["bibliography.md"], [text for name, text in TEXTS.items() if name != "bibliography.md"]
        self.assertEqual(list(citation_faults(bibliography, texts)), [])
        self.assertEqual(len(list(citation_faults(bibliography.replace("@anchor bib_liu23", ""), texts))), 1)
        self.assertEqual(len(list(citation_faults(bibliography + "* @anchor bib_new\n", texts))), 1)
        self.assertEqual(len(list(citation_faults(bibliography.replace("abs/2310.01889", "abs/2310.01888"), texts))), 1)

    def test_words(self):
        glossary = TEXTS["glossary.md"]
        self.assertEqual(list(glossary_faults(glossary)), [])
        self.assertEqual(len(list(glossary_faults(glossary.replace("| state |", "| leaf |")))), 2)

    def test_no_line_becomes_an_item_of_a_list(self):
        for name, text in TEXTS.items():
            self.assertEqual(list(list_faults(name, text)), [])
        for wrong in ("Of the year\n2023. A work", "* Of the year\n  2023. A work", "A difference\n- of two"):
            self.assertEqual(len(list(list_faults("x", wrong))), 1, wrong)
        for right in ("1. One\n2. Two", "* One\n* Two", "Text.\n\n1. One"):
            self.assertEqual(list(list_faults("x", right)), [], right)

if __name__ == "__main__":
    unittest.main()
