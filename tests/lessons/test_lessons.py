"""Every lesson runs as it stands on its page, gives the numbers that the page shows, and shows what it claims."""

import re
import shutil
from collections.abc import Callable
from functools import cache

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from tests.lessons.lesson import DAILY, LESSONS, Lesson, agrees, commands, rewritten, tables, taken
from tests.promises import promise

NAMES = sorted(path.name for path in LESSONS.iterdir() if path.name[0].isdigit())
LESSON_NAMES = [
    name if name.startswith(DAILY) else pytest.param(name, marks=pytest.mark.nightly) for name in NAMES
]
MOST_BYTES = 60_000

Take = Callable[[str], Lesson]


@pytest.fixture(scope="module")
def take(tmp_path_factory: pytest.TempPathFactory) -> Take:
    """A lesson by its number, run once."""
    folder = tmp_path_factory.mktemp("lessons")

    @cache
    def by_number(number: str) -> Lesson:
        name = next(name for name in NAMES if name.split("-")[0] == number)
        return taken(name, folder / name)

    return by_number


@pytest.mark.parametrize("name", LESSON_NAMES)
def test_a_lesson_gives_what_its_page_shows(name: str, take: Take, regenerate: bool) -> None:
    lesson = take(name.partition("-")[0])
    if regenerate:
        (LESSONS / name / "README.md").write_text(rewritten(lesson), encoding="utf-8")
        for picture in lesson.folder.glob("*.png"):
            shutil.copy(picture, LESSONS / name)
        return
    found = list(tables(lesson.text))
    assert found
    for patterns, rows in found:
        labels = [row[0] for row in rows[1:]]
        assert sorted(labels) == sorted(group.label for group in lesson.groups(patterns))
        for label, *cells in rows[1:]:
            group = lesson.group(patterns, label)
            for measure, cell in zip(rows[0][1:], cells, strict=True):
                value = group.spread(measure).mean
                assert agrees(cell, value), f"{label}, {measure}: the page says {cell}, it is {value}"


@pytest.mark.parametrize("name", LESSON_NAMES)
def test_a_lesson_draws_its_pictures(name: str, take: Take) -> None:
    lesson = take(name.partition("-")[0])
    drawn = {path.name for path in lesson.folder.glob("*.png")}
    assert drawn and drawn == {path.name for path in (LESSONS / name).glob("*.png")}
    for picture in drawn:
        assert f"]({picture})" in lesson.text
        data = (LESSONS / name / picture).read_bytes()
        assert data.startswith(b"\x89PNG") and len(data) < MOST_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_has_an_exercise_with_its_answer(name: str) -> None:
    text = (LESSONS / name / "README.md").read_text(encoding="utf-8")
    assert text.count("## Exercise") == 1 and "<details><summary>Answer</summary>" in text
    assert commands(text) and f"({name}/README.md)" in (LESSONS / "README.md").read_text(encoding="utf-8")


@pytest.mark.nightly
@promise("Top-k fails without error feedback, and is level with it.")
def test_11_error_feedback_makes_up_for_what_is_left_out(take: Take) -> None:
    lesson = take("11")

    def loss(patterns: str, label: str) -> float:
        return lesson.group(patterns, label).spread("held_out_loss").mean

    plain, fed, forgetful = (
        loss("runs/bytes-sweep", f"sync, wire_dtype={name}")
        for name in ("float32", "top-k", "top-k-forgetful")
    )
    assert abs(fed - plain) < 0.1 * plain < 0.3 * plain < forgetful - plain
    times = [
        lesson.group("runs/rounds-sweep --accuracy 0.95", f"local-sgd (steps={steps}), wire_dtype={name}")
        .spread("seconds_to_accuracy")
        .mean
        for steps, name in ((1, "float32"), (1, "top-k/int4"), (50, "top-k/int4"))
    ]
    assert times[0] > 3 * times[1] > 9 * times[2]


def test_every_lesson_links_to_what_is_there() -> None:
    for page in LESSONS.rglob("README.md"):
        for target in _links(page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page} links to {target}"


def _links(text: str) -> list[str]:
    return [target for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", text) if not target.startswith("http")]


def test_numbers_have_no_gap() -> None:
    found = sorted(int(name.split("-")[0]) for name in NAMES)
    assert found == list(range(1, len(NAMES) + 1)) and len(NAMES) >= 11
