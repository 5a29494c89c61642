"""What a worker says of its time, held against the coordinator's own clock."""

from typing import Final

from pswire.protocol import UNTOLD

Reported = tuple[float | None, float | None, float | None]

# Of numbers that the log has in whole microseconds, and of two machines' clocks: each may be slewed by 500 parts per
# million while it is set right. `ps-lab check` allows as much.
ROUNDING: Final = 1e-6
DRIFT: Final = 1e-3


def plausible(times: Reported, granted: float, former: float | None, now: float) -> Reported:
    """`times`, if they fit between a ticket's grant and its commit, `now`; else `UNTOLD`.

    What came before the grant must fit behind the grant of the worker's ticket before, at `former`; None where
    there was none. A worker's intervals lie within the coordinator's, so a contribution whose times do not fit
    is taken, and its times are not: nothing is decided by them.
    """
    pull, compute, before = times
    if pull is None or compute is None:
        return UNTOLD
    held = pull + compute
    if not held <= _most(now - granted):
        return UNTOLD
    if former is not None and not held + (before or 0.0) <= _most(now - former):
        return UNTOLD
    return times


def _most(seconds: float) -> float:
    return seconds * (1 + DRIFT) + ROUNDING
