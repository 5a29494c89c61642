"""The page "The way of a gradient" against the calls of a real run: names, files and their order."""

import re
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import psworker
from psserver.fast import FastBackend
from psworker.loop import train
from tests.attack.honest import trainer
from tests.service.serving import serving

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "design" / "gradient.md"
PACKAGES = ("psworker", "psserver")
ROW = re.compile(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", re.MULTILINE)
BATCHES = 12


@dataclass(frozen=True, slots=True)
class Call:
    """`function`: as `__qualname__`."""

    file: str
    function: str


class Tracer:
    """The calls of every thread that starts while it is installed, in the order in which they began."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __call__(self, frame: FrameType, what: str, _: Any) -> None:
        if what == "call":
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(ROOT) and (short := file.relative_to(ROOT)).parts[0] in PACKAGES:
                self.calls.append(Call(short.as_posix(), frame.f_code.co_qualname))

    def __enter__(self) -> "Tracer":
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def traced() -> list[list[Call]]:
    """The calls of each step in the middle of a run, from a grant to the next one."""
    model = trainer(BATCHES)
    with Tracer() as tracer, serving() as cluster:
        with psworker.connect(cluster.hosts, model.specs, transport="socket", local_rules=True) as session:
            model.attach(session.plan)
            train(session, model, 1, lambda *_: None)
    first = next(row for row in rows(PAGE.read_text(encoding="utf-8")))
    starts = [number for number, call in enumerate(tracer.calls) if call.function == first.function]
    assert len(starts) == BATCHES
    # The first steps agree on a transport, and the last one ends the job.
    return [tracer.calls[start:end] for start, end in zip(starts[2:-2], starts[3:-1], strict=True)]


def rows(page: str) -> list[Call]:
    return [Call(file, function) for file, function in ROW.findall(page)]


def missing(way: Sequence[Call], step: Sequence[Call]) -> Call | None:
    """The first row that does not follow the rows before it in the step."""
    calls = iter(step)
    return next((row for row in way if row not in calls), None)


def moved(page: str, steps: Sequence[Sequence[Call]]) -> Iterator[tuple[Call, str]]:
    """Rows whose function is in another file now."""
    calls = {call for step in steps for call in step}
    for row in rows(page):
        files = {call.file for call in calls if call.function == row.function}
        if row.file not in files and len(files) == 1:
            yield row, files.pop()


def renewed(page: str, steps: Sequence[Sequence[Call]]) -> str:
    for row, file in moved(page, steps):
        page = page.replace(f"| `{row.file}` | `{row.function}` |", f"| `{file}` | `{row.function}` |")
    return page


def test_the_page_names_the_way_of_a_gradient(regenerate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In some step all rows are called in their order; a step may be disturbed, by a lease or a flush of the log."""
    # Whether compiled loops are ready must not decide which files are passed.
    monkeypatch.setattr(FastBackend, "prepare", lambda *_, **__: None)
    steps = traced()
    page = PAGE.read_text(encoding="utf-8")
    if regenerate:
        PAGE.write_text(page := renewed(page, steps), encoding="utf-8")
    way = rows(page)
    lost = {missing(way, step) for step in steps}
    assert None in lost, f"not called behind the rows before: {lost}; files may have moved: --regenerate"


def test_a_row_out_of_order_is_found() -> None:
    a, b = Call("a.py", "a"), Call("b.py", "b")
    assert missing([a, b], [a, b]) is None
    assert missing([a, b], [b, a]) == b
    assert missing([a, b], [b]) == a
