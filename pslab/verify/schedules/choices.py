"""Where the choices of a schedule come from: a seeded generator, or a list that somebody searches."""

import random
from typing import Protocol


class ChoiceSource(Protocol):
    def pick(self, n: int) -> int:
        """One of 0 .. n - 1."""
        ...


class Seeded:
    """The same choices for the same seed, on every machine."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, n: int) -> int:
        # Fast enough, and even enough for n far below 2 ** 16.
        return self._random.getrandbits(16) * n >> 16


class ListedChoices:
    """Choices from a list; when it ends, always the first: the calmest."""

    def __init__(self, choices: list[int]) -> None:
        self._choices = iter(choices)

    def pick(self, n: int) -> int:
        return next(self._choices, 0) % n
