"""The dashboard's process over HTTP: what it serves, and whom it refuses."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pslab.dashboard.app import static_files
from tests.dashboard.page import Page
from tests.replay.simulated import simulate

SETTINGS = {
    "cluster.workers": 3,
    "policy.name": "sync",
    "simulation.compute": "exponential(1)",
    "run.versions": 5,
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page")
    run = simulate(folder / "run", "async", run={"versions": 30})
    with Page(folder, str(run.path)) as made:
        yield made


def test_the_page_and_its_files(page: Page) -> None:
    status, headers, body = page.request("/")
    assert status == 200 and headers["content-type"].startswith("text/html") and b"/static/app.js" in body
    for path, kind in (
        ("/static/app.js", "text/javascript"),
        ("/static/pages/now.js", "text/javascript"),
        ("/static/style.css", "text/css"),
        ("/favicon.ico", "image/svg+xml"),
    ):
        status, headers, body = page.request(path)
        assert status == 200 and headers["content-type"].startswith(kind) and body, path
    for path in (
        "/static/../serve.py",
        "/static/%2e%2e/serve.py",
        "/static/nothing.js",
        "/etc/passwd",
        "/api",
    ):
        assert page.request(path)[0] == 404, path


def test_every_answer_has_the_headers(page: Page) -> None:
    for path in ("/", "/static/app.js", "/api/about", "/nothing"):
        _, headers, _ = page.request(path)
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers


def test_no_file_of_the_page_names_another_host() -> None:
    """Nothing is fetched from elsewhere, and no style is written into markup, which the policy forbids."""
    static = Path(__file__).parents[2] / "pslab" / "dashboard" / "static"
    files = [path for path in static.rglob("*") if path.is_file()]
    assert len(files) > 15
    for path in files:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text and "https:" not in text and "@import" not in text, path
        assert " style=" not in text and "innerHTML" not in text and "eval(" not in text, path


def test_lines_of_the_page_can_be_read() -> None:
    for name, (kind, content) in static_files().items():
        if kind == "text/javascript":
            long = [n for n, line in enumerate(content.decode().splitlines(), 1) if len(line) > 120]
            assert not long, f"{name}: lines {long} have more than 120 characters"


def test_a_foreign_host_is_refused(page: Page) -> None:
    status, _, body = page.request("/api/about", {"Host": "evil.example"})
    assert status == 421 and b"ps-lab dashboard printed" in body
    assert page.request("/api/about", {"Host": f"localhost:{page.port}"})[0] == 200


def test_another_sites_page_gets_nothing(page: Page) -> None:
    assert page.request("/api/about", {"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert page.request("/api/about", {"Sec-Fetch-Site": "same-origin"})[0] == 200
    assert page.request("/", {"Sec-Fetch-Site": "cross-site"})[0] == 200, (
        "a link from elsewhere may lead here"
    )


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_get_exists(page: Page, method: str) -> None:
    assert page.request("/api/about", method=method)[0] == 405


def test_a_run_is_served(page: Page) -> None:
    about = page.json("/api/about")
    assert about["kind"] == "run" and about["title"] == "run"
    found = page.json("/api/recording")
    assert found["workers"] == ["w0", "w1", "w2", "w3"] and len(found["recent"][0]["updates"]) == 30
    assert page.request("/api/recording?entries=x")[0] == 404
    assert page.request("/api/events")[0] == 404


def test_a_play_over_http(page: Page) -> None:
    found = page.play({"settings": SETTINGS})
    assert found["version"] == 5 and found["experiment"].startswith("[run]")
    assert "foreign code" in page.play({"settings": {**SETTINGS, "policy.name": "os:system"}})["error"]
    assert "not JSON" in page.json("/api/play?play=%7B")["error"]


def test_off_loopback_a_token_is_needed(tmp_path: Path) -> None:
    with Page(tmp_path, "--bind", "0.0.0.0", "--insecure") as page:
        page.host = "127.0.0.1"
        token = page.url.partition("token=")[2]
        assert len(token) >= 20
        assert page.request("/")[0] == 401 and page.request("/api/about")[0] == 401
        assert page.request("/api/about", {"Cookie": "ps_dashboard=guess"})[0] == 401
        status, headers, _ = page.request(f"/?token={token}")
        assert status == 303 and headers["location"] == "/"
        cookie = headers["set-cookie"]
        assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
        assert page.request("/api/about", {"Cookie": cookie.partition(";")[0]})[0] == 200


def test_it_ends_at_a_signal_with_a_simulation_under_way(tmp_path: Path) -> None:
    with Page(tmp_path) as page:
        assert page.json("/api/about")["kind"] == "playground"
        long = {**SETTINGS, "policy.name": "async", "run.versions": 10**9, "cluster.workers": 32}
        asked = threading.Thread(target=lambda: _quietly(page, long))
        asked.start()
        page.process.send(signal.SIGINT)
        assert page.process.wait_exit() in (0, 130)
        asked.join()


def _quietly(page: Page, settings: object) -> None:
    try:
        page.play({"settings": settings})
    except (OSError, AssertionError, ValueError):
        return


def test_mistakes_on_the_command_line_are_sentences(tmp_path: Path) -> None:
    from tests.cluster.cluster import Cluster

    for target, code, sentence in (
        ("nonsense", 2, "no run folder or file has that name"),
        ("127.0.0.1:1", 3, "nothing listens on 127.0.0.1:1"),
        (str(tmp_path), 2, "not a run folder"),
        ("examples/simulated-crashes.toml", 2, "to see an experiment simulated, run it with"),
    ):
        process = Cluster(tmp_path).launch("wrong", "-m", "pslab", "dashboard", "--port", "0", target)
        assert process.wait_exit() == code, process.errors
        assert sentence in process.errors
        process.close()


def test_a_port_that_is_taken(tmp_path: Path, page: Page) -> None:
    from tests.cluster.cluster import Cluster

    process = Cluster(tmp_path).launch("second", "-m", "pslab", "dashboard", "--port", str(page.port))
    assert process.wait_exit() == 4 and "--port 0 takes a free one" in process.errors
    process.close()
