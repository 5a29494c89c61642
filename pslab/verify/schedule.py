"""Random acts of a job's workers and servers: commits, broken connections, deaths, returns, repetitions, changes.

A seed gives one schedule. Each act is drawn from the job as it is, and played at once; so the acts alone give the same
job again.
"""

import math
import random
from collections.abc import Mapping, Sequence

from pslab.verify.guarded import TIMEOUT, Case, GuardedHarness, named
from pslab.verify.invariants import InvariantViolation, expect
from psserver.coordinator.tickets import Ticket

# A policy's name and knobs.
Named = tuple[str, Mapping[str, object]]
# One act in 24 is a change of the policy, where there are others.
CHANGE = 24
# Loss and norm of one commit in four; a worker may have neither.
UNUSUAL: Sequence[tuple[float, float]] = (
    (math.nan, 1.0),
    (0.5, math.nan),
    (math.nan, math.nan),
    (0.0, 0.0),
    (5e-324, 5e-324),
    (1e-9, 1e-9),
    (1e300, 1e300),
    (3e38, 1e-3),
    (1e-3, 3e38),
    (-3.0, 7.5),
    (2.0, 0.125),
    (0.25, 40.0),
    (0.7, 2.0),
    (123.0, 0.3),
    (1.0, 1e12),
    (1e12, 1.0),
)


class Schedule:
    """One job from its first worker to its stop. `acts`: what happened, as lines of a golden trace.

    `left`: batches that each worker still has. `dead`: workers without a process; those of `lost` never come back.
    """

    def __init__(
        self,
        case: Case,
        seed: int,
        *,
        job: GuardedHarness | None = None,
        batches: int = 5,
        ahead: bool = False,
        others: Sequence[Named] = (),
    ) -> None:
        """`job`: a new harness of the case. `batches`: each worker has fewer. `ahead`: workers ask ahead. `others`:
        policies to which an operator may change it."""
        self._random = random.Random(seed)
        self.job, self._ahead, self._others = job or GuardedHarness(case), ahead, others
        self.acts: list[str] = []
        self.left = {f"w{rank}": self.pick(batches) for rank in range(case.workers)}
        if not any(self.left.values()):
            self.left["w0"] = 1
        self.dead, self.lost = set(self.left), set[str]()
        self._sessions = dict.fromkeys(self.left, -1)

    def pick(self, n: int) -> int:
        """Return one of 0 .. n - 1, the same for the same seed on every machine."""
        # Fast enough, and even enough for n far below 2 ** 16.
        return self._random.getrandbits(16) * n >> 16

    def run(self, acts: int) -> None:
        """Draw so many acts, then no more faults: the job must come to its end. Raises InvariantViolation."""
        workers = list(self.left)
        for _ in range(acts):
            if self.stopped:
                break
            if self._others and not self.pick(CHANGE):
                self.play(f"policy becomes {named(*self._others[self.pick(len(self._others))])}")
            else:
                self._scene(workers[self.pick(len(workers))], self.pick(64))
        self.finish()

    @property
    def stopped(self) -> bool:
        return self.job.coordinator.state.stopped is not None

    def play(self, line: str) -> bool:
        """Play an act; return False if it is impossible now, or empty. Raises InvariantViolation."""
        if not line:
            return False
        who, verb = line.split()[:2]
        opened = self._opened(who)
        self.acts.append(line)
        if not self.job.plays(line):
            self.acts.pop()
            return False
        if verb.startswith("commits") and opened and not opened[0].initialise and opened != self._opened(who):
            self.left[who] -= 1
        elif verb == "joins":
            self.dead.discard(who)
        elif verb == "leaves":
            self.dead.add(who)
        return True

    def _opened(self, who: str) -> tuple[Ticket, ...]:
        return tuple(self.job.coordinator.state.tickets.open_of(who))

    # What a worker does next, as an act; empty if it waits, or has ended.

    def move(self, who: str) -> str:
        """Return what comes next for a worker that nothing disturbs."""
        member = self.job.coordinator.state.roster.present.get(who)
        if who in self.lost:
            return ""
        if member is None or who in self.dead:
            self._sessions[who] += 1
            return f"{who} joins {name_of(self._sessions[who])}"
        if member.absent_since is not None:
            return f"{who} reconnects"
        opened = self._opened(who)
        if opened:
            asked = member.requested is not None or len(opened) > 1
            more = self.left[who] > (0 if opened[0].initialise else 1)
            return f"{who} commits" if more and not asked else f"{who} commits-its-last"
        if member.requested is not None or member.state == "done":
            return ""
        return f"{who} ready" if self.left[who] else f"{who} done"

    def _drawn(self, who: str) -> str:
        """Return what comes next, now and then something else that an honest worker may do."""
        line, opened = self.move(who), self._opened(who)
        if not line.startswith(f"{who} commits"):
            return line
        if self._ahead and len(opened) == 1 and line == f"{who} commits" and self.pick(2):
            return line if opened[0].initialise else f"{who} asks-ahead"
        if self.pick(16) == 15:
            return f"{who} abandons"
        line = f"{who} commits-its-last" if self.pick(4) == 3 else line
        chance = self.pick(64)
        loss, norm = UNUSUAL[chance] if chance < len(UNUSUAL) else (0.5, 1.0)
        # A mean over samples is summed from the first payload on that has some; until then one without any would take
        # the only room of the shard.
        fewest = 1 if getattr(self.job.coordinator.policy, "by_samples", False) else 0
        samples = (8, 8, 1, fewest)[chance % 4]
        told = (
            f"loss={loss!r}" if loss != 0.5 else "",
            f"norm={norm!r}" if norm != 1 else "",
            f"samples={samples}" if samples != 8 else "",
        )
        return " ".join([line, *filter(None, told)])

    def _scene(self, who: str, chance: int) -> None:
        if chance < 50:
            self.play(self._drawn(who))
        elif chance < 54:
            self.play(self._repeated(who))
        elif chance < 56:
            self.cut(who)
        elif chance == 56:
            self._kill(who)
        elif chance == 57 and who not in self.dead:
            self.play(f"{who} leaves")
        elif chance < 61:
            self.wait(0.2 * self.pick(4))
        elif chance == 61:
            self.wait(TIMEOUT)
        elif chance == 62 and who not in self.dead:
            self.play(f"{who} joins {name_of(self._sessions[who])}")
        elif chance == 63:
            self.servers_change(self.pick(4))

    def _repeated(self, who: str) -> str:
        """Return a commit of a ticket that is settled, as one that crosses its cancel, or whose answer was lost."""
        settled = self.job.coordinator.state.tickets.recent_of(who)
        known = settled and who not in self.dead
        return f"{who} commits-its-last {settled[self.pick(len(settled))].number}" if known else ""

    def cut(self, who: str) -> None:
        """Break the connection; the process does not notice at once."""
        if who not in self.dead:
            self.play(f"{who} disconnects")

    def _kill(self, who: str) -> None:
        """Kill the process. Its connection may take a while to break. At least one worker always survives."""
        if who in self.dead:
            return
        lost = self.pick(3) == 2 and len(self.left) - len(self.lost) > 1
        if lost or self.pick(2):
            self.cut(who)
        self.dead.add(who)
        self.lost |= {who} if lost else set()

    def servers_change(self, servers: int) -> None:
        """Restart the job from a checkpoint of this moment as so many servers; 0: a copy takes over."""
        if servers:
            if self.play(f"servers restart {servers}"):
                self.dead = set(self.left)
        elif self.play("copy takes over"):
            for who in list(self.job.coordinator.state.roster.present):
                self.play(f"{who} disconnects")

    def wait(self, seconds: float) -> None:
        """Let time pass; where a timer is set, perhaps just until it is due."""
        due = self.job.coordinator.due
        if due is not None and self.pick(2):
            seconds = max(0.0, due - self.job.now)
        self.play(f"{seconds!r} seconds pass")

    # The end

    def finish(self) -> None:
        """Play on without faults: all workers but the lost ones come back, and the job must end in success."""
        for _ in range(400):
            if self.stopped:
                break
            for who in self.left:
                self.settle(who)
            self.wait(0.4)
        self._ended()

    def settle(self, who: str) -> None:
        """Have a worker do everything that it can do now."""
        while not self.stopped and self.play(self.move(who)):
            pass

    def _ended(self) -> None:
        job, stopped = self.job, self.job.coordinator.state.stopped
        if stopped is None:
            raise InvariantViolation("the job does not end, though all workers are here and do what they can")
        if not (stopped.cause == "policy" and stopped.success):
            # Without initial values, all workers that had data were lost before they could bring any.
            wanted = (True, "done") if job.coordinator.state.initialised else (False, "empty")
            expect((stopped.success, stopped.cause) == wanted, stopped.reason)
        job.guard.finish()


def name_of(session: int) -> str:
    """Return A, B, C, ...: the names of one worker's processes in traces."""
    return chr(ord("A") + session) if session < 26 else f"A{session}"
