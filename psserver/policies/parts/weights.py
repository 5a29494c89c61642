"""Weight: the factor of a contribution that is tau versions old. One class per family; a fresh one has factor 1.

A family serves as the weight of a gradient or as a scale of the learning rate. For SGD these are equivalent, for
momentum and Adam they differ.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Weight(Protocol):
    """A factor by staleness."""

    def __call__(self, staleness: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Constant:
    """1 at any age: no weighting."""

    def __call__(self, staleness: int) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class Inverse:
    """1 / max(1, tau) (staleness-aware SGD: Zhang et al. 2016)."""

    def __call__(self, staleness: int) -> float:
        return 1.0 / max(1, staleness)


@dataclass(frozen=True, slots=True)
class Polynomial:
    """(1 + tau) ** -a (FedAsync: Xie et al. 2019; FedBuff: Nguyen et al. 2022, a = 1/2)."""

    a: float

    def __call__(self, staleness: int) -> float:
        return float((1 + staleness) ** -self.a)


@dataclass(frozen=True, slots=True)
class Hinge:
    """1 up to b, then 1 / (a (tau - b) + 1) (FedAsync: Xie et al. 2019)."""

    a: float
    b: int

    def __call__(self, staleness: int) -> float:
        return 1.0 / (self.a * max(0, staleness - self.b) + 1.0)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """M / max(M, tau): full weight while at most M versions old (Mishchenko et al. 2022)."""

    m: int

    def __call__(self, staleness: int) -> float:
        return self.m / max(self.m, staleness)


# Name in an experiment file -> family; a and b are knobs.
FAMILIES: dict[str, Callable[[float, int], Weight]] = {
    "const": lambda a, b: Constant(),
    "inverse": lambda a, b: Inverse(),
    "polynomial": lambda a, b: Polynomial(a),
    "hinge": Hinge,
}
