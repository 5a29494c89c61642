"""Trackers for the tests of the hook: one that keeps what it is told, and some that fail."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pslab.observe.trackers import RunInfo


class Lines:
    """Writes every call into the file `told` beside the run folder."""

    def start(self, run: RunInfo) -> None:
        self.file = run.folder.parent / "told"
        self.tell("start", run.name, run.folder.name, run.experiment["policy"]["name"], run.virtual)

    def log(self, metrics: Mapping[str, float], version: int, seconds: float) -> None:
        self.tell("log", dict(metrics), version, seconds)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.tell("finish", summary.get("success"), summary.get("versions"))

    def tell(self, *what: object) -> None:
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([*what, threading.current_thread().name]) + "\n")


class NoStart(Lines):
    def start(self, run: RunInfo) -> None:
        raise ConnectionError("nobody answers")


class NoLog(Lines):
    def log(self, metrics: Mapping[str, float], version: int, seconds: float) -> None:
        raise ConnectionError("the line is cut")


class Stuck(Lines):
    def finish(self, summary: Mapping[str, Any]) -> None:
        threading.Event().wait(60)


class Half:
    def start(self, run: RunInfo) -> None:
        pass


class Demanding(Lines):
    def __init__(self, token: str) -> None:
        self.token = token


def told(folder: Path) -> list[list[Any]]:
    """What `Lines` was told of a run in `folder`, without the threads' names."""
    lines = [json.loads(line) for line in (folder / "told").read_text(encoding="utf-8").splitlines()]
    assert {line[-1] for line in lines} == {"observing"}, "one thread makes every call"
    return [line[:-1] for line in lines]
