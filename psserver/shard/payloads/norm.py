"""The norm of a gradient that lies on several servers, from the sum of squares that each has found."""

import math
from collections.abc import Iterable
from typing import Final

# In which pieces a payload came shows in the last bits of its sum, and must not show in a log.
DIGITS: Final = 6


def norm_of(squares: Iterable[float]) -> float:
    """L2, in six digits. `squares`: of every server, in the order of the servers."""
    return float(f"{math.sqrt(sum(squares)):.{DIGITS}g}")


def same_norm(one: float, other: float) -> bool:
    """Equal but for the last digit: two sums in other orders may fall on both sides of where it is rounded."""
    return math.isclose(one, other, rel_tol=2 * 10.0 ** (1 - DIGITS))
