"""The least and the greatest of many counters, without a scan."""


class Extremes:
    """A multiset of whole numbers that knows its least.

    The numbers are clocks or versions. Greater ones replace them, so the least only rises, one number at a time: over
    a whole run that costs no more than the number of steps counted.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        # A lower bound of all numbers.
        self._floor = 0

    def add(self, number: int) -> None:
        if not self._counts or number < self._floor:
            self._floor = number
        self._counts[number] = self._counts.get(number, 0) + 1

    def remove(self, number: int) -> None:
        """Remove one occurrence of a number that is present."""
        left = self._counts[number] - 1
        if left:
            self._counts[number] = left
        else:
            del self._counts[number]

    def least(self) -> int | None:
        """Return the least number; None if empty."""
        if not self._counts:
            return None
        while self._floor not in self._counts:
            self._floor += 1
        return self._floor

    def greatest(self) -> int | None:
        """Return the greatest number; None if empty. Scans all distinct numbers, of which there are few."""
        return max(self._counts, default=None)
