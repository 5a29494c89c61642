"""An unknown name's nearest known one, so that every "unknown" error can suggest what was meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name` (case does not count), or None when none is alike."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean "seed"?`, or else the list of what is known; to append to an error."""
    names = list(known)
    suggestion = nearest(name, names)
    if suggestion is not None:
        return f'; did you mean "{suggestion}"?'
    return f"; known: {', '.join(names)}" if names else ""
