"""Engine "local": every server and worker of an experiment as a process on this machine.

One loop takes all events from one queue. Ports are chosen by the system without races: servers 1..
start on port 0 and report what they got; server 0 is started with their addresses, then the workers.
"""

import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from types import FrameType

from pslab.display.progress import Display
from pslab.launch.process import (
    Child,
    Event,
    EventQueue,
    Exited,
    Printed,
    Signalled,
    StatusAnswer,
    StatusFailure,
)
from pslab.launch.status_poll import StatusPoller
from pslab.launch.supervisor import DuplicateOutput, ExitTracker, Restarts, Verdict, end_text
from pslab.runs.folder import EXPERIMENT, LOGS
from pswire.config.experiment import Experiment
from pswire.config.run_sections import RECOVER
from pswire.exits import ExitCode

# Of a run that loses nothing by them.
RESTARTS = 3
# Answers of the status that agree: one may be older than a worker's arrival.
SEEN = 8


@dataclass(frozen=True)
class Daemons:
    """The commands that start a server and a worker, and how long they may take (seconds)."""

    server: Sequence[str] = (sys.executable, "-m", "psserver")
    worker: Sequence[str] = (sys.executable, "-m", "psworker")
    # Of [job] script; the parent's number, the script and its arguments follow.
    script: Sequence[str] = (sys.executable, "-m", "psworker.script")
    # A server must report that it listens within this time.
    startup: float = 60.0
    # After the first failure, the others may report why before they are stopped.
    linger: float = 2.0
    # From SIGTERM to SIGKILL.
    patience: float = 10.0
    # Servers end by themselves once no worker is left; beyond worker_timeout, they get this.
    farewell: float = 30.0
    # Of processes that die, all together; None: RESTARTS where the run takes checkpoints, else none.
    restarts: int | None = None
    # Of the processes' logs, one of pswire.logs.events.FORMATS.
    log_format: str = "text"


@dataclass(frozen=True)
class RunResult:
    """How a run ended; `warnings` are sentences about processes that failed on the way."""

    verdict: Verdict
    warnings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return self.verdict.code == ExitCode.OK


class LocalRun:
    """One run. `folder` is an empty run folder; call `run` once, in the main thread."""

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        display: Display,
        daemons: Daemons | None = None,
        cwd: Path | None = None,
        going_on: str | None = None,
    ) -> None:
        """`going_on`: the checkpoint from which the run in the folder goes on."""
        self._going_on = going_on
        self._experiment, self._folder, self._display = experiment, folder, display
        self._daemons, self._cwd = daemons or Daemons(), cwd
        # Known to this run's servers only: no other process of this machine can give them orders.
        self._job_secret = secrets.token_hex(32)
        self._events: EventQueue = EventQueue()
        self._children: dict[str, Child] = {}
        self._servers = [f"server-{n}" for n in range(experiment.cluster.servers)]
        self._workers = [f"worker-{n}" for n in range(experiment.cluster.workers)]
        self._exits = ExitTracker(self._servers, self._workers)
        self._ended: set[str] = set()
        self._addresses: dict[str, str] = {}
        self._signals: list[int] = []
        self._warnings: list[str] = []
        self._duplicates = DuplicateOutput()
        self._stopping = False
        self._saves = bool(experiment.run.checkpoint_every)
        usual = RESTARTS if self._saves else 0
        self._restarts = Restarts(usual if self._daemons.restarts is None else self._daemons.restarts)
        # Answers in a row that show a start which waits for nobody who can come.
        self._too_few = 0
        self._poller: StatusPoller | None = None

    def run(self) -> RunResult:
        """Start everything, watch until the end, leave no process behind."""
        file = self._folder / EXPERIMENT
        former = file.read_text(encoding="utf-8") if self._going_on and file.is_file() else None
        file.write_text(self._experiment.to_toml(), encoding="utf-8")
        with _signals_to(self._events):
            try:
                verdict = self._start()
                if verdict is not None and former is not None:
                    # It does not go on: the folder describes the run that is in it.
                    file.write_text(former, encoding="utf-8")
                verdict = verdict or self._watch()
            finally:
                if self._poller is not None:
                    self._poller.stop()
                self._stop()
        return RunResult(verdict, tuple(self._warnings))

    # Starting

    def _start(self) -> Verdict | None:
        """Start all processes; a verdict when that fails or is interrupted."""
        others = self._servers[1:]
        for name in others:
            self._launch_server(name)
        verdict = self._until_ready(others)
        if verdict is None:
            self._launch_server(self._servers[0])
            verdict = self._until_ready(self._servers[:1])
        if verdict is not None:
            return verdict
        for name in self._workers:
            self._launch_worker(name)
        self._poller = StatusPoller(self._addresses[self._servers[0]], self._events)
        return None

    def _hosts(self) -> str:
        return ",".join(self._addresses.get(name, "127.0.0.1:0") for name in self._servers)

    def _task(self, index: int) -> list[str]:
        config = str(self._folder / EXPERIMENT)
        return ["--ps-hosts", self._hosts(), "--task-index", str(index), "--config", config]

    def _launch_worker(self, name: str) -> None:
        index = self._workers.index(name)
        if self._experiment.job.script:
            self._launch_script(name, index)
        else:
            self._launch(name, self._daemons.worker, self._task(index))

    def _launch_server(self, name: str, going_on: str | None = None) -> None:
        index = self._servers.index(name)
        options = [*self._task(index), "--out", str(self._folder)]
        if (going_on := going_on or self._going_on) is not None:
            options += ["--resume", going_on]
        self._launch(name, self._daemons.server, options, PS_JOB_SECRET=self._job_secret)

    def _launch(self, name: str, command: Sequence[str], options: Sequence[str], **variables: str) -> None:
        full = [*command, *options, "--json", "--parent", str(os.getpid())]
        if self._daemons.log_format != "text":
            full += ["--log-format", self._daemons.log_format]
        self._start_child(name, full, variables)

    def _launch_script(self, name: str, index: int) -> None:
        """A script has a command line of its own: what a worker is told stands in its environment."""
        job, cluster = self._experiment.job, self._experiment.cluster
        command = [*self._daemons.script, str(os.getpid()), job.script, *job.arguments]
        self._start_child(
            name,
            command,
            {
                "PS_HOSTS": self._hosts(),
                "PS_TASK_INDEX": str(index),
                "PS_WIRE_DTYPE": cluster.wire_dtype,
                "PS_TRANSPORT": cluster.transport,
            },
        )

    def _start_child(self, name: str, command: Sequence[str], variables: Mapping[str, str]) -> None:
        log = self._folder / LOGS / f"{name}.log"
        self._children[name] = Child(
            name, command, log, self._events, self._cwd, {**_environment(), **variables}
        )

    def _until_ready(self, names: Sequence[str]) -> Verdict | None:
        deadline = time.monotonic() + self._daemons.startup
        while not all(name in self._addresses for name in names):
            verdict = self._step(deadline)
            missing = [name for name in names if name not in self._addresses]
            gone = [name for name in missing if name in self._ended]
            if gone and (verdict is None or verdict.code == ExitCode.OK):
                return Verdict(ExitCode.INTERNAL, f"{gone[0]} ended before it was ready", gone[0])
            if verdict is not None:
                return verdict
            if missing and time.monotonic() >= deadline:
                reason = f"{', '.join(missing)} did not get ready in {self._daemons.startup:g} s"
                return Verdict(ExitCode.UNREACHABLE, reason, missing[0])
        return None

    # Watching

    def _watch(self) -> Verdict:
        """Until the run is over; how it ended."""
        deadline = float("inf")
        verdict: Verdict | None = None
        while verdict is None:
            if self._exits.workers_over and deadline == float("inf"):
                deadline = time.monotonic() + self._allowed
            verdict = self._step(deadline)
            if verdict is None and time.monotonic() >= deadline:
                reason = "every worker has ended, but the servers go on; they were stopped"
                return Verdict(ExitCode.ABANDONED, reason, self._servers[0])
        self._settle(verdict)
        return self._exits.verdict if verdict.culprit and self._exits.verdict else verdict

    @property
    def _allowed(self) -> float:
        """Seconds that the servers may take once every worker has ended."""
        cluster = self._experiment.cluster
        allowed = cluster.worker_timeout + self._daemons.farewell
        if self._experiment.run.checkpoint_every:
            # Those of a job that began again wait so long for whoever does not come back.
            again = cluster.recover_timeout
            allowed += RECOVER if isinstance(again, str) else float(again)
        return allowed

    def _settle(self, verdict: Verdict) -> None:
        """Let the others end by themselves: workers after a success, servers that report the cause."""
        waits = self._daemons.farewell if verdict.code == ExitCode.OK else self._daemons.linger
        waits = 0.0 if self._signals else waits
        self._take_until(time.monotonic() + waits, self._running)

    def _step(self, deadline: float) -> Verdict | None:
        """Take one event, or none until `deadline` (at most a second); a verdict when the run is over."""
        self._take_one(min(deadline, time.monotonic() + 1.0))
        if self._signals:
            number = self._signals[0]
            return Verdict(128 + number, f"stopped by {signal.Signals(number).name}")
        if self._too_few >= SEEN and self._exits.verdict is None:
            return self._exits.cannot_start()
        return self._exits.verdict

    def _take_one(self, deadline: float) -> None:
        try:
            event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            return
        self._handle(event)

    def _handle(self, event: Event) -> None:
        match event:
            case Printed(name, record):
                if record.get("event") == "ready" and name in self._servers:
                    self._addresses[name] = str(record.get("address"))
                self._display.event(name, record)
            case Exited(name, code):
                if self._starts_again(name, code):
                    return
                self._ended.add(name)
                self._warn_of(name, self._exits.exited(name, code))
            case StatusAnswer(status):
                members = sum(worker.state not in ("left", "lost") for worker in status.workers)
                self._too_few = self._too_few + 1 if self._exits.too_few(status.phase, members) else 0
                self._display.status(status, time.monotonic())
            case StatusFailure(reason):
                self._display.no_status(reason)
            case Signalled(number):
                self._signals.append(number)

    def _starts_again(self, name: str, code: int) -> bool:
        """A process that died of something passing, once all were there; a server only where its state is saved."""
        server = name in self._servers
        if self._poller is None or self._stopping or self._signals or self._exits.verdict is not None:
            return False
        # Without workers it would wait for nobody who can come.
        if server and (not self._saves or self._exits.workers_over):
            return False
        if not self._restarts.take(code):
            return False
        number, most = self._restarts.used, self._restarts.used + self._restarts.left
        warning = f"{name} {end_text(code)}; started again ({number} of at most {most} times)"
        self._warnings.append(warning)
        self._display.warning(warning, self.tail(name))
        if server:
            self._launch_server(name, "auto")
        else:
            self._launch_worker(name)
        return True

    def _warn_of(self, name: str, warning: str | None) -> None:
        verdict = self._exits.verdict
        consequence = self._signals or (verdict is not None and verdict.code != ExitCode.OK)
        if warning is None or consequence or self._stopping:
            return
        tail = self.tail(name)
        before = self._duplicates.first_with(name, tail)
        if before is not None:
            warning, tail = f"{warning}; it printed the same as {before}", ""
        self._warnings.append(warning)
        self._display.warning(warning, tail)

    def reported(self, name: str) -> bool:
        """The end of its output was shown with a warning."""
        return self._duplicates.is_first(name)

    def tail(self, name: str) -> str:
        """The last lines that a process printed for people."""
        return self._children[name].tail() if name in self._children else ""

    # Stopping

    def _running(self) -> list[Child]:
        return [child for name, child in self._children.items() if name not in self._ended]

    def _take_until(self, deadline: float, going: Callable[[], Sequence[object]]) -> None:
        received = len(self._signals)
        while going() and time.monotonic() < deadline and len(self._signals) == received:
            self._take_one(min(deadline, time.monotonic() + 1.0))

    def _stop(self) -> None:
        """SIGTERM to all that run; SIGKILL to what does not end in time, or at a second Ctrl-C."""
        self._stopping = True
        for number, patience in (
            (signal.SIGTERM, self._daemons.patience),
            (signal.SIGKILL, self._daemons.patience),
        ):
            for child in self._running():
                child.send(number)
            self._take_until(time.monotonic() + patience, self._running)


def _environment() -> dict[str, str]:
    """This process's environment, without a cluster that TF_CONFIG describes, and without the servers' secret."""
    environment = {
        key: value for key, value in os.environ.items() if key not in ("TF_CONFIG", "PS_JOB_SECRET")
    }
    return environment | {"PYTHONUNBUFFERED": "1"}


@contextmanager
def _signals_to(events: EventQueue) -> Iterator[None]:
    """Turn SIGINT and SIGTERM into events as long as the block runs."""

    def put(number: int, frame: FrameType | None) -> None:
        events.put(Signalled(number))

    before = {number: signal.signal(number, put) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
