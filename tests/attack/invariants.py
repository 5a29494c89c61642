"""What must hold after an attack, whatever was sent: each function gives the sentences of what does not."""

import gc
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from pslab.check.checker import check_run
from pslab.replay.execution import Replay
from pslab.replay.records import read_records
from pslab.replay.run_folder import prove
from pslab.runs.folder import Run
from pswire.decisions.entries import Lost, Stop
from psworker.local import Trainer
from tests.patience import at_most

# How long threads and descriptors of the attack may take to go, in seconds.
SETTLING = at_most(10.0)
# Log lines of one round, in bytes: a few of every kind.
LOG_BYTES = 512 * 1024


@dataclass
class Heard(logging.Handler):
    """All that the process logs, and what its threads die of."""

    size: int = 0
    bad: list[str] = field(default_factory=list)
    # Of threads.
    deaths: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        self.size += len(text)
        if record.exc_info or "Traceback" in text:
            self.bad.append(f"a traceback in the log: {text[-2000:]}")

    __hash__ = logging.Handler.__hash__

    @property
    def problems(self) -> list[str]:
        if self.size > LOG_BYTES:
            return [*self.bad, f"{self.size} bytes of log"]
        return self.bad


@contextmanager
def listening() -> Iterator[Heard]:
    heard, root = Heard(), logging.getLogger()
    level, before = root.level, threading.excepthook

    def died(args: threading.ExceptHookArgs) -> None:
        heard.deaths.append(f"thread {args.thread} died of {args.exc_type.__name__}: {args.exc_value}")

    root.addHandler(heard)
    root.setLevel(logging.INFO)
    threading.excepthook = died
    try:
        yield heard
    finally:
        threading.excepthook = before
        root.setLevel(level)
        root.removeHandler(heard)


@contextmanager
def standing_still() -> Iterator[list[float]]:
    """The longest time, in seconds, by which a thread woke up late while this process computed nothing: the machine had
    no processor for it. What a process does to itself does not count.

    Servers and workers of a round take who is silent for some time for dead, and be it for such a reason."""
    over, longest = threading.Event(), [0.0]

    def watch() -> None:
        while not over.is_set():
            began, worked = time.monotonic(), time.process_time()
            over.wait(0.05)
            idle = time.monotonic() - began - (time.process_time() - worked)
            longest[0] = max(longest[0], idle - 0.05)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield longest
    finally:
        over.set()
        thread.join()


def spoilt_by(folder: Path, honest: Sequence[str], least: float) -> list[str]:
    """Of a run without a robust policy that diverged: nothing, if another's gradient of at least this norm was applied,
    or another set the learning rate so many times as large. Both are a member's right there. Else nobody is to blame.
    """
    records = [json.loads(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]
    applied = {part["ticket"] for r in records if r["kind"] == "apply" for part in r["parts"]}
    commits = [r for r in records if r["kind"] == "commit" and r["ticket"] in applied]
    norms = [r["norm"] or 0.0 for r in commits if r["worker"] not in honest]
    scales = [r["scale"] for r in records if r["kind"] == "rate" and r["worker"] not in honest]
    largest = max([*norms, *scales], default=0.0)
    if largest >= least:
        return []
    return [f"honest workers diverged, and no gradient nor learning rate of others is beyond {largest}"]


def lost(folder: Path, honest: Sequence[str]) -> list[str]:
    """Honest workers whom the servers gave up for a time, before the job stopped."""
    facts = takewhile(
        lambda fact: not isinstance(fact, Stop), (each.fact for each in Run(folder).decisions())
    )
    return [f"{fact.worker} was lost" for fact in facts if isinstance(fact, Lost) and fact.worker in honest]


def checked(folder: Path) -> list[str]:
    """`ps-lab check`."""
    return [f"ps-lab check: {violation}" for violation in check_run(Run(folder)).violations][:5]


def replayed(folder: Path, trainer: Trainer) -> list[str]:
    """`ps-lab replay`: every contribution computed anew, the final weights to the bit."""
    run = Run(folder)
    replay = Replay(read_records(run), trainer)
    result, proof = replay.run(), None
    if result.finished:
        proof = prove(run, replay)
    found = [] if result.first is None else [f"replay: {result.first}"]
    if proof is None or not proof.holds:
        found.append(f"replay: the final weights are others: {proof}")
    return found


@dataclass(frozen=True)
class Resources:
    """What this process holds."""

    threads: int
    descriptors: int
    memory: int

    @classmethod
    def now(cls) -> "Resources":
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        # Of gRPC's pool, idle threads live as long as anything knows the server: records of a log, say.
        threads = sum(not thread.name.startswith("rpc_") for thread in threading.enumerate())
        return cls(threads, len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGESIZE"))


def left_behind(before: Resources, memory: int) -> list[str]:
    """Threads and descriptors that stay, and more than `memory` bytes over what was there before."""
    deadline = time.monotonic() + SETTLING
    pause = threading.Event()
    while True:
        gc.collect()
        now = Resources.now()
        more = (now.threads - before.threads, now.descriptors - before.descriptors)
        # gRPC keeps a few of both for its next channel.
        if more[0] <= 4 and more[1] <= 16:
            break
        if time.monotonic() > deadline:
            names = [thread.name for thread in threading.enumerate()]
            return [f"{more[0]} threads and {more[1]} descriptors stay behind: {names}"]
        pause.wait(0.05)
    grown = now.memory - before.memory
    return [f"{grown / 2**20:.0f} MiB more memory than before"] if grown > memory else []
