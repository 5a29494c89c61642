"""The built site in a real Chromium: tables of code fit at 1,280 pixels; at 420 only tables and pictures scroll.

Skipped where no browser is installed: apt-get install chromium, and the extra `browser`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright (scripts/install browser)")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)"),
]
ROOT = Path(__file__).parents[2]
# Tables with code that are wider than their boxes. Tables of numbers may scroll.
TOO_WIDE = """() => [...document.querySelectorAll('.md-typeset__scrollwrap')]
    .filter(box => box.querySelector('td code') && box.scrollWidth > box.clientWidth)
    .map(box => box.innerText.slice(0, 80))"""
# Pictures that are shrunk to the width of the page, although they are wider.
SHRUNK = """() => [...document.querySelectorAll('.md-typeset p > img')]
    .filter(each => each.clientWidth < Math.min(600, each.naturalWidth)).map(each => each.src)"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="no mkdocs (scripts/install docs)")
    made = tmp_path_factory.mktemp("site")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(made)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.mark.parametrize("width", [1280, 420])
def test_no_page_is_wider_than_the_screen(site: Path, browser: Any, width: int) -> None:
    wrong: list[tuple[str, object]] = []
    tab = browser.new_page(viewport={"width": width, "height": 800})
    tab.set_default_timeout(180_000)
    for path in sorted(site.rglob("*.html")):
        tab.goto(path.as_uri())
        whole = tab.evaluate("document.documentElement.scrollWidth")
        found = [whole] if whole > width else tab.evaluate(TOO_WIDE if width > 1000 else SHRUNK)
        wrong += [(str(path.relative_to(site)), each) for each in found]
    tab.close()
    assert not wrong
