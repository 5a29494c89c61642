"""Where the time of a run's workers went, as a table."""

from statistics import fmean

from pslab.compare.charts.figures import natural
from pslab.compare.timeline import KINDS, Timeline

# A line for each worker, up to so many.
LINES = 16


def head(found: Timeline) -> list[str]:
    return ["of the time of", *(f"{kind} %" for kind in _kinds(found))]


def rows(found: Timeline) -> list[list[str]]:
    """The mean of all workers and the extremes, in percent of each one's time in the job; then worker by worker.

    Empty where no worker had a ticket, or none said what it did.
    """
    lanes = [lane for lane in found.lanes if any(lane.seconds.values())]
    if not lanes or not found.told:
        return []
    kinds = _kinds(found)
    table = [[f"{len(lanes)} workers", *(_spread([lane.shares[kind] for lane in lanes]) for kind in kinds)]]
    if 1 < len(lanes) <= LINES:
        for lane in sorted(lanes, key=lambda lane: natural(lane.worker)):
            table.append([lane.worker, *(_percent(lane.shares[kind]) for kind in kinds)])
    return table


def _kinds(found: Timeline) -> list[str]:
    """Those that occur."""
    return [kind for kind in KINDS if any(lane.seconds[kind] for lane in found.lanes)]


def _spread(parts: list[float]) -> str:
    mean = _percent(fmean(parts))
    return mean if len(parts) == 1 else f"{mean} ({_percent(min(parts))}..{_percent(max(parts))})"


def _percent(part: float) -> str:
    return f"{100 * part:.1f}"
