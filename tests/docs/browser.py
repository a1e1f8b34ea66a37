# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium for tests of pages with scripts."""
import pathlib
import shutil
import subprocess
import tempfile

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


def dump(html, budget_ms=60_000):
    """The elements of a page after its scripts have run, as HTML. @param html the page; scripts by absolute path"""
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "page.html"
        page.write_text(html, encoding="utf-8")
        result = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", f"--user-data-dir={folder}/profile",
                                 f"--virtual-time-budget={budget_ms}", "--window-size=1200,900", "--dump-dom", page.as_uri()],
                                capture_output=True, text=True, timeout=400, check=True)
    return result.stdout
