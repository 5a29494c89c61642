"""What became of a worker's contributions."""

from __future__ import annotations

from psworker.session import Session


class Fates:
    """Counts by fate, and the staleness of those that were applied."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._staleness = (0, 0)

    def take(self, session: Session) -> None:
        """What the servers have told since the last call."""
        for disposition in session.dispositions():
            if disposition.fate == "applied" and not disposition.version:
                continue  # the initial values, which the first worker gives
            self.counts[disposition.fate] = self.counts.get(disposition.fate, 0) + 1
            if disposition.fate == "applied":
                total, count = self._staleness
                self._staleness = total + disposition.staleness, count + 1

    def progress(self, version: int) -> dict[str, float]:
        """What the progress bar shows beside the loss."""
        total, count = self._staleness
        mean = total / count if count else 0.0
        return {"version": version, "staleness": mean, "dropped": self.counts.get("dropped", 0)}
