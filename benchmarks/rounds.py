"""Interleaved repetitions: in every round each peer has one burst."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from benchmarks.kinds import GRPC, TF
from benchmarks.loads import MB, Load
from benchmarks.peers import Burst, Peer, calibrated
from benchmarks.samples import Samples, collected

# Below this share of the bytes that must have moved, a measurement is void.
MOVED = 0.98


@dataclass(frozen=True)
class Pace:
    """How long to measure: `seconds` per burst, and at least `least` steps; `rounds` of bursts."""

    seconds: float
    rounds: int
    least: int = 4


@dataclass(frozen=True)
class Row:
    """All bursts on one load, by peer, in the order of the rounds."""

    load: Load
    bursts: dict[str, list[Burst]] = field(default_factory=dict)

    def rate(self, peer: str) -> Samples:
        """Steps per second, all workers together."""
        return collected([burst.rate for burst in self.bursts[peer]])

    def ratio(self, peer: str, other: str) -> Samples:
        """The rate of `peer` as a multiple of `other`'s, round by round."""
        return self.rate(peer).per(self.rate(other))


class TooFewBytes(RuntimeError):
    """A peer cannot have done what it was measured for."""


Say = Callable[[str], None]
Each = TypeVar("Each")


def measure(load: Load, peers: Sequence[Peer], pace: Pace, say: Say) -> Row:
    """Prepare all peers, let them take turns, release them. Raises ChildError, TooFewBytes."""
    row = Row(load)
    steps: dict[str, int] = {}
    for peer in peers:
        say(f"{load.name}: preparing {peer.label}")
        peer.prepare(load)
        steps[peer.name] = calibrated(peer, pace.seconds, pace.least)
    for turn in range(pace.rounds):
        say(f"{load.name}: round {turn + 1} of {pace.rounds}")
        for peer in rotated(peers, turn):
            row.bursts.setdefault(peer.name, []).append(peer.measure(steps[peer.name]))
    for peer in peers:
        peer.release()
    return row


def rotated(peers: Sequence[Each], turn: int) -> list[Each]:
    """Begin with another peer each turn, so that none always follows the same neighbour."""
    first = turn % len(peers) if peers else 0
    return [*peers[first:], *peers[:first]]


def check_bytes(row: Row) -> None:
    """Raise TooFewBytes unless every peer on TCP moved all weights and gradients: graph optimizers are clever."""
    for name in (TF, GRPC):
        for burst in row.bursts.get(name, ()):
            wanted = 2 * row.load.nbytes * burst.steps
            if burst.loopback < MOVED * wanted:
                raise TooFewBytes(
                    f"{row.load.name}: {burst.steps} steps of {name} must move {wanted / MB:.0f} MB, but the "
                    f"loopback interface carried {burst.loopback / MB:.0f} MB"
                )
