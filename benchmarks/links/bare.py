"""Proof that a link is shaped, and the bare exchange that no peer can beat."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.links.network import FAST_BUCKET, Network
from benchmarks.loads import Load
from benchmarks.peers import Burst, watched
from benchmarks.peers.child import Child, Place, together

PROGRAM = ("-m", "benchmarks.programs.bare")
# Bytes of the small message, and the seconds of silence before it: a bucket that is too large lets it pass at once.
SMALL, SILENCE = 300_000, 1.0
# Seconds for which each direction is filled.
FILL = 1.0
# How far above the rate that shaping allows a measurement may lie, for clocks and the bucket's first filling.
TOLERANCE = 1.02


class NotShaped(RuntimeError):
    """The link carries more than its rate: what is measured on it says nothing."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Shares of the payload rate that a bare socket reached; `small` for one message after silence."""

    up: float
    down: float
    small: float


class BarePeer:
    """Workers that send as many bytes as the weights have, then receive as many; as a benchmark peer."""

    name, label = "bare", "bare socket"

    def __init__(self, places: Sequence[Place], logs: Path) -> None:
        """`places`: of the server, then of each worker."""
        self._places, self._logs = places, logs
        self._stack = ExitStack()
        self._workers: list[Child] = []
        self._nbytes = 0

    def start(self) -> None:
        server = self._child("bare-server", self._places[0])
        port = server.ask("listen", address=self._places[0].address)["port"]
        self._workers = [self._child(f"bare-{n}", place) for n, place in enumerate(self._places[1:])]
        together(self._workers, "connect", address=self._places[0].address, port=port)

    def _child(self, name: str, place: Place) -> Child:
        child = Child(name, PROGRAM, self._logs / f"{name}.log", place=place)
        self._stack.callback(child.close)
        return child

    def prepare(self, load: Load) -> None:
        self._nbytes, self._count = load.nbytes, load.workers

    def measure(self, steps: int) -> Burst:
        workers = self._workers[: self._count]
        return watched(
            [], lambda: together(workers, "exchange", up=self._nbytes, down=self._nbytes, steps=steps)
        )

    def release(self) -> None:
        """Nothing to release: connections stay for the next load."""

    def close(self) -> None:
        self._stack.close()

    def prove(self, network: Network) -> Proof:
        """Fill each direction, then send one small message after silence. Raises NotShaped, ChildError."""
        worker, rate = self._workers[0], network.payload_rate
        much = math.ceil(rate * FILL)
        up = much / rate / float(worker.ask("exchange", up=much, down=1, steps=1)["busy"])
        down = much / rate / float(worker.ask("exchange", up=1, down=much, steps=1)["busy"])
        took = float(worker.ask("exchange", up=1, down=SMALL, steps=1, pause=SILENCE)["busy"])
        proof = Proof(up, down, SMALL / rate / took)
        # A full bucket at each end of the link passes before the rate holds.
        free = 1 + 2 * FAST_BUCKET / much if rate > 1.25e8 else TOLERANCE
        if max(up, down) > max(TOLERANCE, free):
            raise NotShaped(f"expected at most the rate {network.rate}, got {max(up, down):.2f} times that")
        return proof
