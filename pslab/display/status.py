"""A coordinator's status as a table, a line and a JSON object. Pure: no clock, no terminal."""

import math
import re
from collections import deque
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from google.protobuf.message import Message
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import memory_pb2

# States of workers and servers, in the terminal's own colours.
STYLES = {
    "computing": "green",
    "ready": "green",
    "waiting": "yellow",
    "lost": "red",
    "left": "red",
    "done": "cyan",
}


# What servers train behind their first job has a folder of this name (`psserver.service.life.successor`).
LATER_JOB = r"job-\d+"
# Numbers from here on are shown with an exponent: what workers report may have 300 digits.
LARGE = 1e9


INSECURE = "not protected (--insecure): whoever reaches the servers can join, read the model and change it"


class SampleRate:
    """Samples per second over the last few seconds, from statuses as they come."""

    def __init__(self, window: float = 3.0) -> None:
        self._window = window
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now: float, samples: int) -> None:
        """`now` in seconds of any monotonic clock; `samples` is the job's total so far."""
        if self._seen and samples < self._seen[-1][1]:
            # Another job, or one that went back.
            self._seen.clear()
        self._seen.append((now, samples))
        while len(self._seen) > 2 and now - self._seen[1][0] >= self._window:
            self._seen.popleft()

    @property
    def rate(self) -> float:
        """Samples per second; 0 before there are two statuses."""
        if len(self._seen) < 2:
            return 0.0
        (earlier, before), (later, after) = self._seen[0], self._seen[-1]
        return (after - before) / (later - earlier) if later > earlier else 0.0


def number(value: float, digits: int = 3) -> str:
    """A number for people, in few characters; a dash when there is none yet."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.{digits}f}" if abs(value) < LARGE else f"{value:.{digits}e}"


def finite_or_none(value: float) -> float | None:
    """A number for JSON, which has neither NaN nor infinity."""
    return value if math.isfinite(value) else None


def status_line(status: pb.StatusReply, rate: float) -> str:
    """Everything in one line, for logs and pipes."""
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
    """How far the job is, and how long it will take; empty where nobody knows."""
    if not status.HasField("progress"):
        return ""
    found = status.progress
    parts = [f"epoch {found.epoch} of {found.epochs}"] if found.epochs else []
    parts.append(f"{found.done} of {found.total} {found.unit}")
    if math.isfinite(found.seconds_left) and found.seconds_left > 0:
        parts.append(f"about {duration(found.seconds_left)} left")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """For people: two units at most."""
    whole = round(seconds)
    for size, unit, lower, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // lower} {below}"
    return f"{whole} s"


def waiting_sentences(status: pb.StatusReply, least: float = 0.0) -> list[str]:
    """For every worker that waits for at least `least` seconds: since when, and what would release it."""
    return [
        f"{worker.name} has waited {worker.seconds:.1f} s for {worker.waiting_for}"
        for worker in status.workers
        if worker.state == "waiting" and worker.waiting_for and worker.seconds >= least
    ]


def status_view(status: pb.StatusReply, rate: float | None = None) -> RenderableType:
    """Headline, workers, servers where they matter, and who waits for what.

    `rate`: samples per second, for a view that renews itself; None for a single look.
    """
    parts: list[RenderableType] = [_headline(status, rate)]
    if re.fullmatch(LATER_JOB, PurePath(status.folder).name):
        parts.append(Text(f"behind other jobs of the same servers, in {status.folder}"))
    progress = progress_sentence(status)
    if progress:
        parts.append(Text(progress))
    parts.append(_workers(status))
    if status.unlisted:
        parts.append(Text(f"and {status.unlisted} workers more"))
    troubled = [server for server in status.servers if server.state != "ready"]
    if rate is None or troubled:
        parts.append(_servers(status))
    if rate is None:
        parts += [Text(sentence) for sentence in memory_sentences(status)]
        parts += [Text(sentence) for sentence in carrier_sentences(status)]
    if status.security == "insecure":
        parts.append(Text(INSECURE, style="red"))
    if status.note:
        parts.append(Text(status.note, style="yellow"))
    # A view that renews itself leaves out the short waits of every step.
    least = 0.0 if rate is None else 1.0
    parts += [Text(sentence) for sentence in waiting_sentences(status, least)]
    return Group(*parts)


def _headline(status: pb.StatusReply, rate: float | None) -> Text:
    facts = [
        f"version {status.version}",
        f"loss {number(status.loss)}",
        f"{status.samples} samples" if rate is None else f"{rate:.0f} samples/s",
        f"{status.applied} applied, {status.dropped} dropped, {status.pending} pending",
        f"{status.seconds:.1f} s",
    ]
    head = Text(f"{status.policy}, {status.optimizer}: {status.phase}", style="bold")
    return head.append("  " + "  |  ".join(facts), style="not bold")


def _workers(status: pb.StatusReply) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("worker", "state", "since", "ticket", "from version"):
        table.add_column(title, no_wrap=True)
    for title in ("committed", "applied", "dropped", "staleness mean", "max"):
        table.add_column(title, justify="right", no_wrap=True)
    for w in status.workers:
        busy = w.state == "computing"
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
    for title in ("MiB", "memory", "decisions executed"):
        table.add_column(title, justify="right", no_wrap=True)
    for server in status.servers:
        table.add_row(
            str(server.task_index),
            escape(server.address),
            Text(server.state, style=STYLES.get(server.state, "")),
            f"{server.bytes / 2**20:.2f}",
            memory_line(server.memory),
            str(server.executed),
        )
    return table


def memory_line(memory: memory_pb2.Memory) -> str:
    """How much a server holds, of how much it may; a dash before it has said so."""
    if not memory.limit:
        return "-"
    return f"{memory.total / 2**20:.1f} of {memory.limit / 2**20:.0f} MiB"


def memory_sentences(status: pb.StatusReply) -> list[str]:
    """For every server that holds something: what, and for whom; the largest parts first."""
    found = []
    for server in status.servers:
        said = [f"{holder(part.member)}{part.kind} {part.bytes / 2**20:.1f}" for part in server.memory.parts]
        said += [f"others {server.memory.rest / 2**20:.1f}"] if server.memory.rest else []
        if said:
            found.append(f"memory of server {server.task_index}, MiB: " + ", ".join(said))
    return found


def carrier_sentences(status: pb.StatusReply) -> list[str]:
    """How workers' payloads travel, for each way that there is; over gRPC, where a data port is out of reach."""
    found: dict[str, list[str]] = {}
    for worker in status.workers:
        ways = dict.fromkeys(pb.Carrier.Name(number) for number in worker.carriers)
        if ways:
            way = " and ".join(name.removeprefix("CARRIER_").lower().replace("_", " ") for name in ways)
            found.setdefault(way.replace("grpc", "gRPC"), []).append(worker.name)
    return [f"payloads of {', '.join(names)}: {way}" for way, names in found.items()]


def holder(member: str) -> str:
    """Before what is held: whose it is. The model's needs no word."""
    return {"": "", "*": "strangers' "}.get(member, f"{member}'s ")


def status_json(status: pb.StatusReply) -> dict[str, Any]:
    """Field for field as in the .proto; numbers stay numbers, NaN is null."""
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
