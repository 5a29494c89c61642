"""The nearest known name to an unknown one, so that errors can suggest it."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like `name`, ignoring case; None if none is similar."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean "seed"?`, or the list of known names, to append to an error."""
    names = list(known)
    suggestion = nearest(name, names)
    if suggestion is not None:
        return f'; did you mean "{suggestion}"?'
    return f"; known: {', '.join(names)}" if names else ""
