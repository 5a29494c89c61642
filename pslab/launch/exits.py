"""The verdict on a run from the exits of its processes. Pure: no processes, no clocks.

- Server 0 exits with 0 and the others end: the job succeeded.
- A server fails: the job failed. Once every worker has succeeded, only the exit of server 0 counts.
- A worker fails: a warning; the others go on. Every worker fails: the job failed.
- A script fails: the others go on, and the run ends with the script's exit code, whatever became of the job. A script
  may run on after the end of the job, and the run waits for it.
- With replicas, the job succeeded when a server exits with 0. The loss of a server is a warning while a majority and
  one copy of each part are left; of one of two servers too, for a person may promote the other one.
- A process that is restarted (`pslab.launch.restarts`) counts as running.
- A worker fails before it has joined and all others have joined: the job cannot start and fails.
"""

import signal
from dataclasses import dataclass

from pswire.exits import ExitCode

# Servers that have a copy of a part, of a job with replicas: 0 and 1, 2 and 3, and so on; an odd last one has none.
COPIES = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a run: exit code, one sentence, and the process that caused it, if any."""

    code: int
    reason: str
    culprit: str | None = None


@dataclass(frozen=True)
class RunResult:
    """A verdict with `warnings`: sentences about processes that failed during the run."""

    verdict: Verdict
    warnings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return self.verdict.code == ExitCode.OK


class ExitTracker:
    """Exits so far, recorded in order. `verdict` is None while the run goes on."""

    def __init__(
        self, servers: list[str], workers: list[str], *, scripts: bool = False, replicas: bool = False
    ) -> None:
        """Take the names of all processes, server 0 first. `scripts`: the workers are scripts of the user.
        `replicas`: any server can end the job; each two have a part."""
        self._servers, self._workers, self._scripts = servers, workers, scripts
        self._replicas = replicas
        self._borne = max(1, (len(servers) - 1) // 2) if replicas else 0
        self._exits: dict[str, int] = {}

    def exited(self, name: str, code: int) -> str | None:
        """Record an exit. Returns a warning if the run can go on without the process."""
        self._exits[name] = code
        borne = name in self._workers or self._servers_left
        return f"{name} {end_text(code)}" if borne and code != 0 else None

    def remaining(self) -> str:
        """Say how many workers still run, to complete a warning."""
        left = sum(worker not in self._exits for worker in self._workers)
        return f"{left} of {len(self._workers)} workers still run" if left else "no worker is left"

    def ended(self, name: str) -> bool:
        """Whether the process has ended."""
        return name in self._exits

    def ended_well(self, name: str) -> bool:
        """Whether the process has ended with exit code 0."""
        return self._exits.get(name) == 0

    @property
    def workers_over(self) -> bool:
        """Whether every worker has ended."""
        return all(name in self._exits for name in self._workers)

    @property
    def failed_workers(self) -> list[str]:
        return [name for name in self._workers if self._exits.get(name, 0) != 0]

    def too_few(self, phase: str, members: int) -> bool:
        """Whether the job waits for workers although all that still run have joined.

        `members`: number of present workers in the status.
        """
        running = sum(name not in self._exits for name in self._workers)
        return phase == "waiting for workers" and bool(self.failed_workers) and members >= running

    def cannot_start(self) -> Verdict:
        """Return the verdict on a job that will never have enough workers."""
        waits = f"the job cannot start, because it waits for {len(self._workers)} workers"
        return self._blame(self.failed_workers[0], waits)

    def restarted(self, name: str) -> None:
        """Forget the exit of a process that runs again."""
        self._exits.pop(name, None)

    def finished_workers(self) -> list[str]:
        """Return the workers that exited with 0 because the coordinator told them that the job succeeded."""
        return [name for name in self._workers if self._exits.get(name) == 0]

    @property
    def concluded(self) -> bool:
        """With replicas, whether a server has ended with exit code 0: the job has succeeded, whatever others say."""
        return self._replicas and any(self.ended_well(name) for name in self._servers)

    @property
    def verdict(self) -> Verdict | None:
        first = self._exits.get(self._servers[0])
        if self.concluded:
            return Verdict(ExitCode.OK, "the job succeeded") if all(map(self.ended, self._servers)) else None
        if first == 0 or (first is None and self._only_first_counts):
            # Server 0 has the weights or reports that it has not; the loss of another server changes nothing.
            awaited = [*self._servers, *(self._workers if self._scripts else [])]
            if not all(name in self._exits for name in awaited):
                return None
            if self._scripts and self.failed_workers:
                failed = self.failed_workers
                more = f", and {len(failed) - 1} more failed" if failed[1:] else ""
                return self._blame(failed[0], "the job succeeded, and a script did not", more)
            return Verdict(ExitCode.OK, "the job succeeded")
        failed = self._failed_servers
        if not self._servers_left:
            culprit = self._cause(failed)
            return self._blame(culprit, "the job failed")
        if self.workers_over and len(self.failed_workers) == len(self._workers):
            culprit = next(name for name in self._exits if name in self._workers)
            return self._blame(culprit, "every worker failed", self._same_failure(culprit))
        return None

    @property
    def _servers_left(self) -> bool:
        """Whether the job can go on without the servers that have failed."""
        failed = self._failed_servers
        names = self._servers
        pairs = [names[at : at + COPIES] for at in range(0, len(names) - 1, COPIES)] if self._replicas else []
        copies_left = all(any(name not in failed for name in pair) for pair in pairs)
        return len(failed) <= self._borne and copies_left

    @property
    def _failed_servers(self) -> list[str]:
        return [name for name in self._servers if self._exits.get(name, 0) != 0]

    @property
    def _only_first_counts(self) -> bool:
        """Whether all workers were told that the job succeeded, so that only server 0 is awaited."""
        return self.workers_over and not self.failed_workers and not self._replicas

    def _cause(self, failed: list[str]) -> str:
        """Return the server that failed first by itself; losing another server is a consequence, not a cause."""
        causes = [name for name in failed if self._exits[name] != ExitCode.UNREACHABLE]
        return causes[0] if causes else failed[0]

    def _same_failure(self, name: str) -> str:
        """Say how many other workers ended with the same code."""
        others = sum(self._exits[worker] == self._exits[name] for worker in self._workers) - 1
        return f", and {others} more {'worker' if others == 1 else 'workers'} alike" if others else ""

    def _blame(self, name: str, what: str, more: str = "") -> Verdict:
        code = self._exits[name]
        gone = ExitCode.UNREACHABLE if name in self._servers else ExitCode.ABANDONED
        return Verdict(exit_code(code, gone), f"{what}: {name} {end_text(code)}{more}", name)


def exit_code(returncode: int, gone: ExitCode) -> int:
    """Translate a `Popen.returncode` into an exit code; `gone` stands for a killed process."""
    if returncode in (-signal.SIGINT, -signal.SIGTERM):
        return 128 - returncode
    return gone if returncode < 0 else returncode


def end_text(returncode: int) -> str:
    """Return a phrase such as ``exited with code 6 (the job module ...)`` or ``was killed by SIGKILL``."""
    if returncode < 0:
        return f"was killed by {signal.Signals(-returncode).name}"
    meanings = {int(code): f" ({code.meaning})" for code in ExitCode}
    return f"exited with code {returncode}{meanings.get(returncode, '')}"
