"""Which processes of a run are started again: pure, without processes or clocks.

- What dies of something passing, a few times each; a server only where its state is saved, and while it is of use.
- With server 0 those servers that have ended for want of it.
- A worker that has ended well, where the job went back to a checkpoint from before that end.
"""

import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pslab.launch.exits import ExitTracker
from pswire.exits import ExitCode
from pswire.generations import follows

# Answers of the status that agree: one may be older than a worker's arrival.
AGREEING = 8
# In the status.
BEFORE_THE_END = ("waiting for workers", "initialising", "training")


# More often than anything dies.
NO_LIMIT = 10**6
# Seconds: a process that has lived so long had begun well.
SETTLED = 10.0
# Seconds before a process is started again that did not begin well at the second try, and at any later one.
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0


@dataclass(slots=True)
class Restarts:
    """How often each process may be started again; `NO_LIMIT` for as often as it dies, without pauses.

    A process that ends soon again is started later each time, so that a machine that is off for a minute has time to
    come back.
    """

    most: int
    _used: Counter[str] = field(default_factory=Counter)
    # Starts in a row that did not go well.
    _failed: Counter[str] = field(default_factory=Counter)

    def take(self, name: str, code: int, lived: float = 0.0) -> bool:
        """The process has ended with that `Popen.returncode`, `lived` seconds after its start: whether it is started
        again."""
        if self._used[name] >= self.most or not _may_pass(code):
            return False
        self._used[name] += 1
        self._failed[name] = 1 if lived >= SETTLED else self._failed[name] + 1
        return True

    def pause(self, name: str) -> float:
        """Seconds to wait before it is started again."""
        failed = self._failed[name]
        if failed <= 1 or self.most >= NO_LIMIT:
            return 0.0
        return min(FIRST_PAUSE * 2.0 ** (failed - 2), LONGEST_PAUSE)

    def count(self, name: str) -> str:
        """'1 of at most 3 times'; without a limit 'restart 1'."""
        used = self._used[name]
        return f"{used} of at most {self.most} times" if self.most < NO_LIMIT else f"restart {used}"


def _may_pass(code: int) -> bool:
    if code < 0:
        return code not in (-signal.SIGINT, -signal.SIGTERM)
    return code in set(ExitCode) and ExitCode(code).restart


class RestartRules:
    """Asked once all processes were there, and until the run is ended. What it names is to be started.

    `again`: the names of all that it has named.
    """

    def __init__(
        self, servers: Sequence[str], exits: ExitTracker, restarts: Restarts, *, saves: bool
    ) -> None:
        """The first server hosts the coordinator; `saves`: the job takes checkpoints."""
        self._servers, self._exits, self._restarts, self._saves = servers, exits, restarts, saves
        self.again: set[str] = set()
        # Answers in a row by which the job goes on, although a worker has ended well.
        self._early = 0
        # The job's name, by the newest answer; and when each process ended.
        self._job = ""
        self._ended_in: dict[str, str] = {}

    def after_exit(self, name: str, code: int, lived: float = 0.0) -> list[str]:
        """The process has ended, which `exits` has not been told, `lived` seconds after its start: it and who comes
        back with it, or nobody."""
        first = self._servers[0]
        self._ended_in[name] = self._job
        if self._exits.verdict is not None:
            return []
        if name in self._servers:
            # Another server than the first is of no use once the workers have ended: the first says what became of
            # the job.
            late = self._exits.workers_over and name != first
            if not self._saves or late or self._exits.ended(first):
                return []
        if not self._restarts.take(name, code, lived):
            return []
        self.again.add(name)
        lost = [other for other in self._servers[1:] if self._exits.ended(other)] if name == first else []
        return [name, *self._back(lost)]

    def after_status(self, phase: str, job: str) -> list[str]:
        """Workers that have ended well, and are needed again: the job went back to before their end, and so has a later
        generation's name. In a further phase of a job nobody is needed who has ended."""
        self._job = job
        ended = self._exits.finished_workers() if phase in BEFORE_THE_END else []
        ended = [name for name in ended if follows(job, self._ended_in.get(name, ""))]
        self._early = self._early + 1 if ended else 0
        if self._early < AGREEING:
            return []
        self._early = 0
        return self._back(ended)

    def uninformed_servers(self) -> list[str]:
        """Those that were started again while the job ended: they have met nobody who tells them that."""
        return [name for name in self._servers[1:] if name in self.again and not self._exits.ended(name)]

    def _back(self, ended: list[str]) -> list[str]:
        for name in ended:
            self._exits.started_again(name)
        self.again.update(ended)
        return ended
