"""A coordinator's status as figures, sentences, a table, a line and a JSON object. Pure: no clock, no terminal.

`ps-lab run`, `status` and the header of the dashboard are made of these.
"""

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from google.protobuf.message import Message
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import memory_pb2

# Terminal colours by state of a worker or server.
STYLES = {
    "computing": "green",
    "transferring": "green",
    "ready": "green",
    "waiting": "yellow",
    "lost": "red",
    "left": "red",
    "done": "cyan",
}


# Folder names of later jobs of the same servers (`psserver.service.job.next_job`).
LATER_JOB = r"job-\d+"
# Numbers from here on are shown with an exponent, because workers may report values with 300 digits.
LARGE = 1e9


INSECURE = (
    "not protected (--insecure): anybody who reaches the servers can join, read the model and change it"
)


class SampleRate:
    """Samples per second over the last few seconds of successive statuses."""

    def __init__(self, window: float = 3.0) -> None:
        self._window = window
        # (time, total samples), oldest first.
        self._totals: deque[tuple[float, int]] = deque()

    def add(self, now: float, samples: int) -> None:
        """Add a status. `now`: seconds of any monotonic clock; `samples`: the job's total so far."""
        if self._totals and samples < self._totals[-1][1]:
            # Another job, or a recovery.
            self._totals.clear()
        self._totals.append((now, samples))
        while len(self._totals) > 2 and now - self._totals[1][0] >= self._window:
            self._totals.popleft()

    @property
    def rate(self) -> float:
        """Samples per second; 0 until there are two statuses."""
        if len(self._totals) < 2:
            return 0.0
        (earlier, before), (later, after) = self._totals[0], self._totals[-1]
        return (after - before) / (later - earlier) if later > earlier else 0.0


def number(value: float, digits: int = 3) -> str:
    """Format a number for people; a dash if it is not finite."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.{digits}f}" if abs(value) < LARGE else f"{value:.{digits}e}"


def finite_or_none(value: float) -> float | None:
    """Return a number for JSON, which has neither NaN nor infinity."""
    return value if math.isfinite(value) else None


def status_line(status: pb.StatusReply, rate: float) -> str:
    """Return the whole status in one line, for logs and pipes."""
    states: dict[str, int] = {}
    for worker in status.workers:
        states[worker.state] = states.get(worker.state, 0) + 1
    counted = [f"{count} {state}" for state, count in sorted(states.items())]
    counted += [f"{status.unlisted} more"] if status.unlisted else []
    workers = ", ".join(counted) or "none yet"
    progress = progress_sentence(status)
    line = (
        f"{status.seconds:6.1f} s  {status.phase}  version {status.version}  {rate:.0f} samples/s"
        f"{f'  {progress}' if progress else ''}"
        f"  loss {number(status.loss)}  staleness mean {number(status.mean_staleness, 2)} max {status.max_staleness}"
        f"  dropped {status.dropped}  workers: {workers}"
    )
    return f"{line}  ({status.note})" if status.note else line


def progress_sentence(status: pb.StatusReply) -> str:
    """Return the job's progress and remaining time; empty if unknown."""
    if not status.HasField("progress"):
        return ""
    found = status.progress
    parts = [f"epoch {found.epoch} of {found.epochs}"] if found.epochs else []
    parts.append(f"{found.done} of {found.total} {found.unit}")
    if math.isfinite(found.seconds_left) and found.seconds_left > 0:
        parts.append(f"about {duration(found.seconds_left)} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Format a duration for people, in at most two units."""
    whole = round(seconds)
    for size, unit, lower, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // lower} {below}"
    return f"{whole} s"


def waiting_sentences(status: pb.StatusReply, least: float = 0.0) -> list[str]:
    """Say for every worker that has waited `least` seconds how long, and what would release it."""
    return [
        f"{worker.name} has waited {worker.seconds:.1f} s for {worker.waiting_for}"
        for worker in status.workers
        if worker.state == "waiting" and worker.waiting_for and worker.seconds >= least
    ]


def status_view(status: pb.StatusReply, rate: float | None = None) -> RenderableType:
    """Return the headline, workers, servers if one has a problem, and who waits for what.

    `rate`: samples per second, for a view that is updated in place; None for a single view, which has more detail.
    """
    found = figures(status)
    pace = found["samples"] if rate is None else f"{rate:.0f} samples/s"
    facts = (found["version"], found["loss"], pace, found["contributions"], found["time"])
    parts: list[RenderableType] = [headline(status, facts)]
    if re.fullmatch(LATER_JOB, PurePath(status.folder).name):
        parts.append(Text(f"after earlier jobs of the same servers, in {status.folder}"))
    progress = progress_sentence(status)
    if progress:
        parts.append(Text(progress))
    parts.append(_workers(status))
    if status.unlisted:
        parts.append(Text(f"and {status.unlisted} workers more"))
    if rate is None or troubled_servers(status):
        parts.append(_servers(status))
    if rate is None:
        parts += [Text(sentence) for sentence in memory_sentences(status)]
        parts += [Text(sentence) for sentence in carrier_sentences(status)]
        parts += [Text(sentence) for sentence in computing_sentences(status)]
    if status.security == "insecure":
        parts.append(Text(INSECURE, style="red"))
    # A view that is updated in place omits the short waits of every step.
    return Group(*parts, *remarks(status, 0.0 if rate is None else 1.0))


def remarks(status: pb.StatusReply, least: float) -> list[Text]:
    """Return the coordinator's note, and sentences about workers that have waited `least` seconds."""
    note = [Text(line, style="yellow") for line in (status.change, status.note) if line]
    return note + [Text(sentence) for sentence in waiting_sentences(status, least)]


def troubled_servers(status: pb.StatusReply) -> list[pb.ServerStatus]:
    """Return the servers that are not ready."""
    return [server for server in status.servers if server.state != "ready"]


def figures(status: pb.StatusReply) -> dict[str, str]:
    """Return the figures of headlines, by name."""
    return {
        "version": f"version {status.version}",
        "loss": f"loss {number(status.loss)}",
        "samples": f"{status.samples} samples",
        "contributions": f"{status.applied} applied, {status.dropped} dropped, {status.pending} pending",
        "time": f"{status.seconds:.1f} s",
    }


def headline_rows(status: pb.StatusReply) -> list[tuple[str, str]]:
    """Return the figures in the header of the dashboard: (name, text)."""
    rows = [
        ("policy", status.policy),
        ("version", str(status.version)),
        ("loss", number(status.loss)),
        ("staleness", number(status.mean_staleness, 2)),
        ("dropped", str(status.dropped)),
    ]
    left = status.progress.seconds_left if status.HasField("progress") else math.nan
    return [*rows, ("left, about", duration(left))] if math.isfinite(left) and left > 0 else rows


def headline(status: pb.StatusReply, facts: Sequence[str]) -> Text:
    """Return the first line of a view: policy, optimizer and phase, then `facts`."""
    head = Text(f"{status.policy}, {status.optimizer}: {status.phase}", style="bold")
    return head.append("  " + "  |  ".join(facts), style="not bold")


def _workers(status: pb.StatusReply) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("worker", "state", "since", "ticket", "from version"):
        table.add_column(title, no_wrap=True)
    for title in ("committed", "applied", "dropped", "staleness mean", "max"):
        table.add_column(title, justify="right", no_wrap=True)
    for w in status.workers:
        busy = w.state in ("computing", "transferring")
        table.add_row(
            escape(w.name) + (f" #{w.incarnation}" if w.incarnation else ""),
            Text(w.state, style=STYLES.get(w.state, "")),
            f"{number(w.seconds, 1)} s",
            str(w.ticket) if busy else "-",
            str(w.base_version) if busy else "-",
            str(w.committed),
            str(w.applied),
            str(w.dropped),
            number(w.mean_staleness, 2),
            str(w.max_staleness),
        )
    return table


def _servers(status: pb.StatusReply) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("server", "address", "state"):
        table.add_column(title, no_wrap=True)
    copies = bool(status.replicas)
    for title in ("MiB", "memory", "decisions executed", *(["items behind"] if copies else [])):
        table.add_column(title, justify="right", no_wrap=True)
    for server in status.servers:
        table.add_row(
            str(server.task_index),
            escape(server.address),
            Text(server.state, style=STYLES.get(server.state, "")),
            f"{server.bytes / 2**20:.2f}",
            memory_line(server.memory),
            # Of a copy only its lag is known.
            "-" if copies and not server.executed else str(server.executed),
            *([str(server.lag)] if copies else []),
        )
    return table


def memory_line(memory: memory_pb2.Memory) -> str:
    """Return how much memory a server holds and may hold; a dash until it has reported."""
    if not memory.limit:
        return "-"
    return f"{memory.total / 2**20:.1f} of {memory.limit / 2**20:.0f} MiB"


def memory_sentences(status: pb.StatusReply) -> list[str]:
    """Say for every server what its memory holds, the largest parts first."""
    found = []
    for server in status.servers:
        parts = [f"{part.kind} {part.bytes / 2**20:.1f}" for part in server.memory.parts]
        if parts:
            found.append(f"memory of server {server.task_index}, MiB: " + ", ".join(parts))
    return found


def carrier_sentences(status: pb.StatusReply) -> list[str]:
    """Say by which transport workers' payloads travel; gRPC if a data port is unreachable."""
    found: dict[str, list[str]] = {}
    for worker in status.workers:
        ways = dict.fromkeys(pb.Carrier.Name(number) for number in worker.carriers)
        if ways:
            way = " and ".join(name.removeprefix("CARRIER_").lower().replace("_", " ") for name in ways)
            found.setdefault(way.replace("grpc", "gRPC"), []).append(worker.name)
    return [f"payloads of {', '.join(names)}: {way}" for way, names in found.items()]


def computing_sentences(status: pb.StatusReply) -> list[str]:
    """Say what workers compute with, where they have told."""
    found: dict[str, list[str]] = {}
    for worker in status.workers:
        if worker.computes:
            found.setdefault(worker.computes, []).append(worker.name)
    verbs = {True: "computes", False: "compute"}
    return [f"{', '.join(names)} {verbs[len(names) == 1]} with {what}" for what, names in found.items()]


def status_json(status: pb.StatusReply) -> dict[str, Any]:
    """Return all fields under their names in the .proto; NaN is null."""
    return _plain(status)


def _plain(message: Any) -> dict[str, Any]:
    fields = message.DESCRIPTOR.fields
    # A part that is absent is null.
    absent = {f.name for f in fields if f.message_type and f.has_presence and not message.HasField(f.name)}
    return {f.name: None if f.name in absent else _value(getattr(message, f.name)) for f in fields}


def _value(value: Any) -> Any:
    if isinstance(value, float):
        return finite_or_none(value)
    if isinstance(value, (str, int)):
        return value
    if isinstance(value, Message):
        return _plain(value)
    if isinstance(value, Mapping):
        return {name: _value(item) for name, item in value.items()}
    return [_value(item) for item in value]
