"""Who has a worker's name: a newcomer waits while the process that has it is asked whether it is alive. Pure.

Only an answer to that question proves life: a connection may still carry what a dead process sent. A process that
answers keeps its name, and the newcomer is refused. A process that does not answer loses it.
"""

from collections.abc import Container
from dataclasses import dataclass
from itertools import count
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Joiner:
    """A process that joins. `session`, `process`, `place`: as in its JoinRequest; `since`: when it joined."""

    session: str
    process: str
    place: str
    since: float

    @property
    def named(self) -> str:
        """Joiner and host for a sentence."""
        return self.place or "a process that does not say where it is"

    def same(self, other: "Joiner") -> bool:
        """Whether both are sessions of one process."""
        return bool(self.process) and self.process == other.process


@dataclass(slots=True)
class _Question:
    """Whether the owner, a session, is alive: what newcomers for its name wait for."""

    owner: str
    number: int
    since: float
    # The connection on which the owner was asked.
    asked: object | None = None
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Ruling:
    """Whether a newcomer takes the name, is refused, or waits.

    `seconds`: for which it waits at most. `ask`: the number of the question that the owner is to be sent now, if any.
    """

    outcome: Literal["take", "refuse", "wait"]
    seconds: float = 0.0
    ask: int | None = None


TAKE: Final = Ruling("take")


class NamesInUse:
    """Processes that have names, and newcomers that ask for these. `patience`: seconds that an owner has to answer."""

    def __init__(self, patience: float) -> None:
        self._patience, self._numbers = patience, count(1)
        # By worker.
        self._owners: dict[str, Joiner] = {}
        # By worker.
        self._asking: dict[str, _Question] = {}

    def owner(self, worker: str, session: str) -> Joiner | None:
        """Return the process of a member. None: it joined at another server, which led then, and not here yet."""
        owner = self._owners.get(worker)
        return owner if owner is not None and owner.session == session else None

    def admitted(self, worker: str, process: Joiner) -> None:
        """Note that a process has the name. A session that joins again has had it all the time."""
        if self.owner(worker, process.session) is None:
            self._owners[worker] = process

    def keep(self, workers: Container[str]) -> None:
        """Forget all other names."""
        self._owners = {worker: owner for worker, owner in self._owners.items() if worker in workers}
        self._asking = {worker: question for worker, question in self._asking.items() if worker in workers}

    def ask_for(
        self,
        worker: str,
        session: str,
        newcomer: Joiner,
        now: float,
        *,
        lost: bool,
        link: object | None,
        older: bool = False,
    ) -> Ruling:
        """Decide on a newcomer that wants the name of the member `worker` with that session.

        `lost`: the member's connection broke, or never stood. `link`: its connection; None if it has none here.
        `older`: the newcomer had the name before, and never takes it back: it waits until the member is alive or gone.
        """
        owner = self.owner(worker, session)
        if owner is not None and (not owner.process or owner.same(newcomer)):
            return TAKE
        if lost and not older:
            return TAKE
        question = self._asking.pop(worker, None)
        # A question of long ago says nothing about the owner now: its newcomer has gone.
        if question is None or question.owner != session or now > question.since + 2 * self._patience:
            question = _Question(session, next(self._numbers), now)
        if question.answered:
            return Ruling("refuse")
        left = question.since + self._patience - now
        if left <= 0.0:
            return TAKE
        self._asking[worker] = question
        if link is None or question.asked is link:
            return Ruling("wait", left)
        question.asked = link
        return Ruling("wait", left, question.number)

    def answered(self, session: str, number: int) -> None:
        """Take a process's answer to a question."""
        for question in self._asking.values():
            if question.owner == session and question.number == number:
                question.answered = True
