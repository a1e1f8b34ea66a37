#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/layouts.cpp: in WebAssembly it has the digests of the compiled program, for 1,000 random layouts; and the figure of
docs/cut_the_tree.js runs it in a browser, where a cut is dragged.

Skipped without a compiler for WebAssembly or without node; the part in a browser without Chromium.
"""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import live

FACTS = json.loads((ROOT / "docs" / "cut_the_tree.json").read_text(encoding="utf-8"))
LEAVES, FIRST_MS = 32, 500
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SCRIPT = """
const page = require(process.argv[1]), fs = require("fs");
page.program(fs.readFileSync(process.argv[2])).then(program => {
  for (const line of fs.readFileSync(0, "utf-8").trim().split("\\n")) {
    if (line.startsWith("value")) program.setValue(...line.split(" ").slice(1).map(Number));
    else { const {tree, paper} = program.decode(line.split(" ").map(Number)); console.log(tree[0], paper[0]); }
  }
});
"""


def layouts(n):
    """Lines of leaves where 1 to 13 ranks begin, and the end."""
    generator = random.Random(72)
    return [" ".join(map(str, [0, *sorted(generator.sample(range(1, LEAVES), i % 13)), LEAVES])) for i in range(n)]


class Chromium:
    """Chromium without a window, driven through its pipes."""

    def __init__(self, width, height):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to, self.write = os.pipe()
        self.read, back = os.pipe()
        self.process = subprocess.Popen(["bash", "-c", f'exec "$0" "$@" 3<&{to} 4>&{back}', CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.folder.name}",
                                         f"--window-size={width},{height}", "--remote-debugging-pipe", "about:blank"], pass_fds=(to, back), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(to), os.close(back)
        self.n, self.rest, self.session = 0, b"", {}
        target = next(each for each in self.ask("Target.getTargets")["targetInfos"] if each["type"] == "page")
        self.session = {"sessionId": self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]}

    def ask(self, method, **parameters):
        self.n += 1
        os.write(self.write, json.dumps({"id": self.n, "method": method, "params": parameters, **self.session}).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                part = os.read(self.read, 1 << 16)
                if not part:
                    raise RuntimeError("Chromium has ended")
                self.rest += part
            line, self.rest = self.rest.split(b"\0", 1)
            found = json.loads(line)
            if found.get("id") == self.n:
                return found["result"]

    def value(self, expression):
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)["result"].get("value")

    def mouse(self, kind, x, y):
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def close(self):
        """End the browser with all its processes: one that outlives it may still write into the folder that is removed."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.write), os.close(self.read)
        self.folder.cleanup()


@unittest.skipUnless(live.program(), "clang has no library for WebAssembly")
class Program(unittest.TestCase):
    @unittest.skipUnless(shutil.which("node"), "there is no node")
    def test_a_thousand_layouts_have_the_digests_of_the_compiled_program(self):
        lines = layouts(1000)
        with tempfile.TemporaryDirectory() as folder:
            native, wasm = pathlib.Path(folder, "layouts"), pathlib.Path(folder, "layouts.wasm")
            subprocess.run([os.environ.get("CXX", "c++"), "-std=c++20", "-O2", "-ffp-contract=off", "-I", ROOT, ROOT / "docs/tools/layouts.cpp", ROOT / "reference/tensor/convert.cpp", "-o", native], check=True)
            wasm.write_bytes(live.program())
            self.assertLess(wasm.stat().st_size, 80_000)
            text = "\n".join(lines) + "\n"
            wanted = subprocess.run([native], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
            run = lambda text: subprocess.run(["node", "-e", SCRIPT, ROOT / "docs/cut_the_tree.js", wasm], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
            found, changed = run(text), run("value 700 2.5\n" + "\n".join(lines[:13]) + "\n")
        self.assertEqual(len(found), len(lines))
        self.assertEqual(found, wanted)
        # By the tree one digest, by Alg. 3 many; another value has another one, again for all layouts.
        tree, paper = (set(column) for column in zip(*map(str.split, found)))
        self.assertEqual(len(tree), 1)
        self.assertGreater(len(paper), 500)
        self.assertEqual(len({line.split()[0] for line in changed} - tree), 1)
        self.assertEqual(len({line.split()[0] for line in changed}), 1)

    @unittest.skipUnless(CHROMIUM, "there is no Chromium")
    def test_a_cut_is_dragged_in_a_browser(self):
        for has_program in (True, False):
            page = live.snippet("cut_the_tree", FACTS)
            self.assertIn('"program": "', page)
            if not has_program:
                page = re.sub(r', "program": "[^"]*"', "", page)
            with tempfile.TemporaryDirectory() as folder:
                shutil.copy(ROOT / "docs" / "cut_the_tree.js", folder)
                pathlib.Path(folder, "page.html").write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{page}", encoding="utf-8")
                browser = Chromium(1000, 700)
                try:
                    browser.ask("Page.enable")
                    browser.ask("Page.navigate", url=pathlib.Path(folder, "page.html").as_uri())
                    first = browser.value("""new Promise(done => { const place = () => document.getElementById("cut_the_tree");
                        const look = () => place()?.dataset.first ? done(place().dataset.first) : setTimeout(look, 10); look(); })""")
                    bits = "[...document.querySelectorAll('.cut_bits')].map(row => [...row.querySelectorAll('code')].map(word => word.textContent + ' ' + word.className))"
                    words = browser.value("document.querySelector('.cut').textContent")
                    before = browser.value(bits)
                    x, y = browser.value("(() => { const box = document.querySelector('[data-cut=\"2\"] circle').getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()")
                    browser.mouse("mousePressed", x, y)
                    browser.mouse("mouseMoved", x + 60, y)
                    browser.mouse("mouseReleased", x + 60, y)
                    cut = browser.value("document.querySelector('[data-cut=\"2\"]').getAttribute('aria-valuenow')")
                    after = browser.value(bits)
                finally:
                    browser.close()
            self.assertEqual("WebAssembly" in words, has_program)
            self.assertEqual("A script runs here" in words, not has_program)
            self.assertEqual(cut, "15" if has_program else "31")
            self.assertEqual([word.split()[1] for word in before[0]], ["same"] * len(before[0]))
            self.assertEqual(after[0], before[0])
            self.assertNotEqual(after[1], before[1])
            if has_program:
                self.assertLessEqual(int(first), FIRST_MS)


if __name__ == "__main__":
    unittest.main()
