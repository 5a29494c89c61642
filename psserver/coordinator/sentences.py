"""Sentences that name workers, of whom there may be thousands."""

from collections.abc import Collection
from itertools import islice
from typing import Final

MOST_NAMED: Final = 8


def named(names: Collection[str]) -> str:
    """Some names, and how many more there are."""
    some = ", ".join(islice(names, MOST_NAMED))
    return some if len(names) <= MOST_NAMED else f"{some} and {len(names) - MOST_NAMED} more"
