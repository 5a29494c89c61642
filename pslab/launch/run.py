"""The course of a run on any engine: start servers and workers, watch them, end them.

What is particular to an engine is in its launcher (`pslab.launch.engines`). One loop takes all events from one queue.
The system chooses ports without races: servers 1, 2, ... start on port 0 and report their addresses, server 0 starts
with these, and the workers start last.
"""

import secrets
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import Empty

from pslab.display.progress import Display
from pslab.experiment import Experiment
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
    signals_to,
)
from pslab.launch.exits import COPIES, ExitTracker, RunResult, Verdict, end_text
from pslab.launch.restarts import AGREEING, RESTARTS, RESTARTS_ON_NODES, RestartRules, Restarts
from pslab.launch.security import Protection
from pslab.launch.status_client import StatusPoller
from pslab.launch.tasks import Daemons, Tasks
from pslab.runs.folder import EXPERIMENT, LOGS, forget_secret, job_of, later_jobs
from psserver.checkpoint.resumption import AUTO
from pswire.config.run_sections import RECOVER
from pswire.exits import ExitCode
from pswire.own_files import write_file
from pswire.running import now as present
from pswire.security.secret import Secret

# Seconds in which servers with replicas tell each other that the job is over, before the run tells them.
TELLING = 5.0


class RealRun:
    """One run as processes. `folder` is an empty run folder. Call `run` once, in the main thread.

    The run owns `launcher` and closes it at its end.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        display: Display,
        launcher: Launcher,
        daemons: Daemons | None = None,
        resume_from: str | None = None,
        *,
        security: Protection,
    ) -> None:
        """`resume_from`: checkpoint in the folder. `security`: certificates of the processes."""
        self._resume_from = resume_from
        self._experiment, self._folder, self._display = experiment, folder, display
        self._daemons, self._launcher = daemons or Daemons(), launcher
        secret = secrets.token_hex(32)
        self._secret = Secret(secret.encode())
        self._tasks = Tasks(experiment, folder, self._daemons, launcher.remote, secret, security)
        self._credentials = security.credentials
        self._servers, self._workers = self._tasks.servers, self._tasks.workers
        self._events: EventQueue = EventQueue()
        self._processes: dict[str, Process] = {}
        # Why each server has stopped that did not end well, as it said.
        self._reasons: dict[str, str] = {}
        # When each process was started, on the clock of `pswire.running`.
        self._started: dict[str, float] = {}
        self._addresses: dict[str, str] = {}
        # Servers that start at an address which is not known yet.
        self._moving: set[str] = set()
        # With replicas any server may come to lead.
        self._copies = experiment.cluster.replicas > 1
        self._exits = ExitTracker(
            self._servers, self._workers, scripts=bool(experiment.job.script), replicas=self._copies
        )
        self._reserved: Reserved | None = None
        # Why the first process that found no place did not.
        self._unplaced = ""
        self._signals: list[int] = []
        self._warnings: list[str] = []
        # The process whose output was shown with a warning: the first one only, for others mostly fail alike.
        self._shown = ""
        self._stopping = False
        self._saves = bool(experiment.run.checkpoint_every)
        # Nodes come and go. On one machine without checkpoints, a worker that dies mostly dies again.
        default = RESTARTS_ON_NODES if launcher.remote else RESTARTS if self._saves or self._copies else 0
        self._restarts = Restarts(default if self._daemons.restarts is None else self._daemons.restarts)
        self._rules = RestartRules(
            self._servers, self._exits, self._restarts, saves=self._saves, copies=self._copies
        )
        # Processes that wait to be restarted: when each is due, and the code with which it ended.
        self._due: dict[str, tuple[float, int]] = {}
        # Consecutive status answers by which the job can never start.
        self._too_few = 0
        # When servers that still run are told that the job is over, on the clock of `pswire.running`.
        self._tell_at = float("inf")
        self._poller: StatusPoller | None = None

    def run(self) -> RunResult:
        """Start everything, watch until the end, and leave no process behind."""
        file = self._folder / EXPERIMENT
        former = file.read_text(encoding="utf-8") if self._resume_from and file.is_file() else None
        write_file(file, self._experiment.to_toml())
        with signals_to(self._events):
            try:
                verdict = self._reserve() or self._start()
                if verdict is not None and former is not None:
                    # The run did not resume, so the folder describes the former run again.
                    write_file(file, former)
                verdict = verdict or self._watch()
            finally:
                if self._poller is not None:
                    self._poller.stop()
                self._stop()
                self._launcher.close()
                # Left by a server that was killed, or sent from a node.
                forget_secret(self._folder, self._secret)
        return RunResult(verdict, tuple(self._warnings))

    def reported(self, name: str) -> bool:
        """Whether the end of the process's output was shown with a warning."""
        return name == self._shown

    def tail(self, name: str) -> str:
        """Return the last lines that a process printed for people, and why it ended, if it said so."""
        printed = self._processes[name].tail() if name in self._processes else ""
        why = self._reasons.get(name, "")
        return printed if why in printed else f"{printed}\n{why}".lstrip("\n")

    # Starting

    def _reserve(self) -> Verdict | None:
        """Reserve places for all processes, so that none waits for one that cannot come. Returns a failure."""

        def reserve() -> None:
            try:
                self._launcher.reserve(self._tasks.wanted)
                self._events.put(Reserved())
            except Exception as error:
                # Report any failure: otherwise the run would wait for ever.
                kind = "" if isinstance(error, PlaceError) else f"{type(error).__name__}: "
                self._events.put(Reserved(f"{kind}{error}"))

        threading.Thread(target=reserve, name="reserve", daemon=True).start()
        while self._reserved is None:
            verdict = self._step(float("inf"))
            if verdict is not None:
                return verdict
        problem = self._reserved.problem
        return None if problem is None else Verdict(ExitCode.UNREACHABLE, problem)

    def _start(self) -> Verdict | None:
        """Start all processes. Returns a verdict if that fails or is interrupted."""
        others = self._servers[1:]
        for name in others:
            self._start_server(name, self._first_from)
        verdict = self._await_ready(others)
        if verdict is None:
            self._start_server(self._servers[0], self._first_from)
            verdict = self._await_ready(self._servers[:1])
        if verdict is not None:
            return verdict
        for name in self._workers:
            self._start_worker(name)
        if self._copies:
            self._warn_of_one_node()
        asked = [self._addresses[name] for name in (self._servers if self._copies else self._servers[:1])]
        job = partial(job_of, self._folder)
        self._poller = StatusPoller(",".join(asked), self._events, self._credentials, job)
        return None

    def _warn_of_one_node(self) -> None:
        """Warn if both copies of a part are on one node."""
        hosts = [self._processes[name].host for name in self._servers]
        for first, second in zip(hosts[::COPIES], hosts[1::COPIES], strict=False):
            warning = f"both copies are on node {first}: its loss would end the job"
            if first and first == second and warning not in self._warnings:
                self._say(warning)
                return

    def _say(self, warning: str, tail: str = "") -> None:
        """Show a warning, also beneath the run's end. `tail`: the end of what the process printed."""
        self._warnings.append(warning)
        self._display.warning(warning, tail)

    def _start_worker(self, name: str) -> None:
        self._start_task(self._tasks.worker(name, self._addresses))

    @property
    def _first_from(self) -> str | None:
        """Where servers begin. With replicas those that live on go on from a checkpoint, too, if no copy is left."""
        return self._resume_from or (AUTO if self._copies and self._saves else None)

    def _start_server(self, name: str, resume_from: str | None) -> None:
        known = {
            each: where for each, where in self._addresses.items() if each != name or each not in self._moving
        }
        self._start_task(self._tasks.server(name, known, resume_from))

    def _start_task(self, task: Task) -> None:
        log = self._folder / LOGS / f"{task.name}.log"
        self._started[task.name] = present()
        self._reasons.pop(task.name, None)
        self._processes[task.name] = self._launcher.start(task, log, self._events)

    def _await_ready(self, names: Sequence[str]) -> Verdict | None:
        """Wait until these servers listen. Returns a verdict if one does not."""
        allowed = self._daemons.startup + self._launcher.wait
        deadline = present() + allowed
        while not all(name in self._addresses for name in names):
            verdict = self._step(deadline)
            missing = [name for name in names if name not in self._addresses]
            ended = [name for name in missing if self._exits.ended(name)]
            if ended and self._exits.ended_well(ended[0]):
                return Verdict(ExitCode.OK, "the job had succeeded before; nothing was changed")
            if ended and (verdict is None or verdict.code == ExitCode.OK):
                return Verdict(ExitCode.INTERNAL, f"{ended[0]} ended before it was ready", ended[0])
            if verdict is not None:
                return verdict
            if missing and present() >= deadline:
                reason = f"{', '.join(missing)} did not get ready in {allowed:g} s"
                return Verdict(ExitCode.UNREACHABLE, reason, missing[0])
        return None

    # Watching

    def _watch(self) -> Verdict:
        """Take events until the run is over; return how it ended."""
        deadline = float("inf")
        verdict: Verdict | None = None
        while verdict is None:
            if not self._exits.workers_over:
                deadline = float("inf")
            elif deadline == float("inf"):
                deadline = present() + self._servers_allowed
            verdict = self._step(deadline)
            if verdict is None and present() >= deadline:
                if self._exits.concluded:
                    # One that stands still holds nothing that another one has not.
                    return Verdict(ExitCode.OK, "the job succeeded")
                reason = "every worker has ended, but the servers go on; they were stopped"
                return Verdict(ExitCode.ABANDONED, reason, self._servers[0])
        self._settle(verdict)
        return self._exits.verdict if verdict.culprit and self._exits.verdict else verdict

    @property
    def _servers_allowed(self) -> float:
        """Seconds that the servers may run on after every worker has ended."""
        cluster = self._experiment.cluster
        allowed = cluster.worker_timeout + self._daemons.farewell
        if self._saves:
            # The servers of a recovered job wait this long for members that do not come back.
            recover = cluster.recover_timeout
            allowed += RECOVER if isinstance(recover, str) else float(recover)
        return allowed

    def _settle(self, verdict: Verdict) -> None:
        """Let the other processes end by themselves: workers after a success, servers that report the cause."""
        self._cancel_restarts()
        waits = self._daemons.farewell if verdict.code == ExitCode.OK else self._daemons.linger
        self._take_until(present() + (0.0 if self._signals else waits), self._running)

    def _step(self, deadline: float) -> Verdict | None:
        """Take one event, waiting until `deadline` and at most a second. Returns a verdict once the run is over."""
        now = present()
        for name in [name for name, (due, _) in self._due.items() if due <= now]:
            del self._due[name]
            self._restart(name)
        if now >= self._tell_at:
            self._tell_uninformed()
        next_due = min((due for due, _ in self._due.values()), default=deadline)
        self._take_one(min(deadline, next_due, self._tell_at, now + 1.0))
        if self._signals:
            number = self._signals[0]
            return Verdict(128 + number, f"stopped by {signal.Signals(number).name}")
        if self._unplaced:
            return Verdict(ExitCode.UNREACHABLE, self._unplaced)
        if self._too_few >= AGREEING and self._exits.verdict is None:
            return self._exits.cannot_start()
        return self._exits.verdict

    def _take_one(self, deadline: float) -> None:
        try:
            event = self._events.get(timeout=max(0.0, deadline - present()))
        except Empty:
            return
        self._handle(event)

    def _handle(self, event: Event) -> None:
        match event:
            case Printed(name, record):
                if record.get("event") == "stopped" and record.get("exit_code"):
                    self._reasons[name] = str(record.get("reason", ""))
                if record.get("event") == "warning":
                    self._say(f"{name}: {record.get('text')}")
                if record.get("event") == "ready" and name in self._servers:
                    self._addresses[name] = str(record.get("address"))
                    self._moving.discard(name)
                    if (job := self._folder / Path(str(record.get("out"))).name) in later_jobs(self._folder):
                        # A later job of the same servers has a run folder of its own.
                        write_file(job / EXPERIMENT, self._experiment.to_toml())
                    # Observers need the folder to find the run's certificates.
                    record = {**record, "run": str(self._folder)}
                self._display.event(name, record)
            case Reserved():
                self._reserved = event
            case Exited(name, code, lost, unplaced):
                if unplaced:
                    # It has not lived, however long it waited.
                    self._started[name] = present()
                # A process that was restarted before may find a place at its next restart.
                if unplaced and name not in self._rules.restarted:
                    self._unplaced = self._unplaced or unplaced
                if self._unplaced or not self._restart_after(name, code, lost=lost):
                    self._record_exit(name, code)
            case StatusAnswer(status):
                members = sum(worker.state not in ("left", "lost") for worker in status.workers)
                self._too_few = self._too_few + 1 if self._exits.too_few(status.phase, members) else 0
                self._recall_workers(status.phase, status.job)
                self._display.status(status, present())
            case StatusFailure(reason):
                self._display.no_status(reason)
            case Signalled(number):
                # Schedulers may send SIGTERM several times; only a second Ctrl-C means more than the first.
                if not self._signals or number == signal.SIGINT:
                    self._signals.append(number)

    def _record_exit(self, name: str, code: int) -> None:
        self._warn(name, self._exits.exited(name, code))
        if code == ExitCode.OK and name in self._servers and self._copies:
            self._tell_at = present() + TELLING
        elif code == ExitCode.OK and name == self._servers[0]:
            self._tell_uninformed()

    def _tell_uninformed(self) -> None:
        """Tell servers that may not know it that the job is over."""
        self._tell_at = float("inf")
        self._send(signal.SIGTERM, [self._processes[name] for name in self._rules.uninformed_servers()])

    def _warn(self, name: str, warning: str | None) -> None:
        verdict = self._exits.verdict
        consequence = self._signals or self._unplaced or (verdict is not None and verdict.code != ExitCode.OK)
        if warning is None or consequence or self._stopping:
            return
        tail = self.tail(name)
        if self._shown:
            warning, tail = f"{warning}; its output is in {LOGS}/{name}.log", ""
        elif tail:
            self._shown = name
        # The number of remaining workers is true at this moment only, so the final report does not repeat it.
        self._warnings.append(warning)
        self._display.warning(f"{warning}; {self._exits.remaining()}", tail)

    # Restarting

    def _restart_after(self, name: str, code: int, *, lost: bool) -> bool:
        """Restart a process that ended of a transient cause after the start was complete; return whether it does.

        With replicas a server whose node was `lost` starts on another one: the others learn its address, and a process
        that may still live there keeps it from promising anything (`psserver.service.replicas.disk`).
        """
        if self._poller is None or self._stopping or self._signals:
            return False
        now = present()
        names = self._rules.after_exit(name, code, now - self._started[name], lost=lost)
        if not names:
            return False
        where = ""
        if lost and name in self._servers and self._copies:
            self._moving.add(name)
            where = f" {self._launcher.place_again(name)}"
        pause = self._restarts.pause(name)
        later = f" in {pause:g} s" if pause else ""
        warning = f"{name} {end_text(code)}; started again{where}{later} ({self._restarts.count(name)})"
        self._say(warning, self.tail(name))
        for each in names:
            if pause:
                self._due[each] = now + pause, code
            else:
                self._restart(each)
        return True

    def _restart(self, name: str) -> None:
        if name in self._servers:
            # A copy comes from another server; without checkpoints there is nothing else.
            self._start_server(name, AUTO if self._first_from or not self._copies else None)
            if name in self._moving:
                self._warn_of_one_node()
        else:
            self._start_worker(name)

    def _recall_workers(self, phase: str, job: str) -> None:
        if self._stopping or self._signals:
            return
        for name in self._rules.after_status(phase, job):
            self._display.warning(f"{name} is needed again: the job went back to before its end", "")
            self._start_worker(name)

    def _cancel_restarts(self) -> None:
        for name, (_, code) in self._due.items():
            self._exits.exited(name, code)
        self._due.clear()

    # Stopping

    def _running(self, names: Sequence[str] = ()) -> list[Process]:
        """Return the running processes among `names`, or all running ones."""
        among = names or self._processes
        return [
            process
            for name, process in self._processes.items()
            if name in among and not self._exits.ended(name)
        ]

    def _take_until(self, deadline: float, running: Callable[[], Sequence[object]]) -> None:
        """Take events until nothing runs, `deadline`, or another signal."""
        received = len(self._signals)
        while running() and present() < deadline and len(self._signals) == received:
            self._take_one(min(deadline, present() + 1.0))

    def _stop(self) -> None:
        """Send SIGTERM to all processes, and SIGKILL to those that do not end in time or at a second Ctrl-C.

        Servers that save their last version get more time.
        """
        self._stopping, received, patience = True, len(self._signals), self._daemons.patience
        self._cancel_restarts()
        self._send(signal.SIGTERM, self._running())
        self._take_until(present() + patience, self._running)
        if self._saves and len(self._signals) == received:
            self._send(signal.SIGKILL, self._running(self._workers))
            saving = present() + self._daemons.saving
            self._take_until(saving, lambda: self._running(self._servers))
        self._send(signal.SIGKILL, self._running())
        self._take_until(present() + patience, self._running)

    def _send(self, number: signal.Signals, processes: Sequence[Process]) -> None:
        for process in processes:
            process.send(number)
