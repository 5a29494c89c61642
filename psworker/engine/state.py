"""The state of a client engine as a value: plain, comparable, and JSON when it has to be kept."""

from dataclasses import dataclass, replace

from pswire.protocol import Abandon, Cancel, Commit, Disposition, Grant, Leave, Refusal, Stop
from pswire.records import StateError, from_plain, to_plain


@dataclass(frozen=True, slots=True)
class EngineState:
    """See the fields of the same names in `ClientEngine`. `void`: tickets that were cancelled, and why.

    Times (`Grant.received_at`) are seconds of the clock of the process that saved it.
    """

    lossless_link: bool
    stop: Stop | None
    refusal: Refusal | None
    leaving: Leave | None
    asked: bool
    exhausted: bool
    ends: str
    held: int | None
    exchanged: int | None
    newest: Grant | None
    grants: tuple[Grant, ...]
    unanswered: tuple[Commit, ...]
    awaited: tuple[int, ...]
    abandoned: tuple[Abandon, ...]
    void: tuple[Cancel, ...]
    dispositions: tuple[Disposition, ...]
    position: int = 0
    position_before: int = 0
    forfeited: int | None = None
    rolled_back: bool = False

    def to_json(self) -> dict[str, object]:
        """As plain data that `json.dumps(..., allow_nan=False)` takes."""
        plain: dict[str, object] = to_plain(self)
        return plain

    @classmethod
    def from_json(cls, data: object) -> "EngineState":
        """Raises StateError for missing or unknown fields and for values of another type."""
        return from_plain(cls, data, "engine state")

    def shifted(self, seconds: float) -> "EngineState":
        """With every time later by that."""
        if not seconds:
            return self
        newest = None if self.newest is None else _later(self.newest, seconds)
        return replace(self, newest=newest, grants=tuple(_later(grant, seconds) for grant in self.grants))

    def check(self) -> None:
        """Raises StateError where its parts contradict each other."""
        newest = 0 if self.newest is None else self.newest.ticket
        for holds, what in (
            (self.held is None or self.exchanged is None, "one ticket is in hand and one in an exchange"),
            (all(grant.ticket <= newest for grant in self.grants), "a grant is newer than the newest"),
            (
                {commit.ticket for commit in self.unanswered} <= set(self.awaited),
                "a commit without an answer has no fate to wait for",
            ),
        ):
            if not holds:
                raise StateError(f"engine state: {what}")


def _later(grant: Grant, seconds: float) -> Grant:
    return replace(grant, received_at=grant.received_at + seconds)
