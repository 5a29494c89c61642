"""The check of the built site finds what is wrong with it."""

from pathlib import Path

import pytest

from docs.generate import check


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(check.api, "public", lambda: {"package": ("name",)})
    monkeypatch.setattr(check.api, "undocumented", lambda: [])
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "package.html").write_text('<h2 id="package.name">name</h2>')
    (tmp_path / "style.css").write_text("p {background: url(picture.png)}")
    (tmp_path / "index.html").write_text(
        '<h1 id="top">Top</h1><a href="api/package.html#package.name">name</a>'
    )
    return tmp_path


def test_a_sound_site_has_no_problems(site: Path) -> None:
    assert list(check.problems(site)) == []


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ('<a href="absent.html">', "page.html links to absent.html: no such page"),
        ('<a href="index.html#absent">', "page.html links to index.html#absent: no such anchor"),
        ('<a href="#absent">', "page.html links to #absent: no such anchor"),
        ('<script src="https://cdn/x.js"></script>', "page.html loads https://cdn/x.js from a network"),
        ('<link href="//cdn/x.css">', "page.html loads //cdn/x.css from a network"),
        ('<img src="absent.png">', "page.html loads absent.png, which is not there"),
    ],
)
def test_a_fault_of_a_page_is_found(page: str, problem: str, site: Path) -> None:
    (site / "page.html").write_text(page)
    assert list(check.problems(site)) == [problem]


def test_a_font_from_a_network_is_found(site: Path) -> None:
    (site / "style.css").write_text("@import 'https://fonts/x.css';")
    assert list(check.problems(site)) == ["style.css loads https://fonts/x.css from a network"]


def test_a_public_name_outside_the_reference_is_found(site: Path) -> None:
    (site / "api" / "package.html").write_text("<h1>package</h1>")
    (site / "index.html").write_text("")
    assert list(check.problems(site)) == ["package.name does not stand in the API reference"]
