"""Rules that see a whole variable: its norm, its rows and columns.

All others are elementwise, so that a variable may lie on several servers. These need each variable whole on one: a
job whose plan splits one is refused (`psserver.shard.shard`). They run in numpy, in one thread, variable by variable,
block by block. Sums over a variable are made in float64, each block's by numpy's pairwise summation and the blocks' in
their order: a function of the numbers alone, so that replays and restored runs have the same bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from psserver.optimizers.blocks import BLOCK, LARGEST, Array, clear_subnormals
from psserver.optimizers.magnitudes import Bounds, Magnitudes


class Part(NamedTuple):
    """A whole variable: elements [start, stop) of an arena."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


class WholeRule(ABC):
    """As `psserver.optimizers.rule.Rule`, with `step_whole` in place of `step`, and with `bounds` of its own.

    Slots are as large as the arena here, too: a variable's part of one is this rule's to use.
    """

    __slots__ = ()

    learning_rate: ClassVar[float]
    slots: ClassVar[tuple[str, ...]]
    # Why parts of a variable are not enough.
    needs: ClassVar[str]
    initial: ClassVar[float] = 0.0
    step_slot: ClassVar[str | None] = None
    per_worker: ClassVar[bool] = False
    weight_decay: float

    @abstractmethod
    def step_whole(
        self,
        x: Array,
        g: Array,
        out: Array,
        state: Mapping[str, Array],
        shape: tuple[int, ...],
        *,
        rate: np.float32,
        step: int,
        decay: np.float32 | None,
    ) -> None:
        """Update number `step` (the first is 1) of one variable of `shape`; flat arrays, at least one element.

        Reads `x`, leaves the new values in `out`, advances `state`; `g` is scratch afterwards.
        """

    @abstractmethod
    def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
        """How large the numbers of that update can become: see `psserver.optimizers.magnitudes`."""


def run(
    rule: WholeRule,
    parts: Sequence[Part],
    spared: Sequence[tuple[int, int]],
    x: Array,
    g: Array,
    out: Array,
    state: Mapping[str, Array],
    *,
    rate: np.float32,
    step: int,
    factors: Sequence[np.float32],
    sweep: bool,
) -> bool:
    """One update of an arena of `parts`; those in `spared` do not decay. False where a number is not finite."""
    good = True
    with np.errstate(all="ignore"):
        for part in parts:
            here = slice(part.start, part.stop)
            slots = {name: slot[here] for name, slot in state.items()}
            gradient = g[here]
            for factor in factors:
                np.multiply(gradient, factor, out=gradient)
            stays = not rule.weight_decay or (part.start, part.stop) in spared
            decay = None if stays else np.float32(rule.weight_decay)
            rule.step_whole(
                x[here], gradient, out[here], slots, part.shape, rate=rate, step=step, decay=decay
            )
            for written in (out[here], *slots.values()):
                good = all(bool(np.isfinite(written[each]).all()) for each in pieces(written.size)) and good
            if sweep:
                for slot in slots.values():
                    clear_subnormals(slot, scratch=gradient)
    return good


def pieces(size: int) -> Iterator[slice]:
    """Consecutive blocks that stay in the cache."""
    return (slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK))


def squares(block: Array) -> float:
    """The sum of the squares of one block."""
    return float(np.square(block, dtype=np.float64).sum())


def bounded(value: float) -> np.float32:
    """In float32, at most its largest number."""
    return np.float32(min(value, float(LARGEST)))
