"""A decision log in the Trace Event Format, for Perfetto (ui.perfetto.dev) and other viewers.

Format: "Trace Event Format", Google, in its JSON object form. Each worker has a lane (thread) with a slice per ticket,
which contains pull, compute and push. There is a lane of updates, and a flow from every contribution to the update that
applied it; its marks are changes of the policy, notes, checkpoints, restores and the stop. Times are microseconds of
the log's clock.
"""

import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pslab.display.status import finite_or_none
from pslab.runs.folder import SIMULATED
from pslab.runs.log import Line
from pslab.runs.work import (
    COMPUTING,
    RECEIVING,
    SENDING,
    WAITING,
    WASTED,
    Stretch,
    TicketTime,
    WorkFold,
)
from psserver.decisions import entries as facts
from pswire.own_files import new_file

Event = dict[str, Any]

WORKERS, COORDINATOR = 1, 2
UPDATES = 1
# Entries that are marks.
MARKS = (
    *(facts.Join, facts.Leave, facts.Lost, facts.Back, facts.Done, facts.Rate),
    *(facts.Drop, facts.Cancel, facts.Abandon),
    *(facts.Stop, facts.Policy, facts.Note, facts.Checkpoint, facts.Restore),
)
# Names of slices by kind of stretch. Unreported work is only part of the ticket's slice.
NAMES = {
    COMPUTING: "compute",
    RECEIVING: "pull",
    SENDING: "push",
    WAITING: "wait for grant",
    WASTED: "wasted",
}


def write_trace(entries: Iterable[Line], target: Path) -> int:
    """Write the trace of a log incrementally, without loading it into memory; return the number of events.

    Raises OSError when `target` cannot be written, and what reading `entries` raises; then no file is left.
    """
    part = target.with_name(f"{target.name}.part")
    count = 0
    tracer = Tracer()
    try:
        with io.TextIOWrapper(new_file(part), encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[')
            for event in tracer.events(entries):
                file.write(",\n" if count else "\n")
                file.write(json.dumps(event, allow_nan=False, separators=(",", ":")))
                count += 1
            file.write(f'\n],"otherData":{json.dumps(tracer.about)}}}\n')
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return count


class Tracer:
    """Converts the entries of one log into trace events. `about` is complete once they are read."""

    def __init__(self) -> None:
        self.about: dict[str, str] = {}
        self._log = WorkFold()
        self._lanes: dict[str, int] = {}
        # Committed work whose fate is unknown, by ticket.
        self._pending: dict[int, TicketTime] = {}
        # End of the last update's slice in nanoseconds.
        self._updated = 0

    def events(self, entries: Iterable[Line]) -> Iterator[Event]:
        """Yield the events of a whole log."""
        yield from (_process(WORKERS, "workers"), _process(COORDINATOR, "coordinator"))
        yield from _thread(COORDINATOR, UPDATES, "updates")
        for entry in entries:
            yield from self._see(entry.fact, entry.t)
        for work in self._pending.values():
            yield from self._worked(work, {"fate": "pending"})

    def _see(self, fact: facts.Entry, t: float) -> Iterator[Event]:
        worker = getattr(fact, "worker", None)
        if isinstance(worker, str) and worker not in self._lanes:
            self._lanes[worker] = len(self._lanes) + 1
            yield from _thread(WORKERS, self._lanes[worker], worker)
        for work in self._log.work(fact, t):
            if work.commit is None:
                yield from self._worked(work, {"fate": "no contribution"})
            else:
                self._pending[work.ticket] = work
        yield from self._event(fact, t)

    def _event(self, fact: facts.Entry, t: float) -> Iterator[Event]:
        if isinstance(fact, MARKS):
            yield self._mark(fact, t)
        match fact:
            case facts.Commit():
                yield self._waiting(t)
            case facts.Apply():
                yield from self._applied(fact, t)
            case facts.Drop(_, ticket, staleness, reason):
                if (work := self._pending.pop(ticket, None)) is not None:
                    args = {"fate": "dropped", "staleness": staleness, "reason": reason}
                    yield from self._worked(work, args)
                yield self._waiting(t)
            case facts.Install():
                yield _counter("version", t, {"value": 0})
            case facts.Model():
                self.about["optimizer"] = json.dumps(fact.optimizer)
            case facts.Job():
                self._about_job(fact)

    def _mark(self, fact: facts.Entry, t: float) -> Event:
        """Return an entry as a mark in its worker's lane, or in that of the updates."""
        worker = getattr(fact, "worker", None)
        lane = (WORKERS, self._lanes[worker]) if isinstance(worker, str) else (COORDINATOR, UPDATES)
        at = {"pid": lane[0], "tid": lane[1], "ts": _us(_ns(t))}
        return {
            "ph": "i",
            "s": "t",
            "name": fact.sentence(),
            "cat": fact.kind,
            **at,
            "args": fact.to_json(),
        }

    def _about_job(self, job: facts.Job) -> None:
        virtual = job.job.startswith(SIMULATED)
        self.about = {
            "job": job.job,
            "policy": json.dumps(job.policy),
            "clock": "virtual seconds of the simulator" if virtual else "seconds since the job began",
        }

    # Lanes of workers

    def _worked(self, work: TicketTime, fate: Mapping[str, Any]) -> Iterator[Event]:
        lane = self._lanes[work.worker]
        for stretch in work.before:
            yield from _inner(stretch, lane)
        args: dict[str, Any] = {"ticket": work.ticket, "from version": work.base, **fate}
        if work.commit is not None:
            args |= {"samples": work.commit.samples, "loss": finite_or_none(work.commit.loss)}
        begin, nanoseconds = _span(work)
        name = f"ticket {work.ticket}, version {work.base}"
        yield _slice(name, "ticket", WORKERS, lane, begin, nanoseconds, args)
        for stretch in work.held:
            yield from _inner(stretch, lane)

    # Lane of the coordinator

    def _applied(self, apply: facts.Apply, t: float) -> Iterator[Event]:
        """Yield an update, whose slice runs from the first commit of its parts to the moment when it was made."""
        work = [self._pending.pop(part.ticket, None) for part in apply.parts]
        begin = max(min([_ns(one.end) for one in work if one] or [_ns(t)]), self._updated)
        self._updated = end = max(_ns(t), begin + 1)
        ages = [part.staleness for part in apply.parts]
        losses = [one.commit.loss for one in work if one and one.commit]
        args = {"contributions": len(apply.parts), "staleness": ages, "lr_scale": apply.lr_scale}
        yield _slice(f"version {apply.version}", "update", COORDINATOR, UPDATES, begin, end - begin, args)
        for part, one in zip(apply.parts, work, strict=True):
            if one is not None:
                yield from self._contributed(one, part, apply.version, end)
        yield _counter("version", t, {"value": apply.version})
        yield _counter("staleness", t, {"mean": sum(ages) / len(ages), "max": max(ages)})
        yield from _loss(losses, t)
        yield self._waiting(t)

    def _contributed(self, work: TicketTime, part: facts.Part, version: int, end: int) -> Iterator[Event]:
        fate = {"fate": f"applied in version {version}", "staleness": part.staleness, "weight": part.weight}
        yield from self._worked(work, fate)
        begin, nanoseconds = _span(work)
        both = {"name": "contribution", "cat": "contribution", "id": part.ticket}
        source = {"pid": WORKERS, "tid": self._lanes[work.worker], "ts": _us(begin + nanoseconds - 1)}
        target = {"pid": COORDINATOR, "tid": UPDATES, "ts": _us(end - 1)}
        yield {"ph": "s", **both, **source}
        yield {"ph": "f", "bp": "e", **both, **target, "args": {"staleness": part.staleness}}

    def _waiting(self, t: float) -> Event:
        return _counter("pending", t, {"value": len(self._pending)})


def _loss(losses: Sequence[float | None], t: float) -> Iterator[Event]:
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    if finite:
        yield _counter("loss", t, {"value": sum(finite) / len(finite)})


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _span(work: TicketTime) -> tuple[int, int]:
    """Return begin and length in nanoseconds; at least one, because a flow must begin inside a slice."""
    begin = _ns(work.begin)
    return begin, max(_ns(work.end) - begin, 1)


def _inner(stretch: Stretch, lane: int) -> Iterator[Event]:
    begin, end = _ns(stretch.begin), _ns(stretch.end)
    if end > begin and stretch.kind in NAMES:
        yield _slice(NAMES[stretch.kind], "work", WORKERS, lane, begin, end - begin)


def _slice(
    name: str,
    category: str,
    process: int,
    thread: int,
    begin: int,
    nanoseconds: int,
    args: Mapping[str, Any] | None = None,
) -> Event:
    event = {"ph": "X", "name": name, "cat": category, "pid": process, "tid": thread}
    event |= {"ts": _us(begin), "dur": _us(nanoseconds)}
    return event | {"args": dict(args)} if args is not None else event


def _counter(name: str, t: float, values: Mapping[str, float]) -> Event:
    return {"ph": "C", "name": name, "pid": COORDINATOR, "ts": _us(_ns(t)), "args": dict(values)}


def _process(number: int, name: str) -> Event:
    return {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}


def _thread(process: int, number: int, name: str) -> Iterator[Event]:
    at = {"ph": "M", "pid": process, "tid": number}
    yield {**at, "name": "thread_name", "args": {"name": name}}
    yield {**at, "name": "thread_sort_index", "args": {"sort_index": number}}
