"""Those who follow a log see that a recovery has cut it: what they have at the end is what the log says then."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pslab.observe.follow import LineTail, Point, RunFollower, evaluation
from pslab.runs.folder import Run
from psserver.checkpoint import Store
from tests.checkpoint.test_simulated import EVERY, cut_off, play
from tests.observe.test_points import points

SECTIONS: dict[str, Any] = {"simulation": {"evaluate": 3}, "run": {**EVERY, "versions": 24}}


def in_place(file: Path, kept: int) -> None:
    os.truncate(file, kept)


def as_another_file(file: Path, kept: int) -> None:
    """As a copy that is put in its place leaves it."""
    other = file.with_suffix(".other")
    other.write_bytes(file.read_bytes()[:kept])
    other.replace(file)


@pytest.mark.parametrize("cut", [in_place, as_another_file])
@pytest.mark.parametrize("seed", range(20))
def test_lines_are_neither_lost_nor_doubled(
    tmp_path: Path, seed: int, cut: Callable[[Path, int], None]
) -> None:
    """Of a file that grows in pieces, is cut anywhere, and grows beyond what it was or less, between two looks."""
    dice, file = random.Random(seed), tmp_path / "log"
    tail, shown, number = LineTail(file), list[str](), 0
    for _ in range(60):
        match dice.choice(("grow", "grow", "tear", "cut", "look", "look")):
            case "grow" | "tear" as how:
                with file.open("ab") as log:
                    for _ in range(dice.choice((1, 3, 400))):
                        number += 1
                        log.write(b"%d %s\n" % (number, b"x" * dice.choice((0, 5, 90))))
                    if how == "tear":
                        log.write(b"torn")
            case "cut" if file.is_file():
                content = file.read_bytes()
                ends = [0, *(place + 1 for place, byte in enumerate(content) if byte == ord("\n"))]
                cut(file, dice.choice(ends))
            case _:
                grown = tail.read()
                shown = shown[: grown.kept] + grown.lines
                whole = file.read_bytes().split(b"\n")[:-1] if file.is_file() else []
                assert shown == [line.decode() for line in whole]


class Shown:
    """What a sink has that drops what a recovery took back."""

    def __init__(self) -> None:
        self.points = list[Point]()
        self.backs = list[int]()

    def take(self, found: Iterator[Point]) -> None:
        for point in found:
            self.points.append(point)

    def back(self, version: int) -> int:
        self.backs.append(version)
        self.points = [point for point in self.points if point.version <= version]
        return version


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return play(tmp_path_factory.mktemp("run") / "whole", "async", **SECTIONS)


@pytest.mark.parametrize("seen", ["cut", "grown", "late"])
def test_points_are_those_of_the_log_that_is_left(whole: Run, tmp_path: Path, seen: str) -> None:
    """Where the followers look at the log while it is cut; once it has grown beyond what it was; and not before."""
    folder = cut_off(whole, tmp_path / "run", 0.5 if seen == "grown" else 0.9)
    before = (folder / "decisions.jsonl").stat().st_size
    followers = [(every, shown := Shown(), RunFollower(folder, every, shown.back)) for every in (1, 3)]

    def look() -> None:
        for _, shown, follower in followers:
            shown.take(follower.points())

    if seen != "late":
        look()
    name = Store(folder / "checkpoints").names()[1]
    again = play(folder, "async", name, **SECTIONS)
    after = again.log.read_bytes()
    assert seen != "grown" or len(after) > before
    if seen == "cut":
        # The end of the new generation is still to come.
        end = after.index(b'"kind":"restore"') + 200
        assert end < before
        again.log.write_bytes(after[:end])
        look()
        with again.log.open("ab") as file:
            file.write(after[end:])
    evaluations = [evaluation(metric) for metric in again.metrics() if metric.kind == "eval"]
    assert evaluations
    for every, shown, follower in followers:
        shown.take(follower.rest())
        assert len(shown.backs) == (seen != "late")
        assert [point for point in shown.points if point.staleness] == points(again, every)
        assert [point for point in shown.points if not point.staleness] == evaluations


def test_a_run_that_is_begun_anew_in_its_folder_is_another_one(whole: Run, tmp_path: Path) -> None:
    folder, other = cut_off(whole, tmp_path / "run", 0.9), play(tmp_path / "other", "sync", **SECTIONS)
    shown = Shown()
    follower = RunFollower(folder, 1, shown.back)
    shown.take(follower.points())
    for name in ("decisions.jsonl", "metrics.jsonl"):
        shutil.copy(other.path / name, folder / name)
    shown.take(follower.rest())
    assert shown.backs == [0]
    assert [point for point in shown.points if point.staleness] == points(other)
