#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/readme: figure and table of the first screen show one problem, and nothing that programs print is wider than the page."""
import importlib.machinery
import importlib.util
import json
import pathlib
import re
import shutil
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("readme", str(ROOT / "docs" / "tools" / "readme"))
readme = importlib.util.module_from_spec(importlib.util.spec_from_loader("readme", loader))
loader.exec_module(readme)

TEXT = readme.README.read_text(encoding="utf-8")
MEASURED = readme.MEASURED.read_text(encoding="utf-8")
MOST_WORDS = 1600
DEMO = """1. Attention of a trained transformer: layer 3 of all-MiniLM-L6-v2 over the first 512 word pieces of a real text, in words.

2. One query against a cache of 65536 keys, on 8 ranks posing as 2 nodes.

$ mpirun -n 8 build/tree_attn decode --seq-len 65536 --ranks-per-node 4 --verify --repeat 3 --warmup 1 --compare ring,ring-state,paper

                                                                        between              peak      max     of  same
algorithm   latency       p10 .. p90  collectives  messages     bytes     nodes  merges      k, v    error  bound  bits            digest
two-level   16.6 ms  16.5 .. 17.5 ms            3        24   195 KiB  65.0 KiB       3  64.0 MiB  4.2e-09  0.013   yes  bce125c06f3b1f05
ring         412 ms    386 .. 431 ms            0       112  3.50 GiB   896 MiB       7   192 MiB  4.2e-09  0.013   yes  bce125c06f3b1f05
ring-state  15.0 ms  14.7 .. 15.3 ms            0        56   455 KiB   114 KiB       7  64.0 MiB  4.2e-09  0.013   yes  bce125c06f3b1f05
paper       15.4 ms  14.6 .. 15.5 ms            3        72   195 KiB  65.0 KiB       9  64.0 MiB  1.3e-08  0.007   yes  a194004188b846b8

3. Tree and ring""".splitlines()


class Parts(unittest.TestCase):
    def test_a_note_says_where_the_demo_counts_other_messages(self):
        self.assertRegex(readme.note(DEMO), r"two at a time .*: `two-level` sends 24 messages and not 32\.\n$")
        same = [line.replace("        24   195 KiB", "        32   260 KiB") for line in DEMO]
        self.assertNotEqual(same, DEMO)
        self.assertEqual(readme.note(same), "")

    def test_an_algorithm_that_is_missing_is_an_error(self):
        with self.assertRaises(SystemExit):
            readme.note([line for line in DEMO if not line.startswith("ring ")])

    def test_nothing_is_wider_than_the_page_and_nothing_is_lost(self):
        narrow = readme.narrowed(DEMO)
        self.assertLessEqual(max(map(len, narrow)), readme.WIDTH)
        words = lambda lines: sorted(word for line in lines for word in line.split() if word != "\\")
        names = ["algorithm", "two-level", "ring", "ring-state", "paper"]
        self.assertEqual(words(narrow), sorted(words(DEMO) + names))
        self.assertEqual(sum(line.startswith("algorithm") for line in narrow), 2)

    def test_an_address_is_written_in_one_place(self):
        with tempfile.TemporaryDirectory() as name:
            page, module = (pathlib.Path(shutil.copy(path, name)) for path in (readme.README, readme.book.__file__))
            with mock.patch.multiple(readme, README=page), mock.patch.object(readme.book, "__file__", str(module)), mock.patch.object(readme.subprocess, "run") as run:
                self.assertRaises(SystemExit, readme.move_site, "https://owner.github.io/repository")
                readme.move_site("https://owner.github.io/repository/")
            self.assertEqual(len(re.findall(r'^SITE = "https://owner\.github\.io/repository/"$', module.read_text(encoding="utf-8"), re.MULTILINE)), 1)
            # What leads there is written by a process that reads the new address.
            self.assertEqual([call.args[0][-2:] for call in run.call_args_list], [[module.parent / "readme", "--text"], [module.parent / "plain_figures.py", "--write"]])
            self.assertEqual(page.read_text(encoding="utf-8"), readme.book.in_the_tree(TEXT))

    def test_speeds_are_shown_better_or_worse(self):
        shape = "BF16, 16/16 heads, 8k keys"
        record = {"device": "card", "date": "today", "library": "a", "lines": [{"shape": shape, "step": "a", "read_seconds": 1e-6, "graph_seconds": 2e-6, "apart_seconds": 4e-6}],
                  "peers": [{"shape": shape, "peer": f"PyTorch, {name}", "graph_seconds": seconds} for name, seconds in (("flash", 3e-6), ("cuDNN", 2e-6))]}
        part = lambda x: {"cpu": x}
        case = {"dtype": "BF16", "keys": 65536, "heads": 16, "kv_heads": 4, "head_dim": 128, "queries": 8, "threads": 1, "of_read": {"decode": part(0.5), "PyTorch": part(0.25)},
                "times_faster": {"PyTorch": part(2)}}
        report = {"processor": "CPU Processor", "date": "now", "cases": [case, case | {"threads": 2}, case | {"of_read": {"decode": part(0.5)}}]}
        self.assertEqual(readme.speed(record, report).splitlines()[2:],
                         ["| card, today | 16 on 16 heads, 8k keys | 0.25 | 0.50, cuDNN | 0.50 |", "| a core of CPU, now | 16 on 4 heads, 64k keys, 8 queries | 0.50 | 0.25 | 2.00 |"])


class Readme(unittest.TestCase):
    def test_figure_and_table_show_one_problem(self):
        table = {row[0]: row[1:] for row in re.findall(r"^\| `([\w-]+)` \|[^|]*\| (\d+) \| ([^|]+) \|[^|]*\| ([^|]+) \|", readme.between(MEASURED, "picture").replace("&nbsp;", " "), re.MULTILINE)}
        for path in readme.race.DRAWINGS.values():
            figure = path.read_text(encoding="utf-8")
            for name, what, title in (("ring", "keys and values travel", "ring done"), ("two-level", "states travel", "tree done")):
                (n_bytes, messages), us = re.search(rf">{what}: ([^<]+) in (\d+) messages<", figure).groups(), re.search(rf">{title}: ([^<]+)<", figure)[1]
                self.assertEqual(table[name], (messages, n_bytes, us))

    def test_its_digests_are_those_of_its_output(self):
        output, table = readme.between(MEASURED, "output"), readme.between(MEASURED, "picture")
        found = re.findall(r"^\| `([\w-]+)` .*`(\w{16})` \|$", table, re.MULTILINE)
        self.assertEqual([name for name, _ in found], list(readme.race.TRAVELS))
        for name, digest in found:
            self.assertRegex(output, rf"(?m)^{name} .* {digest}$")
        self.assertLessEqual(max(map(len, output.splitlines())), readme.WIDTH)

    def test_what_follows_from_files_of_the_tree_is_there(self):
        self.assertEqual(readme.stated(TEXT), TEXT)
        self.assertEqual(readme.noted(MEASURED), MEASURED)

    def test_the_demo_takes_as_long_as_it_says(self):
        self.assertIn("half a minute of processor time, once built", TEXT)
        seconds = int(re.search(r"; (\d+) s of processor time", readme.between(MEASURED, "output"))[1])
        self.assertTrue(20 <= seconds <= 45, seconds)

    def test_it_is_short(self):
        self.assertLessEqual(len(TEXT.split()), MOST_WORDS)

    def test_files_that_it_names_are_there(self):
        for name in re.findall(r'(?:\]\(|src="|srcset=")((?!https?:|#)[\w./-]+)', TEXT):
            self.assertTrue((ROOT / name).exists(), name)

    def test_it_cites_what_the_citation_file_cites(self):
        citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8").split("preferred-citation:")[1]
        bibtex = TEXT.split("```bibtex")[1].split("```")[0].replace("{GPU}", "GPU")
        for field in ("title", "family-names"):
            for value in re.findall(rf'^\s*-?\s*{field}: "?([^"\n]+)"?$', citation, re.MULTILINE):
                self.assertIn(value, bibtex)


if __name__ == "__main__":
    unittest.main()
