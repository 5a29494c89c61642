"""Which lessons can be played: the page of lessons, their links and the playground say the same."""

import re
from pathlib import Path

from pslab.dashboard.playground.settings import lessons

LESSONS = Path(__file__).parents[2] / "docs" / "lessons"


def test_a_lesson_has_a_link_if_it_can_be_played() -> None:
    linked = {
        page.parent.name: re.findall(r"#/play\?lesson=([\w-]+)", page.read_text(encoding="utf-8"))
        for page in LESSONS.glob("*/README.md")
    }
    assert {folder for folder, links in linked.items() if links} == set(lessons())
    assert all(set(links) <= {folder} for folder, links in linked.items())


def test_the_page_of_lessons_says_which() -> None:
    numbers = sorted(int(name.split("-")[0]) for name in lessons() if name[0].isdigit())
    assert numbers == list(range(1, 11)) and set(lessons()) - {"race"} == {
        n for n in lessons() if n[0].isdigit()
    }
    assert "play lessons 1 to 10 and the race" in (LESSONS / "README.md").read_text(encoding="utf-8")
