"""What workers report of their time: it fits between the entries of the log."""

from collections.abc import Iterator

from pslab.check.ledger import Ledger
from pslab.check.log_check import LogCheck
from pslab.runs.log import Line
from pswire.decisions import entries as e

# Five numbers in whole microseconds, each rounded by half of one, and a sum of them.
ROUNDING = 3e-6
# Two machines' monotonic clocks: each may be slewed by 500 parts per million while it is set right.
DRIFT = 1e-3


class WorkersTimes(LogCheck):
    """What a worker pulled and computed fits between grant and commit; with what it did before, behind its last grant.

    A worker's intervals lie within the coordinator's: it receives a grant
    after the entry, and sends its commit before it. So only rounding and the
    rates of two clocks may make them longer; on a virtual clock it is rounding.
    A worker may also report nothing, but not a part.
    """

    name = "workers' times"

    def __init__(self) -> None:
        # Open tickets: their grants' times, and that of the worker's ticket before.
        self._granted: dict[int, tuple[float, float | None]] = {}
        self._last: dict[str, float] = {}

    def see(self, entry: Line, ledger: Ledger) -> Iterator[str]:
        match entry.fact:
            case e.Grant(worker, number):
                self._granted[number] = entry.t, self._last.get(worker)
                self._last[worker] = entry.t
            case e.Cancel(_, number) | e.Abandon(_, number):
                self._granted.pop(number, None)
            case e.Commit() as commit:
                granted, former = self._granted.pop(commit.ticket, (None, None))
                yield from _incomplete(commit)
                if granted is not None:
                    yield from _fits(commit, entry.t, granted, former)


def _incomplete(commit: e.Commit) -> Iterator[str]:
    reported = {"pull": commit.pull, "compute": commit.compute, "before": commit.before}
    for name, seconds in reported.items():
        if seconds is not None and seconds < 0:
            yield f"commit of ticket {commit.ticket}: {name} is {seconds:g} s, less than none"
    if (commit.pull is None) != (commit.compute is None) or (
        commit.before is not None and commit.pull is None
    ):
        names = " and ".join(name for name, seconds in reported.items() if seconds is not None)
        yield f"commit of ticket {commit.ticket} reports {names}, but not the rest"


def _fits(commit: e.Commit, now: float, granted: float, former: float | None) -> Iterator[str]:
    held = (commit.pull or 0.0) + (commit.compute or 0.0)
    before = commit.before or 0.0
    if held > _most(now - granted):
        yield (
            f"{commit.worker} pulled and computed {held:.6f} s for ticket {commit.ticket}, but committed it "
            f"{now - granted:.6f} s after its grant"
        )
    elif former is not None and held + before > _most(now - former):
        yield (
            f"{commit.worker} worked {held + before:.6f} s for ticket {commit.ticket}, {before:.6f} s of it before the "
            f"grant, but committed it {now - former:.6f} s after the grant of its ticket before"
        )


def _most(seconds: float) -> float:
    return seconds * (1 + DRIFT) + ROUNDING
