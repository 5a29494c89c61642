"""Texts that came over the wire, made safe to print: one line, no control characters, no longer than they may be."""

from typing import Final

# Enough for a sentence that names a few things.
USUAL: Final = 500


def escaped(text: str, most: int = USUAL) -> str:
    r"""`text` with everything that is not printable written as in Python ("\x1b", "\n", "\u202e").

    At most `most` characters, and after them how many were left out.
    """
    kept = text[:most]
    if not kept.isprintable():
        kept = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in kept)[:most]
    return kept if len(text) <= most else f"{kept} ... ({len(text) - most} more characters)"
