"""The screen of `ps-lab status --watch`, with the last minute: curves, a lane for each worker, and who waits for whom.

Pure: statuses and times are arguments.
"""

import math
from collections import Counter, deque
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pslab.display.status import STYLES, figures, headline, number, remarks, troubled_servers
from pswire.v1 import coordinator_pb2 as pb

# Columns of a lane or curve at most, the newest on the right, and seconds of each column.
COLUMNS, COLUMN = 60, 1.0
# Marks by state of a worker, told apart without colours too. A blank means that the worker is absent.
MARKS = {
    "computing": "█",
    "transferring": "▓",
    "waiting": "░",
    "joined": "▒",
    "lost": "×",
    "left": "×",
    "done": "·",
}
BARS = "▁▂▃▄▅▆▇█"
# Lines of the screen beside those of workers and servers.
OTHER_LINES = 14
# Characters of a line beside the lane, and the minimal width of a lane.
OTHER_WIDTH, LEAST = 72, 10


class History:
    """The statuses of the last minute."""

    def __init__(self) -> None:
        self.status: pb.StatusReply | None = None
        # The last status of each column: (column, time, status). The newest column is still growing.
        self._statuses: deque[tuple[int, float, pb.StatusReply]] = deque(maxlen=COLUMNS + 1)
        # Worker -> how often each state was seen in each column.
        self._states: dict[str, deque[tuple[int, Counter[str]]]] = {}

    def add(self, now: float, status: pb.StatusReply) -> None:
        """Add a status. `now`: seconds of any monotonic clock."""
        self.status = status
        column = int(now // COLUMN)
        if self._statuses and self._statuses[-1][0] == column:
            self._statuses.pop()
        self._statuses.append((column, now, status))
        for worker in status.workers:
            seen = self._states.setdefault(worker.name, deque(maxlen=COLUMNS))
            if not seen or seen[-1][0] != column:
                seen.append((column, Counter()))
            seen[-1][1][worker.state] += 1

    def lane(self, worker: str, columns: int = COLUMNS) -> Text:
        """Return a mark for each column: the worker's most frequent state."""
        newest = self._statuses[-1][0]
        states = {column: seen.most_common(1)[0][0] for column, seen in self._states[worker]}
        lane = Text()
        for column in range(newest - columns + 1, newest + 1):
            state = states.get(column, "")
            lane.append(MARKS.get(state, " "), STYLES.get(state, ""))
        return lane

    def rates(self) -> dict[str, list[float]]:
        """Return curves by name, with a number for each column but the first; NaN if nothing happened."""
        found: dict[str, list[float]] = {"samples/s": [], "versions/s": [], "loss": [], "staleness": []}
        for (_, before, old), (_, after, new) in zip(self._statuses, list(self._statuses)[1:], strict=False):
            seconds, applied = after - before, new.applied - old.applied
            found["samples/s"].append((new.samples - old.samples) / seconds)
            found["versions/s"].append((new.version - old.version) / seconds)
            found["loss"].append(new.loss)
            ages = new.mean_staleness * new.applied - old.mean_staleness * old.applied
            found["staleness"].append(ages / applied if applied > 0 else math.nan)
        return found


def curve(values: Sequence[float]) -> str:
    """Draw bars from 0, or the minimum if negative, to the maximum; a blank for values that are not finite."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    least, most = min(0.0, *finite), max(finite)
    high = len(BARS) - 1
    scale = high / (most - least) if most > least else 0.0
    return "".join(BARS[round((value - least) * scale)] if math.isfinite(value) else " " for value in values)


def watch_view(history: History, height: int, width: int) -> RenderableType:
    """Return the screen of `height` lines of `width` characters. Requires a status."""
    status = history.status
    assert status is not None
    found = figures(status)
    columns = min(COLUMNS, max(width - OTHER_WIDTH, LEAST))
    rows = max(height - OTHER_LINES - len(status.servers), 1)
    parts: list[RenderableType] = [
        headline(status, (found["version"], found["time"])),
        Text(),
        _curves(history, columns),
        Text(),
        _lanes(history, status, rows, columns),
    ]
    parts += remarks(status, 1.0, most=3)
    parts += [
        Text(f"server {s.task_index} at {s.address}: {s.state}", STYLES.get(s.state, ""))
        for s in troubled_servers(status)
    ]
    return Group(*parts, Text(), _legend())


def _curves(history: History, columns: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right", min_width=9)
    table.add_column(no_wrap=True)
    for name, values in history.rates().items():
        last = next((value for value in reversed(values) if math.isfinite(value)), math.nan)
        table.add_row(name, number(last, 3 if name == "loss" else 1), curve(values[-columns:]).rjust(columns))
    return table


def _lanes(history: History, status: pb.StatusReply, rows: int, columns: int) -> Table:
    """Return a lane for each worker. If they do not all fit, those that have waited longest come first."""
    workers = list(status.workers)
    if len(workers) > rows:
        workers.sort(key=lambda w: (w.state != "lost", w.state != "waiting", -w.seconds))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("worker", f"last {columns * COLUMN:.0f} s", "now"):
        table.add_column(title, no_wrap=True)
    for title in ("applied", "dropped", "staleness"):
        table.add_column(title, justify="right", no_wrap=True)
    for worker in workers[:rows]:
        table.add_row(
            escape(worker.name),
            history.lane(worker.name, columns),
            _doing(worker),
            str(worker.applied),
            str(worker.dropped),
            f"{worker.mean_staleness:.2f}",
        )
    if len(workers) > rows:
        states = Counter(worker.state for worker in workers[rows:])
        table.add_row(f"+{len(workers) - rows}", ", ".join(f"{n} {state}" for state, n in states.items()))
    return table


def _doing(worker: pb.WorkerStatus) -> Text:
    """Return the worker's state, and for whom it waits."""
    doing = Text(f"{worker.state} {worker.seconds:.1f} s", STYLES.get(worker.state, ""))
    if worker.state == "waiting" and worker.releasers:
        shown = ", ".join(worker.releasers[:2])
        more = len(worker.releasers) - 2
        doing.append(f" -> {shown}" + (f" and {more} more" if more > 0 else ""))
    return doing


def _legend() -> Text:
    legend = Text(style="dim")
    for state in ("computing", "waiting", "lost", "done"):
        legend.append(MARKS[state], STYLES.get(state, "")).append(f" {state}   ")
    return legend.append("Ctrl-C ends")
