"""Interleaved repetitions: in every round each peer has one burst, and the machine's limits are taken."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from benchmarks.kinds import GRPC, TF, TF_PACKED
from benchmarks.loads import MB, Load
from benchmarks.measures.limits import Limits
from benchmarks.measures.samples import Samples, collected
from benchmarks.peers import Burst, Peer, calibrated

# Below this share of the bytes that must have moved, a measurement is void.
MOVED = 0.98


@dataclass(frozen=True)
class Mode:
    """How long to measure: `seconds` per burst, `rounds` of bursts, `limits` seconds on limits a round."""

    name: str
    seconds: float
    rounds: int
    limits: float
    # Whether to measure TensorFlow with several steps per call, too.
    packed: bool
    # Fewer steps than this are no burst, however slow they are.
    least: int = 4


SHORT = Mode("short", seconds=0.4, rounds=3, limits=0.5, packed=False)
FULL = Mode("full", seconds=1.5, rounds=7, limits=0.7, packed=True)
MODES = {mode.name: mode for mode in (SHORT, FULL)}


@dataclass(frozen=True)
class Row:
    """All that was measured on one load: bursts by peer and limits by name, in the order of the rounds."""

    load: Load
    bursts: dict[str, list[Burst]] = field(default_factory=dict)
    limits: dict[str, list[float]] = field(default_factory=dict)

    def rate(self, peer: str) -> Samples:
        """Steps per second, all workers together."""
        return collected([burst.rate for burst in self.bursts[peer]])

    def moved(self, peer: str) -> Samples:
        """GB/s of weights out and gradients back, counted in float32."""
        return collected([2 * self.load.nbytes * burst.rate / 1e9 for burst in self.bursts[peer]])

    def limit(self, name: str) -> Samples:
        return collected(self.limits[name])


class TooFewBytes(RuntimeError):
    """A peer cannot have done what it was measured for."""


Progress = Callable[[str], None]
Each = TypeVar("Each")


def measure(load: Load, peers: Sequence[Peer], mode: Mode, limits: Limits, progress: Progress) -> Row:
    """Prepare all peers, let them take turns, release them. Raises ChildError, TooFewBytes."""
    row = Row(load)
    steps: dict[str, int] = {}
    for peer in peers:
        progress(f"{load.name}: preparing {peer.label}")
        peer.prepare(load)
        steps[peer.name] = calibrated(peer, mode.seconds, mode.least)
    for turn in range(mode.rounds):
        progress(f"{load.name}: round {turn + 1} of {mode.rounds}")
        for name, value in limits.measure(mode.limits).items():
            row.limits.setdefault(name, []).append(value)
        for peer in rotated(peers, turn):
            row.bursts.setdefault(peer.name, []).append(peer.measure(steps[peer.name]))
    for peer in peers:
        peer.release()
    _check(row)
    return row


def rotated(peers: Sequence[Each], turn: int) -> list[Each]:
    """Begin with another one each turn, so that none always follows the same neighbour."""
    first = turn % len(peers) if peers else 0
    return [*peers[first:], *peers[:first]]


def _check(row: Row) -> None:
    """Every peer on TCP must have moved all weights and all gradients: optimizers of graphs are clever."""
    for name in (TF, TF_PACKED, GRPC):
        for burst in row.bursts.get(name, ()):
            wanted = 2 * row.load.nbytes * burst.steps
            if burst.loopback < MOVED * wanted:
                raise TooFewBytes(
                    f"{row.load.name}: {burst.steps} steps of {name} must move {wanted / MB:.0f} MB, but the "
                    f"loopback interface carried {burst.loopback / MB:.0f} MB"
                )
