"""Verbs for tests with real processes: start servers and workers, wait for what the cluster says, kill."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pslab.check.checker import check_run
from pslab.launch.status_client import StatusClient, StatusError
from pslab.runs.folder import Run
from pswire.v1 import coordinator_pb2 as pb
from tests import patience
from tests.forking.popen import forking

ROOT = Path(__file__).parents[2]

PATIENCE = patience.PATIENCE
LOOK_EVERY = 0.02


class Process:
    """A started program: the JSON objects and lines that it prints, its log, its end."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: dict[str, str],
        prefix: Sequence[str] = (),
    ) -> None:
        """`prefix`: what starts python COMMAND... somewhere else."""
        self.name = name
        self.log = log
        with log.open("ab", buffering=0) as errors, forking():
            self._popen = subprocess.Popen(
                [*prefix, sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=environment,
                text=True,
            )
        self.lines: list[str] = []
        self._heard = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            with self._heard:
                self.lines.append(line.rstrip("\n"))
                self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def errors(self) -> str:
        """Everything that it has written to standard error."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def events(self, kind: str) -> list[dict[str, Any]]:
        said = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [event for event in said if event.get("event") == kind]

    def wait_line(self, fits: Callable[[str], bool], what: str) -> str:
        """The first line on standard output that fits."""

        def found() -> str | None:
            return next((line for line in self.lines if fits(line)), None)

        with self._heard:
            self._heard.wait_for(lambda: found() is not None or not self._reader.is_alive(), PATIENCE)
            line = found()
        assert line is not None, f"{self.name} did not say {what}; it said {self.lines}\n{self.errors}"
        return line

    def wait_event(self, kind: str) -> dict[str, Any]:
        """The first JSON object with this "event"."""
        start = f'{{"event": "{kind}"'
        return json.loads(self.wait_line(lambda line: line.startswith(start), kind))

    def say(self, line: str) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(line + "\n")
        self._popen.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def kill(self) -> float:
        """SIGKILL; when it was sent (`time.monotonic`)."""
        self.send(signal.SIGKILL)
        at = time.monotonic()
        self._popen.wait(PATIENCE)
        return at

    def wait_exit(self, patience: float = PATIENCE, moving: Callable[[], object] = lambda: None) -> int:
        """Its exit code, once it has ended by itself. `patience` is for its end, or for another `moving()`."""
        seen, code = moving(), None
        while code is None:
            try:
                code = self._popen.wait(patience)
            except subprocess.TimeoutExpired:
                before, seen = seen, moving()
                if seen == before:
                    raise AssertionError(
                        f"{self.name} goes on; it said {self.lines}\n{self.errors}"
                    ) from None
        self._reader.join()
        return code

    def close(self) -> None:
        if self.running:
            self._popen.kill()
        self._popen.wait()
        self._reader.join()
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            pipe.close()


class Cluster:
    """Servers and workers on ports that the system chose. Leaving the `with` block kills what is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "run"
        self.servers: list[Process] = []
        self.workers: list[Process] = []
        self.addresses: list[str] = []
        self._questioner: StatusClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._questioner is not None:
            self._questioner.close()
        for process in (*self.workers, *self.servers):
            if error is not None:
                end = "runs" if process.running else f"ended with {process.wait_exit()}"
                print(f"--- {process.name} {end}\n{process.errors}")
            process.close()

    # Starting

    def launch(self, name: str, *command: str, **environment: str) -> Process:
        """python COMMAND..., in the repository's root; servers keep nothing but in a folder that is named."""
        if "psserver" in command and not {"--out", "--no-out"} & set(command):
            command = (*command, "--no-out")
        inherited = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
        # Many small workers share two cores: no thread pools of BLAS beside them.
        quiet = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        return Process(name, command, self.folder / f"{name}.log", inherited | quiet | environment)

    def start_servers(
        self,
        count: int = 1,
        *flags: str,
        timeout: float = 10.0,
        every: Sequence[str] = (),
        **environment: str,
    ) -> str:
        """All servers; the --ps-hosts of the workers. `flags` go to server 0, those of `every` and `environment` to
        all.

        `timeout` is worker_timeout: so large that a busy machine loses nobody. A killed process is noticed at once.
        """
        self.addresses = ["127.0.0.1:0"] * count
        self.servers = []
        for index in [*range(1, count), 0]:
            extra = ["--out", str(self.out), *flags] if index == 0 else []
            hosts = ("--ps-hosts", ",".join(self.addresses), "--task-index", str(index))
            name = f"server-{index}"
            command = (*hosts, "--json", "--worker-timeout", str(timeout), *every, *extra)
            server = self.launch(name, "-m", "psserver", *command, **environment)
            self.servers.append(server)
            self.addresses[index] = server.wait_event("ready")["address"]
        self.servers = [self.servers[-1], *self.servers[:-1]]
        self._questioner = self.questioner()
        return self.hosts

    def questioner(self) -> StatusClient:
        return StatusClient(self.addresses[0])

    @property
    def hosts(self) -> str:
        return ",".join(self.addresses)

    def start_worker(self, *flags: str) -> Process:
        """A worker without TensorFlow: see `numpy_worker`."""
        return self._worker("-m", "tests.cluster.numpy_worker", "--ps-hosts", self.hosts, *flags)

    def start_ps_worker(self, job: str, *flags: str) -> Process:
        """The real ps-worker."""
        return self._worker("-m", "psworker", "--ps-hosts", self.hosts, "--job", job, "--json", *flags)

    def _worker(self, *command: str, **environment: str) -> Process:
        worker = self.launch(f"worker-{len(self.workers)}", *command, **environment)
        self.workers.append(worker)
        return worker

    # Looking

    def status(self) -> pb.StatusReply:
        assert self._questioner is not None
        return self._questioner.ask()

    def wait_for(
        self, condition: Callable[[pb.StatusReply], bool], what: str, patience: float = PATIENCE
    ) -> pb.StatusReply:
        """Ask for the status until the condition holds."""
        deadline, pause = time.monotonic() + patience, threading.Event()
        status: pb.StatusReply | str = "no status"
        while time.monotonic() < deadline:
            try:
                status = self.status()
                if condition(status):
                    return status
            except StatusError as error:
                status = str(error)
            pause.wait(LOOK_EVERY)
        logs = "\n".join(f"--- {p.name}\n{p.errors}" for p in (*self.servers, *self.workers))
        raise AssertionError(f"not within {patience:g} s: {what}; last status:\n{status}\n{logs}")

    def wait_version(self, version: int) -> pb.StatusReply:
        return self.wait_for(lambda s: s.version >= version, f"version {version}")

    def wait_more(self, versions: int = 3) -> pb.StatusReply:
        """Until the model has gone on by so many versions from now."""
        return self.wait_version(self.status().version + versions)

    def wait_state(self, worker: str, *states: str) -> pb.WorkerStatus:
        def there(status: pb.StatusReply) -> bool:
            return any(w.name == worker and w.state in states for w in status.workers)

        status = self.wait_for(there, f"{worker} is {' or '.join(states)}")
        return member(status, worker)

    # Ending

    def wait_end(self, server_code: int = 0, worker_codes: Sequence[int] | None = None) -> Run:
        """Everybody still running ends by itself, with these codes; the run, which passes all checks."""
        codes = [worker.wait_exit(moving=self._log_size) for worker in self.workers]
        assert worker_codes is None or codes == list(worker_codes), [w.errors for w in self.workers]
        for server in self.servers:
            assert server.wait_exit() == server_code, f"{server.lines}\n{server.errors}"
        return self.checked_run()

    def _log_size(self) -> int:
        """A whole run takes as long as it takes on this machine: it goes on while its log grows."""
        log = self.out / "decisions.jsonl"
        return log.stat().st_size if log.is_file() else 0

    def checked_run(self) -> Run:
        """The run folder, in which ps-lab check finds nothing."""
        run = Run(self.out)
        verdict = check_run(run)
        assert verdict.ok, [str(violation) for violation in verdict.violations]
        return run


def wait_until(condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    """Look until the condition holds."""
    deadline, pause = time.monotonic() + patience, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience:g} s: {what}"
        pause.wait(LOOK_EVERY)


def member(status: pb.StatusReply, worker: str) -> pb.WorkerStatus:
    return next(w for w in status.workers if w.name == worker)


def entries_of(run: Run, kind: str) -> list[dict[str, Any]]:
    """The log's entries of one kind, as they were written."""
    lines = (run.path / "decisions.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]
