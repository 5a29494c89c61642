"""The page in a real Chromium: no console error, no foreign request, keyboard, slider, 360 pixels.

Skipped where no browser is installed: apt-get install chromium, and the extra `browser`.
"""

import re
import shutil
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from pslab.dashboard.history import ROWS
from pslab.runs.folder import Run
from tests.cluster.cluster import Cluster
from tests.dashboard.page import Page
from tests.promises import promise
from tests.repetitions import usually
from tests.replay.simulated import simulate

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright (scripts/install browser)")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)")

PAGES = ("now", "time", "curves", "play")
# One page is looked at for every change, besides the playground with a lesson; the others every night.
DAILY = ("now",)
# Nothing but this machine can be reached by the browser.
FLAGS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


class Tab:
    """A tab that notes what must not happen."""

    def __init__(
        self, browser: Any, url: str, width: int = 1280, height: int = 800, scheme: str = "light"
    ) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(180_000)
        self.wrong: list[str] = []
        self.page.on(
            "console", lambda m: self.wrong.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        origin = re.match(r"http://[^/]+", url)
        assert origin
        self.page.on(
            "request", lambda r: None if r.url.startswith(origin[0]) else self.wrong.append(f"asked {r.url}")
        )
        self.page.goto(url)

    def text(self, selector: str) -> str:
        found: str = self.page.locator(selector).first.inner_text()
        return found

    def close(self) -> None:
        self.context.close()
        assert not self.wrong, self.wrong


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("browser")
    faults = {"crashes": [{"worker": 1, "at": 4.0, "restart": 4.0}]}
    run = simulate(folder / "run", "sync", run={"versions": 12}, simulation={"evaluate": 4}, faults=faults)
    with Page(folder, str(run.path)) as made:
        yield made


SCHEMES = ("light", "dark")


@pytest.mark.parametrize(
    ("name", "scheme"),
    usually(
        [
            pytest.param(name, scheme, marks=[] if name in DAILY else pytest.mark.nightly)
            for name, scheme in zip(PAGES, cycle(SCHEMES), strict=False)
        ],
        soak=[(name, scheme) for name in PAGES for scheme in SCHEMES],
    ),
)
def test_every_page_over_a_recorded_run(recorded: Page, browser: Any, name: str, scheme: str) -> None:
    """On a wide screen, and on one of 360 pixels."""
    tab = Tab(browser, f"{recorded.url}#/{name}", scheme=scheme)
    tab.page.wait_for_selector(f'a[data-page="{name}"][aria-current]')
    tab.page.wait_for_selector(".card")
    if name == "play":
        tab.page.wait_for_selector("#controls #workers")
    tab.page.locator("#clock").wait_for(state="visible")
    tab.page.set_viewport_size({"width": 360, "height": 740})
    tab.page.wait_for_function("() => document.documentElement.scrollWidth <= 360")
    tab.page.locator("#clock").wait_for(state="visible")
    tab.close()


@pytest.mark.nightly
def test_keyboard_and_slider(recorded: Page, browser: Any) -> None:
    tab = Tab(browser, recorded.url)
    page = tab.page
    page.wait_for_selector("#workers li")
    end = tab.text("#moment-text")
    page.keyboard.press("Home")
    assert tab.text("#moment-text").startswith("0.0 s")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    assert tab.text("#moment-text") == end
    page.keyboard.press("ArrowLeft")
    stepped = tab.text("#moment-text")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert tab.text("#moment-text") != end or stepped == end
    for number, name in enumerate(PAGES[:3], start=1):
        page.keyboard.press(str(number))
        page.wait_for_selector(f'a[data-page="{name}"][aria-current]')
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("d")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.keyboard.press("?")
    page.locator("#help").wait_for(state="visible")
    page.keyboard.press("Escape")
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    page.wait_for_function("() => document.getElementById('moment').value > 0")
    page.keyboard.press(" ")
    tab.close()


@pytest.mark.nightly
def test_the_playground(recorded: Page, browser: Any) -> None:
    tab = Tab(browser, f"{recorded.url}#/play")
    page = tab.page
    page.wait_for_selector(".side.b canvas.lanes")
    page.wait_for_function(
        "() => /version/.test(document.querySelector('.stage .side.a header p').textContent)"
    )
    page.select_option("#a-policy", "ssp")
    page.wait_for_selector("#a-slack")
    page.wait_for_function("() => location.hash.includes('policy.name=ssp')")
    page.wait_for_function("() => document.querySelector('.stage .side.a h2').textContent.startsWith('ssp')")
    page.click("#as-file")
    page.wait_for_selector("#help .toml")
    assert 'name = "ssp"' in tab.text("#help .toml")
    page.keyboard.press("Escape")
    link = page.evaluate("location.href")
    assert not page.locator("#play-error").is_visible()
    tab.close()
    again = Tab(browser, link)
    again.page.wait_for_selector("#a-slack")
    assert again.page.locator("#a-policy").input_value() == "ssp"
    again.close()


@pytest.mark.nightly
def test_a_lesson_from_its_link(recorded: Page, browser: Any) -> None:
    tab = Tab(browser, f"{recorded.url}#/play?lesson=3-staleness")
    tab.page.wait_for_selector(".stage .side.b header p", state="attached")
    tab.page.wait_for_function(
        "() => /staleness mean\\s+\\d/.test(document.querySelector('.stage .side.b header p').textContent)"
    )
    assert "n - 1 = 7 in both" in tab.text(".stage .headline")
    assert tab.page.locator("#lesson").input_value() == "3-staleness"
    tab.close()


@promise("The playground's sentence follows its sliders: it says what was changed from a lesson.")
def test_a_lessons_sentence_follows_what_is_changed(recorded: Page, browser: Any) -> None:
    """And the slow worker that the second run's title names is the slow one."""
    tab = Tab(browser, f"{recorded.url}#/play?lesson=3-staleness")
    page = tab.page

    def shows(selector: str, text: str) -> None:
        page.wait_for_function(
            "([at, text]) => document.querySelector(at)?.textContent.includes(text)", arg=[selector, text]
        )

    title, sentence = ".stage .side.b h2", ".stage .headline"
    shows(title, "async, w7 10 times as slow")
    shows(sentence, "n - 1 = 7 in both")
    page.locator("#workers").fill("20")
    shows(title, "async, w19 10 times as slow")
    shows(sentence, 'Changed from the lesson "Staleness": 20 workers; below ')
    page.locator("#lesson").select_option("3-staleness")
    shows(sentence, "n - 1 = 7 in both")
    page.locator("#a-policy").select_option("sync")
    shows(sentence, 'Changed from the lesson "Staleness": ')
    page.click("#second")
    shows(sentence, "one run only")
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_function("() => document.documentElement.scrollWidth <= 360")
    tab.close()


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that is too long to be shown in detail from its begin; nothing is learned."""
    folder = tmp_path_factory.mktemp("long")
    return simulate(folder / "run", "async", run={"versions": 28_000}, simulation={"problem": "none"})


@pytest.mark.nightly
def test_a_long_run_is_shown_whole(long: Run, browser: Any, tmp_path: Path) -> None:
    """Its end in detail; counts and curves are of all of it."""
    entries = list(long.decisions())
    assert 2.5 * len(entries) > ROWS
    applied = [entry.t for entry in entries if entry.kind == "apply"]
    with Page(tmp_path, str(long.path)) as page:
        tab = Tab(browser, f"{page.url}#/time")
        tab.page.wait_for_selector("#log li")
        assert tab.text("#figures div:nth-child(2) dd").replace(",", "") == str(len(applied))
        assert "the job stops at version 28000" in tab.text("#log")
        tab.page.keyboard.press("Home")
        tab.page.wait_for_function(
            "() => !document.querySelector('#log li') || !/stops/.test(document.getElementById('log').textContent)"
        )
        first = int(tab.text("#figures div:nth-child(2) dd").replace(",", ""))
        assert 0 < first < len(applied), "curves know what was before the details"
        tab.page.keyboard.press("End")
        tab.page.goto(f"{page.url}#/now")
        tab.page.wait_for_selector("#job dd")
        assert re.search(rf"applied\s+{len(applied):,}\s", tab.text("#job"))
        tab.close()


@pytest.mark.nightly
def test_a_run_that_grows(long: Run, browser: Any, tmp_path: Path) -> None:
    lines = long.log.read_text().splitlines(keepends=True)
    folder = tmp_path / "going"
    folder.mkdir()
    log = folder / "decisions.jsonl"
    log.write_text("".join(lines[:500]))
    with Page(tmp_path, str(folder)) as page:
        tab = Tab(browser, f"{page.url}#/time")
        first = tab.page.wait_for_selector("#log .number").inner_text()
        assert int(first.removeprefix("#")) < 500
        with log.open("a") as file:
            file.write("".join(lines[500:900]))
        tab.page.wait_for_function(
            "() => Number(document.querySelector('#log .number').textContent.slice(1)) > 890"
        )
        tab.page.keyboard.press("Home")
        moment = tab.text("#moment-text").partition(" of ")
        with log.open("a") as file:
            file.write("".join(lines[900:2000]))
        tab.page.wait_for_function(
            "text => !document.getElementById('moment-text').textContent.endsWith(text)", arg=moment[2]
        )
        assert tab.text("#moment-text").startswith(moment[0]), "who looks at the past stays there"
        tab.close()


@pytest.mark.nightly
@promise("The page shows a live cluster and a killed worker.")
@pytest.mark.cluster
def test_a_live_cluster_and_a_killed_worker(browser: Any, tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start_servers(1, "--workers", "2", timeout=120.0)
        for index in ("0", "1"):
            cluster.start_worker("--task-index", index, "--seconds", "0.02")
        cluster.wait_version(5)
        with Page(tmp_path, cluster.addresses[0]) as served:
            tab = Tab(browser, f"{served.url}#/now")
            tab.page.wait_for_selector('#workers li[data-worker="w1"]', timeout=180_000)
            told = tab.text("#job")
            assert re.search(r"applied\s+\d+\s+pending\s+\d+\s+samples\s+\d", told), told
            assert re.search(r"model\s+\d+.*[KM]iB", tab.text("#memory")), tab.text("#memory")
            for name in PAGES[1:3]:
                tab.page.goto(f"{served.url}#/{name}")
                tab.page.wait_for_selector(".card")
            tab.page.goto(f"{served.url}#/play")
            tab.page.locator("#moment").wait_for(state="visible")
            tab.page.keyboard.press("Home")
            begun = cluster.status().version
            cluster.wait_version(begun + 40)
            assert tab.text("#moment-text").startswith("0.0 s of"), (
                "the cluster's time does not move a simulation"
            )
            tab.page.goto(f"{served.url}#/now")
            cluster.workers[1].kill()
            tab.page.wait_for_selector('#workers li[data-worker="w1"][data-state="lost"]')
            tab.close()


THIRTY_FRAMES = """() => new Promise(done => {
    let left = 30;
    const next = () => left-- ? requestAnimationFrame(next) : done();
    next();
})"""


@pytest.mark.nightly
@pytest.mark.cluster
def test_the_end_of_a_live_cluster(browser: Any, tmp_path: Path) -> None:
    """On a page that is open then, and on one that is opened later."""
    with Cluster(tmp_path) as cluster:
        cluster.start_servers(1, "--workers", "2", timeout=120.0)
        gate = tmp_path / "gate"
        for index in ("0", "1"):
            flags = ("--task-index", index, "--seconds", "0.01", "--batches", "40")
            cluster.start_worker(*flags, "--gate", "20", str(gate))
        address = cluster.addresses[0]
        with Page(tmp_path, address) as served, Page(tmp_path, address) as closed:
            early = Tab(browser, f"{closed.url}#/now")
            early.page.wait_for_selector('#workers li[data-worker="w1"]')
            early.close()
            tab = Tab(browser, f"{served.url}#/now")
            tab.page.wait_for_selector('#workers li[data-worker="w1"]')
            gate.touch()
            tab.page.locator("#ended").wait_for(state="visible")
            run = cluster.wait_end()
            told = f"Done at version {run.summary.versions}: all workers are done. "
            assert tab.text("#ended").startswith(told) and str(run.path.absolute()) in tab.text("#ended")
            tab.page.wait_for_function(
                "() => /ended at/.test(document.getElementById('figures').textContent)"
            )
            stands = tab.text("#figures")
            tab.page.evaluate(THIRTY_FRAMES)
            assert tab.text("#figures") == stands and not tab.page.locator("#notice").is_visible()
            tab.close()
            later = Tab(browser, f"{closed.url}#/now")
            later.page.locator("#ended").wait_for(state="visible")
            assert later.text("#ended").startswith(told)
            later.close()
