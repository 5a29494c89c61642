"""Who has a worker's name: a newcomer waits until it is known whether the process that has it is alive. Pure.

A connection that stands for `patience` seconds belongs to a process that is alive, because pings that are not answered
would have broken it before. Such a process keeps its name, and the newcomer is refused. Any other loses it.
"""

from collections.abc import Container
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Ruling:
    """Whether a newcomer takes the name, is refused, or waits: for `seconds` at most."""

    outcome: Literal["take", "refuse", "wait"]
    seconds: float = 0.0


TAKE: Final = Ruling("take")


class NamesInUse:
    """Processes that have names, and newcomers that ask for these. `patience`: seconds that a newcomer waits."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        # By worker.
        self._owners: dict[str, Joiner] = {}
        # By worker: the session that has the name, and since when newcomers want it.
        self._wanted: dict[str, tuple[str, float]] = {}

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
        self._wanted = {worker: wanted for worker, wanted in self._wanted.items() if worker in workers}

    def ask_for(
        self,
        worker: str,
        session: str,
        newcomer: Joiner,
        now: float,
        *,
        lost: bool,
        linked: bool,
        older: bool = False,
    ) -> Ruling:
        """Decide on a newcomer that wants the name of the member `worker` with that session.

        `lost`: the member's connection broke, or never stood. `linked`: it has a connection here. `older`: the newcomer
        had the name before, and never takes it back: it waits until the member is alive or gone.
        """
        owner = self.owner(worker, session)
        if owner is not None and (not owner.process or owner.same(newcomer)):
            return TAKE
        if lost and not older:
            return TAKE
        wanted, since = self._wanted.pop(worker, ("", now))
        # A wait of long ago says nothing about the owner now: its newcomer has gone.
        if wanted != session or now > since + 2 * self._patience:
            since = now
        left = since + self._patience - now
        if left <= 0.0:
            return Ruling("refuse") if linked and not lost else TAKE
        self._wanted[worker] = session, since
        return Ruling("wait", left)
