"""The course of a run on any engine: start servers and workers, watch them, end them. What the engine is, its launcher
knows (`pslab.launch.engines`).

One loop takes all events from one queue. Ports are chosen by the system without races: servers 1..
start on port 0 and report what they got; server 0 is started with their addresses, then the workers.
"""

import secrets
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty

from pslab.display.progress import Display
from pslab.launch.engines.launcher import Launcher, PlaceError, Process, Task
from pslab.launch.events import (
    Event,
    EventQueue,
    Exited,
    Printed,
    Reserved,
    Signalled,
    StatusAnswer,
    StatusFailure,
    Unplaced,
    signals_to,
)
from pslab.launch.exits import DuplicateOutput, ExitTracker, RunResult, Verdict, end_text
from pslab.launch.restarts import AGREEING, RestartRules, Restarts
from pslab.launch.security import Protection, credentials_of
from pslab.launch.status_poll import StatusPoller
from pslab.launch.tasks import Daemons, Tasks
from pslab.runs.folder import EXPERIMENT, LOGS, later_jobs
from pswire.config.experiment import Experiment
from pswire.config.run_sections import RECOVER
from pswire.exits import ExitCode
from pswire.own_files import write_file

# Of each process, of a run that loses nothing by them: on this machine, and on others, which may be off for a minute.
RESTARTS, RESTARTS_ON_NODES = 3, 6


class RealRun:
    """One run of processes. `folder` is an empty run folder; call `run` once, in the main thread.

    `launcher` is the run's own, and closed at its end.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        display: Display,
        launcher: Launcher,
        daemons: Daemons | None = None,
        going_on: str | None = None,
        security: Protection | None = None,
    ) -> None:
        """`going_on`: the checkpoint from which the run in the folder goes on. `security`: who the processes are to
        each other; None: nobody in particular."""
        self._going_on = going_on
        self._experiment, self._folder, self._display = experiment, folder, display
        self._daemons, self._launcher = daemons or Daemons(), launcher
        secret = secrets.token_hex(32)
        self._tasks = Tasks(experiment, folder, self._daemons, launcher.remote, secret, security)
        self._credentials = credentials_of(security)
        self._servers, self._workers = self._tasks.servers, self._tasks.workers
        self._events: EventQueue = EventQueue()
        self._processes: dict[str, Process] = {}
        self._exits = ExitTracker(self._servers, self._workers, scripts=bool(experiment.job.script))
        self._reserved: Reserved | None = None
        # Those that found no place, and why.
        self._unplaced: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        self._signals: list[int] = []
        self._warnings: list[str] = []
        self._duplicates = DuplicateOutput()
        self._stopping = False
        self._saves = bool(experiment.run.checkpoint_every)
        # Nodes come and go; on one machine a worker that dies mostly does so again.
        usual = RESTARTS_ON_NODES if launcher.remote else RESTARTS if self._saves else 0
        self._restarts = Restarts(usual if self._daemons.restarts is None else self._daemons.restarts)
        self._rules = RestartRules(self._servers, self._exits, self._restarts, saves=self._saves)
        # Of the monotonic clock: when each process was started, and when those that died are started again, with the
        # codes that they ended with.
        self._started: dict[str, float] = {}
        self._due: dict[str, tuple[float, int]] = {}
        # Answers in a row that show a start which waits for nobody who can come.
        self._too_few = 0
        self._poller: StatusPoller | None = None

    def run(self) -> RunResult:
        """Start everything, watch until the end, leave no process behind."""
        file = self._folder / EXPERIMENT
        former = file.read_text(encoding="utf-8") if self._going_on and file.is_file() else None
        write_file(file, self._experiment.to_toml())
        with signals_to(self._events):
            try:
                verdict = self._reserve() or self._start()
                if verdict is not None and former is not None:
                    # It does not go on: the folder describes the run that is in it.
                    write_file(file, former)
                verdict = verdict or self._watch()
            finally:
                if self._poller is not None:
                    self._poller.stop()
                self._stop()
                self._launcher.close()
        return RunResult(verdict, tuple(self._warnings))

    # Starting

    def _reserve(self) -> Verdict | None:
        """Places for all, so that nobody waits for a process that cannot come; a verdict when there are none."""

        def look() -> None:
            try:
                self._launcher.reserve(self._tasks.wanted)
                self._events.put(Reserved())
            except PlaceError as error:
                self._events.put(Reserved(str(error)))
            except Exception as error:
                # Whatever it is: the run must not wait for it.
                self._events.put(Reserved(f"{type(error).__name__}: {error}"))

        threading.Thread(target=look, name="reserve", daemon=True).start()
        while self._reserved is None:
            verdict = self._step(float("inf"))
            if verdict is not None:
                return verdict
        problem = self._reserved.problem
        return None if problem is None else Verdict(ExitCode.UNREACHABLE, problem)

    def _start(self) -> Verdict | None:
        """Start all processes; a verdict when that fails or is interrupted."""
        others = self._servers[1:]
        for name in others:
            self._start_server(name)
        verdict = self._until_ready(others)
        if verdict is None:
            self._start_server(self._servers[0])
            verdict = self._until_ready(self._servers[:1])
        if verdict is not None:
            return verdict
        for name in self._workers:
            self._start_worker(name)
        self._poller = StatusPoller(self._addresses[self._servers[0]], self._events, self._credentials)
        return None

    def _start_worker(self, name: str) -> None:
        self._start_task(self._tasks.worker(name, self._addresses))

    def _start_server(self, name: str, going_on: str | None = None) -> None:
        self._start_task(self._tasks.server(name, self._addresses, going_on or self._going_on))

    def _start_task(self, task: Task) -> None:
        log = self._folder / LOGS / f"{task.name}.log"
        self._started[task.name] = time.monotonic()
        self._processes[task.name] = self._launcher.start(task, log, self._events)

    def _until_ready(self, names: Sequence[str]) -> Verdict | None:
        allowed = self._daemons.startup + self._launcher.wait
        deadline = time.monotonic() + allowed
        while not all(name in self._addresses for name in names):
            verdict = self._step(deadline)
            missing = [name for name in names if name not in self._addresses]
            gone = [name for name in missing if self._exits.ended(name)]
            if gone and self._exits.ended_well(gone[0]):
                return Verdict(ExitCode.OK, "the job had succeeded before; nothing was changed")
            if gone and (verdict is None or verdict.code == ExitCode.OK):
                return Verdict(ExitCode.INTERNAL, f"{gone[0]} ended before it was ready", gone[0])
            if verdict is not None:
                return verdict
            if missing and time.monotonic() >= deadline:
                reason = f"{', '.join(missing)} did not get ready in {allowed:g} s"
                return Verdict(ExitCode.UNREACHABLE, reason, missing[0])
        return None

    # Watching

    def _watch(self) -> Verdict:
        """Until the run is over; how it ended."""
        deadline = float("inf")
        verdict: Verdict | None = None
        while verdict is None:
            if not self._exits.workers_over:
                deadline = float("inf")
            elif deadline == float("inf"):
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
        self._start_nothing_more()
        waits = self._daemons.farewell if verdict.code == ExitCode.OK else self._daemons.linger
        waits = 0.0 if self._signals else waits
        self._take_until(time.monotonic() + waits, self._running)

    def _step(self, deadline: float) -> Verdict | None:
        """Take one event, or none until `deadline` (at most a second); a verdict when the run is over."""
        now = time.monotonic()
        for name in [name for name, (when, _) in self._due.items() if when <= now]:
            del self._due[name]
            self._start_again(name)
        soonest = min((when for when, _ in self._due.values()), default=deadline)
        self._take_one(min(deadline, soonest, now + 1.0))
        if self._signals:
            number = self._signals[0]
            return Verdict(128 + number, f"stopped by {signal.Signals(number).name}")
        if self._unplaced:
            return Verdict(ExitCode.UNREACHABLE, next(iter(self._unplaced.values())))
        if self._too_few >= AGREEING and self._exits.verdict is None:
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
                    self._describe(str(record.get("out", "")))
                    # Who looks needs the folder: the run may have certificates of its own.
                    record = {**record, "run": str(self._folder)}
                self._display.event(name, record)
            case Reserved():
                self._reserved = event
            case Unplaced(name, reason):
                # One that is started again may find its place at the next time.
                self._started[name] = time.monotonic()
                if name not in self._rules.again:
                    self._unplaced[name] = reason
            case Exited(name, code):
                if self._starts_again(name, code):
                    return
                self._warn_of(name, self._exits.exited(name, code))
                if name == self._servers[0] and code == ExitCode.OK:
                    for late in self._rules.uninformed_servers():
                        self._processes[late].send(signal.SIGTERM)
            case StatusAnswer(status):
                members = sum(worker.state not in ("left", "lost") for worker in status.workers)
                self._too_few = self._too_few + 1 if self._exits.too_few(status.phase, members) else 0
                self._recall_workers(status.phase, status.job)
                self._display.status(status, time.monotonic())
            case StatusFailure(reason):
                self._display.no_status(reason)
            case Signalled(number):
                # A scheduler may send SIGTERM several times, and means the same by it.
                if not self._signals or number == signal.SIGINT:
                    self._signals.append(number)

    def _describe(self, out: str) -> None:
        """A later job of the same servers has a folder of its own, in that of the run: what it was is written there."""
        name = Path(out).name
        if name in {folder.name for folder in later_jobs(self._folder)}:
            write_file(self._folder / name / EXPERIMENT, self._experiment.to_toml())

    def _starts_again(self, name: str, code: int) -> bool:
        """A process that died of something passing, once all were there."""
        if self._poller is None or self._stopping or self._signals:
            return False
        now = time.monotonic()
        again = self._rules.after_exit(name, code, now - self._started[name])
        if not again:
            return False
        pause = self._restarts.pause(name)
        later = f" in {pause:g} s" if pause else ""
        warning = f"{name} {end_text(code)}; started again{later} ({self._restarts.count(name)})"
        self._warnings.append(warning)
        self._display.warning(warning, self.tail(name))
        for each in again:
            if pause:
                self._due[each] = (now + pause, code)
            else:
                self._start_again(each)
        return True

    def _start_again(self, name: str) -> None:
        if name in self._servers:
            self._start_server(name, "auto")
        else:
            self._start_worker(name)

    def _start_nothing_more(self) -> None:
        for name, (_, code) in self._due.items():
            self._exits.exited(name, code)
        self._due.clear()

    def _recall_workers(self, phase: str, job: str) -> None:
        if self._stopping or self._signals:
            return
        for name in self._rules.after_status(phase, job):
            self._display.warning(f"{name} is needed again: the job went back to before its end", "")
            self._start_worker(name)

    def _warn_of(self, name: str, warning: str | None) -> None:
        verdict = self._exits.verdict
        consequence = self._signals or (verdict is not None and verdict.code != ExitCode.OK)
        if warning is None or consequence or self._stopping:
            return
        tail = self.tail(name)
        before = self._duplicates.first_with(name, tail)
        if before is not None:
            warning, tail = f"{warning}; it printed the same as {before}", ""
        # Of this moment only: not for those who read of it when the run is over.
        self._warnings.append(warning)
        self._display.warning(f"{warning}; {self._exits.going()}", tail)

    def reported(self, name: str) -> bool:
        """The end of its output was shown with a warning."""
        return self._duplicates.is_first(name)

    def tail(self, name: str) -> str:
        """The last lines that a process printed for people."""
        return self._processes[name].tail() if name in self._processes else ""

    # Stopping

    def _running(self, names: Sequence[str] = ()) -> list[Process]:
        """Of these; of all where none is named."""
        wanted = names or self._processes
        return [
            process
            for name, process in self._processes.items()
            if name in wanted and not self._exits.ended(name)
        ]

    def _take_until(self, deadline: float, going: Callable[[], Sequence[object]]) -> None:
        received = len(self._signals)
        while going() and time.monotonic() < deadline and len(self._signals) == received:
            self._take_one(min(deadline, time.monotonic() + 1.0))

    def _stop(self) -> None:
        """SIGTERM to all that run; SIGKILL to what does not end in time, or at a second Ctrl-C. Servers that save
        their last version have more time for it."""
        self._stopping, received, patience = True, len(self._signals), self._daemons.patience
        self._start_nothing_more()
        self._send(signal.SIGTERM, self._running())
        self._take_until(time.monotonic() + patience, self._running)
        if self._saves and len(self._signals) == received:
            self._send(signal.SIGKILL, self._running(self._workers))
            saving = time.monotonic() + self._daemons.saving
            self._take_until(saving, lambda: self._running(self._servers))
        self._send(signal.SIGKILL, self._running())
        self._take_until(time.monotonic() + patience, self._running)

    def _send(self, number: signal.Signals, processes: Sequence[Process]) -> None:
        for process in processes:
            process.send(number)
