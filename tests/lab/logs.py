"""A small writer of decision logs that pass all checks, for tests to break, and verbs to break them."""

import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pslab.check.checker import CheckResult, check_log
from pslab.runs.log import read_log
from psserver import weights_file
from psserver.weights_file import Saved

Record = dict[str, Any]


class FakeLog:
    """Writes what a coordinator would write. Tickets count from 1; an entry takes a tenth of a second."""

    def __init__(self, policy: str, *, workers: int = 3, **knobs: object) -> None:
        self.records: list[Record] = []
        self.version = 0
        self.bases: dict[int, tuple[str, int]] = {}
        self.say(
            "job",
            job="j",
            policy={"name": policy, **knobs},
            servers=2,
            workers=workers,
            seed=0,
            format=2,
        )
        self.workers = [f"w{rank}" for rank in range(workers)]
        for rank, worker in enumerate(self.workers):
            self.say("join", worker=worker, incarnation=0, rank=rank)
        self.say("initialise", worker="w0", ticket=1)
        self.say("model", variables="v", optimizer={"name": "sgd"})
        self.say("install", worker="w0", ticket=1, version=0)
        self.say("start", workers=workers)
        self._tickets = 1

    def say(self, kind: str, **fields: object) -> None:
        index = len(self.records)
        self.records.append({"i": index, "t": round(index / 10, 1), "kind": kind, **fields})

    def grant(self, worker: str, turn: int | None = None) -> int:
        self._tickets += 1
        self.bases[self._tickets] = (worker, self.version)
        extra = {} if turn is None else {"turn": turn}
        self.say("grant", worker=worker, ticket=self._tickets, version=self.version, **extra)
        return self._tickets

    def commit(self, ticket: int) -> None:
        worker = self.bases[ticket][0]
        self.say("commit", worker=worker, ticket=ticket, batch=ticket, samples=8, loss=0.5, norm=1.0)

    def fold(self, ticket: int) -> None:
        self.say("fold", ticket=ticket, factor=1.0)

    def apply(self, *tickets: int) -> None:
        scale = 1 / len(tickets)
        parts = []
        for ticket in tickets:
            worker, base = self.bases[ticket]
            staleness = self.version - base
            parts.append(
                {
                    "ticket": ticket,
                    "worker": worker,
                    "base": base,
                    "staleness": staleness,
                    "weight": scale,
                    "factor": 1.0,
                }
            )
        self.version += 1
        self.say("apply", version=self.version, scale=scale, lr_scale=1.0, parts=parts)

    def drop(self, ticket: int, reason: str = "stale") -> None:
        worker, base = self.bases[ticket]
        self.say("drop", worker=worker, ticket=ticket, staleness=self.version - base, reason=reason)

    def end(self) -> list[Record]:
        for worker in self.workers:
            self.say("done", worker=worker)
        self.say("stop", reason="all workers are done", version=self.version, success=True)
        for worker in self.workers:
            self.say("leave", worker=worker, reason="finished")
        return self.records


def sync_log(rounds: int = 3, workers: int = 3) -> list[Record]:
    """Barriers in which the contributions are folded as their turn comes."""
    log = FakeLog("sync", workers=workers, backup=0)
    for _ in range(rounds):
        tickets = [log.grant(worker, turn) for turn, worker in enumerate(log.workers)]
        for ticket in tickets[:-1]:
            log.commit(ticket)
            log.fold(ticket)
        log.commit(tickets[-1])
        log.apply(*tickets)
    return log.end()


def async_log(steps: int = 12, name: str = "async", **knobs: object) -> list[Record]:
    """Workers of unequal speed: w0 commits every other time."""
    log = FakeLog(name, **knobs)
    held = {worker: log.grant(worker) for worker in log.workers}
    for step in range(steps):
        worker = "w0" if step % 2 else log.workers[1 + step // 2 % 2]
        log.commit(held[worker])
        log.apply(held.pop(worker))
        if step < steps - 1:
            held[worker] = log.grant(worker)
    for worker, ticket in held.items():
        log.say("abandon", worker=worker, ticket=ticket, reason="no more data")
    return log.end()


def bounded_log(on_stale: str = "drop", aggregate: int = 2, max_staleness: int = 1) -> list[Record]:
    """w0 and w1 make updates of two; w2 comes too late once and is dropped."""
    log = FakeLog("bounded", aggregate=aggregate, max_staleness=max_staleness, on_stale=on_stale)
    slow = log.grant("w2")
    for _ in range(2):
        first, second = log.grant("w0"), log.grant("w1")
        log.commit(first)
        log.fold(first)
        log.commit(second)
        log.apply(first, second)
    log.commit(slow)
    log.drop(slow)
    log.commit(slow := log.grant("w2"))
    log.fold(slow)
    log.commit(last := log.grant("w0"))
    log.apply(slow, last)
    return log.end()


def text(records: list[Record]) -> str:
    return "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)


def verify(records: list[Record]) -> CheckResult:
    return check_log(read_log(io.StringIO(text(records))))


def find(records: list[Record], kind: str, nth: int = 0) -> Record:
    """The nth entry of a kind; -1 is the last."""
    return [record for record in records if record["kind"] == kind][nth]


def renumber(records: list[Record]) -> list[Record]:
    """Contiguous indices and times again, after entries were put in or taken out."""
    for index, record in enumerate(records):
        record["i"], record["t"] = index, index / 10
    return records


def without(kind: str, nth: int = 0) -> Callable[[list[Record]], None]:
    def take_out(records: list[Record]) -> None:
        records.remove(find(records, kind, nth))
        renumber(records)

    return take_out


def changed(kind: str, nth: int = 0, **fields: object) -> Callable[[list[Record]], None]:
    def change(records: list[Record]) -> None:
        find(records, kind, nth).update(fields)

    return change


def part_changed(nth: int = 0, part: int = 0, **fields: object) -> Callable[[list[Record]], None]:
    def change(records: list[Record]) -> None:
        find(records, "apply", nth)["parts"][part].update(fields)

    return change


def repeated(kind: str, nth: int = 0, **fields: object) -> Callable[[list[Record]], None]:
    """The entry a second time right behind itself, with some fields changed."""

    def repeat(records: list[Record]) -> None:
        record = find(records, kind, nth)
        records.insert(records.index(record) + 1, {**record, **fields})
        renumber(records)

    return repeat


def inserted(before: str, nth: int = 0, **fields: object) -> Callable[[list[Record]], None]:
    def insert(records: list[Record]) -> None:
        records.insert(records.index(find(records, before, nth)), {"i": 0, "t": 0.0, **fields})
        renumber(records)

    return insert


# By name they would stand in another order.
WEIGHTS = {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.ones(3, np.float32)}


def write_run(folder: Path, records: list[Record], **summary: object) -> Path:
    """A whole run folder around a log, with a summary, metrics and weights that agree with it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "decisions.jsonl").write_text(text(records))
    job = records[0]
    updates = [record for record in records if record["kind"] == "apply"]
    committed = Counter(record["worker"] for record in records if record["kind"] == "commit")
    dropped = Counter(record["worker"] for record in records if record["kind"] == "drop")
    staleness: dict[str, Counter[str]] = defaultdict(Counter)
    for update in updates:
        for part in update["parts"]:
            staleness[part["worker"]][str(part["staleness"])] += 1
    counts = {
        worker: {
            "committed": committed[worker],
            "applied": staleness[worker].total(),
            "dropped": dropped[worker],
            "pending": committed[worker] - staleness[worker].total() - dropped[worker],
        }
        for worker in sorted(committed)
    }
    saved = Saved(WEIGHTS, tuple(WEIGHTS))
    weights_file.save(folder / "weights.safetensors", WEIGHTS)
    agreed = {key: job[key] for key in ("job", "policy", "servers", "workers")} | {
        "optimizer": {"name": "sgd"},
        "versions": len(updates),
        "samples": 8 * committed.total(),
        "wall_seconds": 2.0,
        "metrics": {"loss": 0.1, "accuracy": 0.97},
        "contributions": counts,
        "staleness": staleness,
        "weights_sha256": saved.sha256(),
        "success": True,
        "reason": "all workers are done",
    }
    (folder / "summary.json").write_text(json.dumps(agreed | summary))
    lines = [
        {"t": update["t"], "version": update["version"], "samples": 8, "loss": 2 / (n + 1), "kind": "train"}
        for n, update in enumerate(updates)
    ]
    (folder / "metrics.jsonl").write_text(text(lines))
    return folder
