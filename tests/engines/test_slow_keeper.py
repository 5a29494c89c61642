"""A keeper that takes long to begin, or whose words cannot be taken."""

import queue
import threading
from pathlib import Path

import pytest

from pslab.launch.engines.launcher import Task
from pslab.launch.events import EventQueue, Exited, Printed
from pslab.launch.remote import protocol
from pslab.launch.remote.process import RemoteProcess
from pswire.exits import ExitCode
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
        return protocol.MAGIC + protocol.frame_json(protocol.HELLO, host="h", pid=1, address="127.0.0.1")

    def _exit(self) -> bytes:
        self.first = self.written.get(timeout=PATIENCE)
        return protocol.frame_json(protocol.EXIT, code=0)


def test_its_first_line_is_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words that the launcher is still there come behind it."""
    monkeypatch.setattr(protocol, "HERE_EVERY", 0.01)
    pipe, events = SlowPipe(), EventQueue()
    request = protocol.SpawnRequest(["true"])
    RemoteProcess(
        *(Task("w", ["true"], {}), "h", lambda _: request, lambda _: pipe),
        *(tmp_path / "log", events, PATIENCE, threading.Semaphore()),
    )
    assert events.get(timeout=PATIENCE) == Exited("w", 0)
    assert pipe.first == request.encode()


class BadPipe:
    """Says HELLO, then `said`; its end comes with `kill`."""

    def __init__(self, said: bytes) -> None:
        self._said = iter(
            (protocol.MAGIC + protocol.frame_json(protocol.HELLO, host="h", pid=1, address="127.0.0.1"), said)
        )
        self.killed, self.closed = threading.Event(), threading.Event()

    def write(self, content: bytes) -> None:
        """Whatever it is asked for."""

    def read(self) -> bytes:
        if (said := next(self._said, None)) is not None:
            return said
        assert self.killed.wait(PATIENCE)
        return b""

    def kill(self) -> None:
        self.killed.set()

    def close(self) -> str:
        self.closed.set()
        return ""


@pytest.mark.parametrize(
    "said",
    [
        protocol.frame(protocol.EXIT, b"no JSON"),
        protocol.frame_json(protocol.EXIT, other=1),
        # A file stands where a folder would have to be.
        protocol.file_frame("taken/file", 0, b"content", whole=True),
    ],
    ids=["no JSON", "no code", "no room"],
)
def test_what_cannot_be_taken_ends_connection_and_process(tmp_path: Path, said: bytes) -> None:
    """The run is told, which waits for nothing else; nobody goes on there, unseen."""
    (tmp_path / "taken").touch()
    pipe, events = BadPipe(said), EventQueue()
    made = RemoteProcess(
        *(
            Task("w", ["true"], {}, folder=tmp_path),
            "h",
            lambda _: protocol.SpawnRequest(["true"]),
            lambda _: pipe,
        ),
        *(tmp_path / "log", events, PATIENCE, threading.Semaphore()),
    )
    assert events.get(timeout=PATIENCE) == Exited("w", ExitCode.UNREACHABLE, lost=True)
    assert made.arrived.wait(PATIENCE) and pipe.killed.is_set() and pipe.closed.is_set()
    assert "the connection to h was lost: " in (tmp_path / "log").read_text()


def test_a_disk_that_takes_no_log_loses_neither_words_nor_end() -> None:
    pipe, events = BadPipe(protocol.frame(protocol.STDOUT, b'{"event": "ready"}\n')), EventQueue()
    made = RemoteProcess(
        *(Task("w", ["true"], {}), "h", lambda _: protocol.SpawnRequest(["true"]), lambda _: pipe),
        *(Path("/dev/full"), events, PATIENCE, threading.Semaphore()),
    )
    assert events.get(timeout=PATIENCE) == Printed("w", {"event": "ready"})
    made.kill()
    assert events.get(timeout=PATIENCE) == Exited("w", ExitCode.UNREACHABLE, lost=True)
    assert made.arrived.wait(PATIENCE)
