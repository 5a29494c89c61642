"""A process behind a keeper: the same end, the same output, and nothing is left whoever dies."""

import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty
from typing import Any

import psutil
import pytest

from pslab.launch.engines.launcher import Task
from pslab.launch.engines.local import LocalLauncher
from pslab.launch.events import Event, EventQueue, Exited, Printed
from pslab.launch.remote import protocol
from pslab.launch.remote.launcher import keeper_command
from pslab.launch.remote.process import CommandPipe, RemoteProcess
from pslab.launch.remote.spawn import FOLDER, PARENT, file
from pswire.exits import ExitCode
from tests.lab.test_local import running
from tests.patience import PATIENCE, at_most, within
from tests.probes import hang_up, pid_of

pytestmark = pytest.mark.cluster

# As our daemons do: it ends when the keeper is not its parent any more.
WATCHING = """
import json, os, sys, threading
from pswire.command.process import die_with
die_with(int(sys.argv[1]))
print(json.dumps({"event": "ready", "pid": os.getpid()}), flush=True)
threading.Event().wait()
"""
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)" + WATCHING.replace(
    "die_with(int", "(int"
)


class Kept:
    """A process and its events."""

    def __init__(self, folder: Path, keeper: Sequence[str] | None = None) -> None:
        self.events: EventQueue = EventQueue()
        self.log, self._keeper = folder / "process.log", list(keeper or keeper_command())
        self.pipes: list[CommandPipe] = []
        self.seen: list[Event] = []
        self.process: RemoteProcess | None = None

    def start(self, code: str, *words: str, wait: float = PATIENCE, **request: Any) -> "Kept":
        command = [sys.executable, "-c", code, *words]
        asked = protocol.SpawnRequest(**{"command": command, "grace": 0.5, **request})
        task = Task("it", command, {}, folder=Path(request["folder"]) if "folder" in request else None)

        def open(log: int) -> CommandPipe:
            self.pipes.append(CommandPipe(self._keeper, log))
            return self.pipes[-1]

        turn = threading.Semaphore()
        self.process = RemoteProcess(
            task, "n1", lambda address: asked, open, self.log, self.events, wait, turn
        )
        return self

    def until(self, wanted: Callable[[Event], bool]) -> Event:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                event = self.events.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise AssertionError(f"only {self.seen}; {self.log.read_text()}") from None
            self.seen.append(event)
            if wanted(event):
                return event

    def end(self) -> int:
        return self.exited().code

    def exited(self) -> Exited:
        event = self.until(lambda event: isinstance(event, Exited))
        assert isinstance(event, Exited) and self.process is not None
        assert self.process.arrived.wait(PATIENCE)
        return event

    def found_no_place(self) -> str:
        """The reason."""
        event = self.exited()
        assert event.code == ExitCode.UNREACHABLE and event.lost
        return event.unplaced

    def said(self) -> Mapping[str, Any]:
        event = self.until(lambda event: isinstance(event, Printed))
        assert isinstance(event, Printed)
        return event.event

    @property
    def keeper(self) -> psutil.Process:
        return psutil.Process(pid_of(self.pipes[0]))


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    if made.process is not None:
        made.process.kill()
        assert made.process.arrived.wait(PATIENCE)


def gone(pid: int) -> bool:
    """What only waits to be reaped is gone."""
    deadline = time.monotonic() + at_most(5.0)
    while running(pid) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    return not running(pid)


@pytest.mark.parametrize("code", [0, 2, 3, 6, 99, 130, 143])
def test_an_exit_code_arrives_as_it_is(kept: Kept, code: int) -> None:
    assert kept.start(f"raise SystemExit({code})").end() == code
    assert kept.process is not None and not kept.process.running


def test_what_it_prints_is_in_the_log_and_among_the_events(kept: Kept) -> None:
    code = """
import sys
print('{"event": "ready", "address": "n1:7"}')
print("for people: \\u00e9")
print("a warning", file=sys.stderr)
"""
    kept.start(code, environment={"PYTHONUTF8": "1"})
    assert kept.said() == {"event": "ready", "address": "n1:7"}
    assert kept.end() == 0
    assert kept.process is not None
    place = f"ps-lab: it runs on {socket.gethostname()}"
    assert set(kept.process.tail().splitlines()) == {place, "for people: é", "a warning"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_reaches_the_process(kept: Kept, number: signal.Signals) -> None:
    kept.start(WATCHING, PARENT).said()
    assert kept.process is not None
    kept.process.send(number)
    assert kept.end() == -number
    # Too late: nothing happens.
    kept.process.send(signal.SIGTERM)


def test_a_scheduler_that_signals_the_keeper_means_the_process(kept: Kept) -> None:
    pid = kept.start(WATCHING, PARENT).said()["pid"]
    kept.keeper.send_signal(signal.SIGTERM)
    assert kept.end() == -signal.SIGTERM and gone(pid)


@pytest.mark.parametrize("code", [WATCHING, STUBBORN])
def test_the_process_ends_with_the_connection(kept: Kept, code: str) -> None:
    pid = kept.start(code, PARENT).said()["pid"]
    hang_up(kept.pipes[0])
    assert gone(pid)
    assert kept.end() == ExitCode.UNREACHABLE
    assert "the connection to n1 was lost" in kept.log.read_text()


def test_a_spare_process_is_not_asked_to_end(kept: Kept, tmp_path: Path) -> None:
    """Asked to end, a server that leads would end the job, with which others go on."""
    asked = "import pathlib, signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: pathlib.Path(sys.argv[2]).touch())"
    pid = kept.start(asked + WATCHING, PARENT, str(tmp_path / "asked"), spare=True).said()["pid"]
    hang_up(kept.pipes[0])
    assert gone(pid)
    assert kept.end() == ExitCode.UNREACHABLE
    assert not (tmp_path / "asked").exists()


def test_a_killed_keeper_takes_the_process_along(kept: Kept) -> None:
    pid = kept.start(WATCHING, PARENT).said()["pid"]
    with within(2.0):
        kept.keeper.kill()
        assert kept.end() == ExitCode.UNREACHABLE
        assert gone(pid)
    # Noticed by the end of the connection, not by its silence.
    assert "the connection to n1 was lost: python" in kept.log.read_text()


def test_what_it_started_ends_with_it(kept: Kept) -> None:
    code = """
import json, subprocess
print(json.dumps({"event": "child", "pid": subprocess.Popen(["sleep", "600"]).pid}), flush=True)
"""
    pid = kept.start(code).said()["pid"]
    assert kept.end() == 0 and gone(pid)


def test_what_left_its_group_holds_up_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It still has the pipe to which the process printed; here on this machine, without a keeper."""
    monkeypatch.setattr("pslab.launch.remote.spawn.DRAIN_TIMEOUT", 0.2)
    code = """
import json, subprocess
left = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(json.dumps({"event": "child", "pid": left.pid}), flush=True)
"""
    events = EventQueue()
    LocalLauncher().start(Task("it", [sys.executable, "-c", code], {}), tmp_path / "process.log", events)
    said = events.get(timeout=PATIENCE)
    assert isinstance(said, Printed)
    left = psutil.Process(said.event["pid"])
    try:
        assert events.get(timeout=PATIENCE) == Exited("it", 0) and left.is_running()
    finally:
        left.kill()


def test_files_are_the_processs_own_and_on_no_disk(kept: Kept) -> None:
    code = """
import json, os, sys
told = {"text": open(sys.argv[1]).read(), "again": open(sys.argv[1]).read()}
told |= {"mode": os.stat(sys.argv[1]).st_mode & 0o777, "secret": os.environ["SECRET"]}
told |= {"words": open("/proc/%d/cmdline" % os.getppid()).read()}
print(json.dumps({"event": "read", **told}))
"""
    kept.start(code, file("key"), files={"key": b"a key"}, environment={"SECRET": "a secret"})
    said = kept.said()
    assert (said["text"], said["again"], said["secret"], said["mode"]) == (
        "a key",
        "a key",
        "a secret",
        0o600,
    )
    assert "keeper" in said["words"] and "a secret" not in said["words"] and "a key" not in said["words"]
    assert kept.end() == 0


def test_a_path_that_the_node_has_not_is_named(kept: Kept) -> None:
    assert kept.start("", cwd="/not/there").end() == ExitCode.USAGE
    assert "/not/there does not exist on " in kept.log.read_text()
    assert "at the same paths on all nodes" in kept.log.read_text()


def test_a_run_folder_that_the_node_does_not_see_is_sent(kept: Kept, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    code = """
import sys
from pathlib import Path
folder = Path(sys.argv[1])
(folder / "decisions.jsonl").write_text("{}\\n" * 3)
(folder / "weights").write_bytes(b"w" * 300000)
print('{"event": "wrote"}')
"""
    asked = {"folder": str(folder), "marker": "none", "mirror": True}
    assert kept.start(code, FOLDER, **asked).end() == 0
    assert (folder / "decisions.jsonl").read_text() == "{}\n" * 3
    assert (folder / "weights").read_bytes() == b"w" * 300000


def test_one_that_it_sees_is_written_to(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "marker").touch()
    code = "import sys\nprint(sys.argv[1])"
    kept.start(code, FOLDER, folder=str(tmp_path), marker="marker", mirror=True, needs_folder=True)
    assert kept.end() == 0
    assert kept.log.read_text().splitlines()[-1] == str(tmp_path)


def test_checkpoints_need_a_folder_that_all_see(kept: Kept, tmp_path: Path) -> None:
    kept.start("", folder=str(tmp_path), marker="none", needs_folder=True)
    assert kept.end() == ExitCode.USAGE
    assert "that all servers see" in kept.log.read_text()


def test_a_keeper_that_never_begins_is_no_place(tmp_path: Path) -> None:
    kept = Kept(tmp_path, ["sleep", "600"]).start("", wait=0.3)
    assert kept.found_no_place().startswith("it found no place on n1: no keeper answered")


def test_what_came_instead_of_a_keeper_is_quoted(tmp_path: Path) -> None:
    kept = Kept(tmp_path, ["sh", "-c", "echo This account is not available. >&2; exit 1"]).start("")
    assert kept.found_no_place().endswith("sh ended with 1; This account is not available.")


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    kept = Kept(tmp_path, ["/not/there"]).start("")
    assert "No such file" in kept.found_no_place()
