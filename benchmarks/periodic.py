"""What periodic checkpoints cost: steps per second without and with them, in turns, for models of several sizes."""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.checkpoints import Server, complete, started, take
from psworker import connect

Rates = list[float]
# Before the clock runs, in steps.
WARM_UP = 5


@dataclass(frozen=True, slots=True)
class Row:
    """Of one model: steps per second in each round, and how many checkpoints were complete in all."""

    mb: float
    without: Rates
    having: Rates
    checkpoints: int

    @property
    def ratio(self) -> float:
        """The median of the ratios within the rounds."""
        return statistics.median(b / a for a, b in zip(self.without, self.having, strict=True))

    def text(self) -> str:
        plain, having = statistics.median(self.without), statistics.median(self.having)
        return f"{self.mb:8.2f}  {plain:12.1f}  {having:12.1f}  {self.ratio:7.3f}  {self.checkpoints:11d}"


def title(every: str, seconds: float, rounds: int) -> str:
    return (
        f"\nperiodic checkpoints, every {every}: adam, one worker that only communicates, {rounds} rounds of "
        f"{seconds:g} s each\n"
        "      MB  without, 1/s     with, 1/s    ratio  checkpoints"
    )


def measure(
    mb: float, every: str, seconds: float, rounds: int, folder: Path, say: Callable[[str], object]
) -> Row:
    """In turns, which of the two is first changing from round to round; each time on a server of its own."""
    rates: dict[str, Rates] = {"": [], every: []}
    count = 0
    for number in range(rounds):
        order: Sequence[str] = ("", every) if number % 2 == 0 else (every, "")
        for option in order:
            say(f"{mb:g} MB, {'with' if option else 'without'} checkpoints, round {number + 1} of {rounds}")
            with tempfile.TemporaryDirectory(dir=folder) as root:
                out = Path(root) / "run"
                options = ("--checkpoint-every", option) if option else ()
                with started(out, *options) as server:
                    rates[option].append(_rate(server, mb, seconds))
                count += len(complete(out)) if option else 0
    return Row(mb, rates[""], rates[every], count)


def _rate(server: Server, mb: float, seconds: float) -> float:
    """Steps per second, over so many seconds."""
    elements = max(1, int(mb * 1e6 / 4))
    start = {"w": np.random.default_rng(0).normal(size=elements).astype(np.float32)}
    with connect(server.address, start) as session:
        gradient = [np.full(shard.elements, 1e-3, np.float32) for shard in session.plan.shards]
        for _ in range(WARM_UP):
            take(session, gradient, 0.0)
        began, steps = time.monotonic(), 0
        while (now := time.monotonic()) - began < seconds:
            take(session, gradient, 0.0)
            steps += 1
        return steps / (now - began)
