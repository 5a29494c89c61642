"""The least, and the greatest, of many counters, without looking at all of them."""


class Extremes:
    """A multiset of whole numbers that knows its least.

    The numbers are clocks or versions: they are replaced by greater ones, so
    the least climbs. Climbing costs one look per number passed, which over a
    whole run is no more than the steps that were counted.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        # No number is below it.
        self._floor = 0

    def add(self, number: int) -> None:
        if not self._counts or number < self._floor:
            self._floor = number
        self._counts[number] = self._counts.get(number, 0) + 1

    def remove(self, number: int) -> None:
        """Take out a number that is in."""
        left = self._counts[number] - 1
        if left:
            self._counts[number] = left
        else:
            del self._counts[number]

    def least(self) -> int | None:
        """None when it is empty."""
        if not self._counts:
            return None
        while self._floor not in self._counts:
            self._floor += 1
        return self._floor

    def greatest(self) -> int | None:
        """None when it is empty. Looks at every different number: cheap while they lie close together."""
        return max(self._counts, default=None)
