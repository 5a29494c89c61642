"""DANA-Zero: a velocity for each worker, and versions that are the look-ahead point at which workers take gradients.

For a gradient g of worker i, with s = rate * g,

    m_i' = momentum * m_i - s,  x' = x + (momentum * m_i' - s)

which is `nesterov` on the velocity of the worker that sent the gradient.

Hakimi, Barkai, Gabel and Schuster (2019), Taming Momentum in a Distributed Asynchronous Environment, algorithm 4, keeps
v_i' = momentum v_i + g and the model y' = y - rate v_i', and sends workers y - rate momentum sum_j v_j, which is
our x: its change is -rate v_i' - rate momentum (v_i' - v_i) = -rate (momentum v_i' + g), where the other workers'
velocities cancel out. So only x is kept, as in DANA-Slim, whose workers send momentum v_i' + g themselves. As with
`nesterov`, the final version is the look-ahead point.
"""

from dataclasses import dataclass
from typing import ClassVar

from psserver.optimizers.rules.nesterov import Nesterov


@dataclass(frozen=True, slots=True)
class DanaZero(Nesterov):
    """Nesterov momentum with a velocity for each worker, for asynchronous gradients."""

    per_worker: ClassVar[bool] = True
