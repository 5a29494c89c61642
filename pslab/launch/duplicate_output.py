"""Workers that fail alike say the same; it is printed once."""

_DAEMONS = ("ps-worker: ", "ps-server: ")


class Echoes:
    """Remembers who said what at its end."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}

    def of(self, name: str, tail: str) -> str | None:
        """Who said the same before `name`; None when it is news. `tail`: the end of its log."""
        first = self._first.setdefault(_last_words(tail), name) if tail.strip() else name
        return None if first == name else first

    def told(self, name: str) -> bool:
        """What `name` said was news when it was heard."""
        return name in self._first.values()


def _last_words(tail: str) -> str:
    """From the line with which a daemon takes its leave: what it logged before has times and names in it."""
    lines = tail.splitlines()
    leave = [number for number, line in enumerate(lines) if line.startswith(_DAEMONS)]
    return "\n".join(lines[leave[-1] if leave else 0 :])
