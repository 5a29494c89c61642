"""The answers of all servers to the coordinator's question whether an update is finite."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class TrialAnswers:
    """To one trial at a time, of `servers` servers. The loop's thread owns it."""

    servers: int
    trial: int = 0
    # When the question was asked; seconds, monotonic.
    since: float = 0.0
    _finite: dict[int, bool] = field(default_factory=dict)
    _largest: float = 0.0

    def expect(self, trial: int, now: float) -> None:
        """Another question is asked."""
        self.trial, self.since, self._largest = trial, now, 0.0
        self._finite.clear()

    @property
    def missing(self) -> str:
        """The servers that have not answered, as a part of a sentence."""
        numbers = [str(server) for server in range(self.servers) if server not in self._finite]
        return f"server{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"

    def take(self, server: int, trial: int, finite: bool, largest: float) -> tuple[bool, float] | None:
        """A server's answer. Once all have come: whether it is finite everywhere, and the largest magnitude."""
        if trial != self.trial or server in self._finite:
            return None
        self._finite[server] = finite
        self._largest = max(self._largest, largest)
        if len(self._finite) < self.servers:
            return None
        return all(self._finite.values()), self._largest
