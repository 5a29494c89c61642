"""From the ends of processes to the end of a run: pure, without processes or clocks.

- Server 0 exits 0, and the others end: the job is done.
- A server fails: the job fails. Once every worker has ended well, server 0 alone says so.
- A worker fails: a warning, the others go on. Every worker fails: the job fails.
- A script fails: the others go on, too, and the run ends with its exit code, whatever the job came to. It may go on for
  long when the job is over, and is waited for.
- What is started again (`pslab.launch.restarts`) counts as running.
- A worker fails before it has joined, and the others have: the start waits for nobody who can come, and the job fails.
"""

import signal
from dataclasses import dataclass

from pswire.exits import ExitCode

_DAEMONS = ("ps-worker: ", "ps-server: ")


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run ended: its exit code, one sentence, and the process that is to blame, if any."""

    code: int
    reason: str
    culprit: str | None = None


@dataclass(frozen=True)
class RunResult:
    """How a run ended; `warnings` are sentences about processes that failed on the way."""

    verdict: Verdict
    warnings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return self.verdict.code == ExitCode.OK


class ExitTracker:
    """Receives exits in order; `verdict` is None as long as the run goes on."""

    def __init__(self, servers: list[str], workers: list[str], *, scripts: bool = False) -> None:
        """Names of all processes; the first server hosts the coordinator. `scripts`: workers are a user's scripts."""
        self._servers, self._workers, self._scripts = servers, workers, scripts
        self._exits: dict[str, int] = {}

    def exited(self, name: str, code: int) -> str | None:
        """Record an end. Returns a warning when the run goes on without the process."""
        self._exits[name] = code
        return f"{name} {end_text(code)}" if name in self._workers and code != 0 else None

    def going(self) -> str:
        """How many workers there are at this moment, behind a warning."""
        left = sum(worker not in self._exits for worker in self._workers)
        return f"{left} of {len(self._workers)} workers still run" if left else "no worker is left"

    def ended(self, name: str) -> bool:
        """It does not run any more."""
        return name in self._exits

    def ended_well(self, name: str) -> bool:
        """It ended with exit code 0."""
        return self._exits.get(name) == 0

    @property
    def workers_over(self) -> bool:
        """No worker runs any more."""
        return all(name in self._exits for name in self._workers)

    @property
    def failed_workers(self) -> list[str]:
        return [name for name in self._workers if self._exits.get(name, 0) != 0]

    def too_few(self, phase: str, members: int) -> bool:
        """The job waits for its workers to join, and all processes that still run have (`members` in the status)."""
        running = sum(name not in self._exits for name in self._workers)
        return phase == "waiting for workers" and bool(self.failed_workers) and members >= running

    def cannot_start(self) -> Verdict:
        """Of a job that has too few workers for good."""
        all_ = f"{len(self._workers)} workers"
        return self._blame(self.failed_workers[0], f"the job cannot start, for it waits for {all_}")

    def started_again(self, name: str) -> None:
        """It had ended, and runs once more."""
        self._exits.pop(name, None)

    def finished_workers(self) -> list[str]:
        """Those that ended well: they have heard that the job has succeeded."""
        return [name for name in self._workers if self._exits.get(name) == 0]

    @property
    def verdict(self) -> Verdict | None:
        said = self._exits.get(self._servers[0])
        if said == 0 or (said is None and self._leaves_it_to_the_first):
            # Server 0 has the weights, or says that it has not. A server that was lost since takes nothing away.
            awaited = [*self._servers, *(self._workers if self._scripts else [])]
            if not all(name in self._exits for name in awaited):
                return None
            if self._scripts and self.failed_workers:
                failed = self.failed_workers
                more = f", and {len(failed) - 1} more failed" if failed[1:] else ""
                return self._blame(failed[0], "the job succeeded, and a script did not", more)
            return Verdict(ExitCode.OK, "the job succeeded")
        failed = [name for name in self._servers if self._exits.get(name, 0) != 0]
        if failed:
            culprit = self._cause(failed)
            return self._blame(culprit, "the job failed")
        if self.workers_over and len(self.failed_workers) == len(self._workers):
            first = next(name for name in self._exits if name in self._workers)
            return self._blame(first, "every worker failed", self._alike(first))
        return None

    @property
    def _leaves_it_to_the_first(self) -> bool:
        """The job has succeeded, as its workers were told, and is about to end."""
        return self.workers_over and not self.failed_workers

    def _cause(self, failed: list[str]) -> str:
        """The server that failed by itself: losing another one is a consequence, not a cause."""
        causes = [name for name in failed if self._exits[name] != ExitCode.UNREACHABLE]
        return causes[0] if causes else failed[0]

    def _alike(self, name: str) -> str:
        """How many other workers ended with the same code."""
        others = sum(self._exits[worker] == self._exits[name] for worker in self._workers) - 1
        return f", and {others} more {'worker' if others == 1 else 'workers'} alike" if others else ""

    def _blame(self, name: str, what: str, more: str = "") -> Verdict:
        code = self._exits[name]
        gone = ExitCode.UNREACHABLE if name in self._servers else ExitCode.ABANDONED
        return Verdict(exit_code(code, gone), f"{what}: {name} {end_text(code)}{more}", name)


class DuplicateOutput:
    """Which processes printed the same at their ends: workers that fail for one reason are reported once."""

    def __init__(self) -> None:
        # The end of a log -> the process that printed it first.
        self._first: dict[str, str] = {}

    def first_with(self, name: str, tail: str) -> str | None:
        """The process that printed the same before `name`; None when there is none. `tail`: the end of its log."""
        first = self._first.setdefault(_farewell(tail), name) if tail.strip() else name
        return None if first == name else first

    def is_first(self, name: str) -> bool:
        """No process had printed the same when `name` ended."""
        return name in self._first.values()


def _farewell(tail: str) -> str:
    """From the line with which a daemon ends: what it logged before has times and names in it."""
    lines = tail.splitlines()
    ends = [number for number, line in enumerate(lines) if line.startswith(_DAEMONS)]
    return "\n".join(lines[ends[-1] if ends else 0 :])


def exit_code(returncode: int, gone: ExitCode) -> int:
    """The exit code that stands for a `Popen.returncode`; `gone` for one that was killed."""
    if returncode in (-signal.SIGINT, -signal.SIGTERM):
        return 128 - returncode
    return gone if returncode < 0 else returncode


def end_text(returncode: int) -> str:
    """``exited with code 6 (the job module ...)`` or ``was killed by SIGKILL``."""
    if returncode < 0:
        return f"was killed by {signal.Signals(-returncode).name}"
    meanings = {int(code): f" ({code.meaning})" for code in ExitCode}
    return f"exited with code {returncode}{meanings.get(returncode, '')}"
