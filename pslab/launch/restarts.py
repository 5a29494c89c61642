"""Rules for restarting the processes of a run. Pure: no processes, no clocks.

- A process that died of a transient cause is restarted a few times; a server only if its state is saved and it is
  still needed.
- With server 0, the servers that ended because they lost it are restarted.
- With replicas a server is restarted while another one goes on: it is given a copy. So is one that was replaced while
  it stood still, or whose node was lost, but none that has waited in vain for another one with a copy.
- A worker that succeeded is restarted if the job went back to a checkpoint from before its end.
"""

import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pslab.launch.exits import ExitTracker
from pswire.exits import ExitCode
from pswire.generations import follows

# Default restarts of each process: on this machine where the job takes checkpoints or has replicas, and on nodes, which
# may be off for a minute.
RESTARTS, RESTARTS_ON_NODES = 3, 6
# Consecutive status answers that must agree, because a single one may be older than a worker's join.
AGREEING = 8
# Phases in the status.
BEFORE_THE_END = ("waiting for workers", "initialising", "training")

# Seconds after which a start counts as successful.
SETTLED = 10.0
# Backoff in seconds: before the third start in a row that fails early, doubling up to the limit.
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0


@dataclass(slots=True)
class Restarts:
    """Restart counts with backoff. `limit`: per process.

    The backoff gives a machine that is off for a minute time to come back.
    """

    limit: int
    _used: Counter[str] = field(default_factory=Counter)
    # Consecutive starts that failed early.
    _failed: Counter[str] = field(default_factory=Counter)

    def take(self, name: str, code: int, lived: float = 0.0, *, replaced: bool = False) -> bool:
        """Use up a restart and return True, or return False if the process may not be restarted.

        `code`: its `Popen.returncode`; `lived`: seconds from its start to its end. `replaced`: it ended because another
        process has its role, and is needed in another one.
        """
        if self._used[name] >= self.limit or not (replaced or _transient(code)):
            return False
        self._used[name] += 1
        self._failed[name] = 1 if lived >= SETTLED else self._failed[name] + 1
        return True

    def pause(self, name: str) -> float:
        """Return the backoff in seconds before the restart."""
        failed = self._failed[name]
        if failed <= 1:
            return 0.0
        return min(FIRST_PAUSE * 2.0 ** (failed - 2), LONGEST_PAUSE)

    def count(self, name: str) -> str:
        """Return '1 of at most 3 times'."""
        return f"{self._used[name]} of at most {self.limit} times"


def _transient(code: int) -> bool:
    if code < 0:
        return code not in (-signal.SIGINT, -signal.SIGTERM)
    return code in set(ExitCode) and ExitCode(code).restart


class RestartRules:
    """Decides which processes to restart, from the moment when all have started until the run ends.

    `restarted`: names of all processes that it has restarted so far.
    """

    def __init__(
        self,
        servers: Sequence[str],
        exits: ExitTracker,
        restarts: Restarts,
        *,
        saves: bool,
        copies: bool = False,
    ) -> None:
        """Take the names of the servers, server 0 first. `saves`: the job takes checkpoints; `copies`: it has
        replicas."""
        self._servers, self._exits, self._restarts = servers, exits, restarts
        self._saves, self._copies = saves, copies
        self.restarted: set[str] = set()
        # Consecutive answers by which the job goes on although a worker has succeeded.
        self._early = 0
        # The job's name in the newest status, and its name when each process ended.
        self._job = ""
        self._ended_in: dict[str, str] = {}

    def after_exit(self, name: str, code: int, lived: float = 0.0, *, lost: bool = False) -> list[str]:
        """Return the processes to start after an exit: that one and others it brings back, or none.

        `exits` must not have recorded this exit yet. `lived`: seconds from the start of the process to its end; `lost`:
        its node was lost.
        """
        first = self._servers[0]
        self._ended_in[name] = self._job
        if self._exits.verdict is not None:
            return []
        if name in self._servers and not self._server_needed(name, code, lost=lost):
            return []
        replaced = self._copies and name in self._servers and code == ExitCode.REFUSED
        if not self._restarts.take(name, code, lived, replaced=replaced):
            return []
        self.restarted.add(name)
        with_first = name == first and not self._copies
        orphans = [other for other in self._servers[1:] if self._exits.ended(other)] if with_first else []
        return [name, *self._recall(orphans)]

    def _server_needed(self, name: str, code: int, *, lost: bool) -> bool:
        first = self._servers[0]
        if self._copies:
            return not self._exits.concluded and (lost or code != ExitCode.UNREACHABLE)
        # Once the workers have ended, only server 0 is needed: it reports what became of the job.
        late = self._exits.workers_over and name != first
        return self._saves and not late and not self._exits.ended(first)

    def after_status(self, phase: str, job: str) -> list[str]:
        """Return workers that have succeeded but are needed again, because the job went back to before their end.

        Such a job has the name of a later generation. In later phases no ended worker is needed.
        """
        self._job = job
        ended = self._exits.finished_workers() if phase in BEFORE_THE_END else []
        ended = [name for name in ended if follows(job, self._ended_in.get(name, ""))]
        self._early = self._early + 1 if ended else 0
        if self._early < AGREEING:
            return []
        self._early = 0
        return self._recall(ended)

    def uninformed_servers(self) -> list[str]:
        """Return the servers that restarted while the job ended: no coordinator will tell them that it is over.

        With replicas also those that stood still then.
        """
        asked = self._servers if self._copies else [n for n in self._servers[1:] if n in self.restarted]
        return [name for name in asked if not self._exits.ended(name)]

    def _recall(self, ended: list[str]) -> list[str]:
        for name in ended:
            self._exits.restarted(name)
        self.restarted.update(ended)
        return ended
