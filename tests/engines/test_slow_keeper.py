"""A keeper that takes long to begin."""

import queue
import threading
from pathlib import Path

import pytest

from pslab.launch.engines.launcher import Task
from pslab.launch.events import EventQueue, Exited
from pslab.launch.keeping import wire
from pslab.launch.keeping.kept import KeptProcess
from tests.patience import PATIENCE


class SlowPipe:
    """Says nothing for many turns of the writer; then HELLO, and EXIT once it has been asked for something."""

    def __init__(self) -> None:
        self.written: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._said = iter((self._hello, self._exit))

    def write(self, content: bytes) -> None:
        self.written.put(content)

    def read(self) -> bytes:
        return next(self._said, bytes)()

    def kill(self) -> None:
        pass

    def close(self) -> str:
        return ""

    def _hello(self) -> bytes:
        threading.Event().wait(0.3)
        return wire.MAGIC + wire.frame_json(wire.HELLO, host="h", pid=1, address="127.0.0.1")

    def _exit(self) -> bytes:
        self.first = self.written.get(timeout=PATIENCE)
        return wire.frame_json(wire.EXIT, code=0)


def test_its_first_line_is_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words that the launcher is still there come behind it."""
    monkeypatch.setattr(wire, "HERE_EVERY", 0.01)
    pipe, events = SlowPipe(), EventQueue()
    request = wire.Request(["true"])
    KeptProcess(
        Task("w", ["true"], {}), "h", lambda _: request, lambda _: pipe, tmp_path / "log", events, PATIENCE
    )
    assert events.get(timeout=PATIENCE) == Exited("w", 0)
    assert pipe.first == request.encode()
