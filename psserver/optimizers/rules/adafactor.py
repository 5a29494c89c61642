"""Adafactor: steps scaled by mean squared gradients; a matrix keeps only the means of its rows and columns.

With t = 1, 2, ..., b = 1 - t**beta_2_decay and q = g*g + epsilon_1, for each variable::

    two dimensions and more, over the last two:
        r' = b * r + (1 - b) * mean(q, columns)
        c' = b * c + (1 - b) * mean(q, rows)
        v = (r' / mean(r')) * c'
    fewer:
        v' = b * v + (1 - b) * q
    u = g / sqrt(v)
    x' = x - max(epsilon_2, rms(x)) * min(rate, 1 / sqrt(t)) * u / max(1, rms(u) / clip_threshold)

rms is the root of the mean square. Shazeer & Stern (ICML 2018), algorithms 4 and 5 without momentum;
keras.optimizers.Adafactor, within rounding: means are computed in float64 here. Keras' `relative_step` has no effect
there and is not a knob here. Where a row and a column have both been zero from the start, Keras divides zero by zero;
here the step is 0. Each variable must lie whole on one server.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psserver.optimizers.blocks import BLOCK, TINY, Array, bounded, pieces, squares
from psserver.optimizers.rule import WholeRule, decay_knob, decayed
from pswire.knobs import number


@dataclass(frozen=True, slots=True)
class Adafactor(WholeRule):
    """Steps relative to the size of each variable, from mean squares of its rows and columns."""

    learning_rate: ClassVar[float] = 0.001
    # The mean squares of a vector are in `rows`; elements that a matrix does not need stay 0.
    slots: ClassVar[tuple[str, ...]] = ("rows", "columns")
    needs: ClassVar[str] = "keeps means over rows and columns of whole variables"

    beta_2_decay: float = number(-0.8, "exponent of the step number in the decay of averages", at_most=0)
    epsilon_1: float = number(1e-30, "added to squared gradients", above=0)
    epsilon_2: float = number(1e-3, "the least size of a variable that steps are relative to", at_least=0)
    clip_threshold: float = number(1.0, "the largest root mean square of a step before the rate", above=0)
    weight_decay: float = decay_knob()

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
        fresh = np.float32(math.pow(step, np.float32(self.beta_2_decay)))
        kept = np.float32(1) - fresh
        np.multiply(g, g, out=out)
        np.add(out, np.float32(self.epsilon_1), out=out)
        if len(shape) < 2:
            _mix(state["rows"], out, kept, fresh)
            np.copyto(out, state["rows"])
        else:
            _factored(out.reshape(-1, *shape[-2:]), state, kept, fresh)
        # Roots of subnormal numbers lose their digits.
        np.maximum(out, TINY, out=out)
        np.sqrt(out, out=out)
        np.divide(g, out, out=g)
        size = sum(squares(g[block]) for block in pieces(x.size))
        clip = max(1.0, math.sqrt(size / x.size) / self.clip_threshold)
        weights = sum(squares(decayed(x[block], rate, decay, out[block])) for block in pieces(x.size))
        relative = max(self.epsilon_2, math.sqrt(weights / x.size)) * min(float(rate), 1 / math.sqrt(step))
        length = bounded(relative / clip)
        for block in pieces(x.size):
            start = decayed(x[block], rate, decay, out[block])
            np.multiply(g[block], length, out=g[block])
            np.subtract(start, g[block], out=out[block])


def _factored(q: Array, state: Mapping[str, Array], kept: np.float32, fresh: np.float32) -> None:
    """Replace `q`, matrices of shape (n, rows, columns), by v, and advance `state`."""
    count, height, width = q.shape
    rows = state["rows"][: count * height].reshape(count, height)
    columns = state["columns"][: count * width].reshape(count, width)
    for matrix, row, column in zip(q, rows, columns, strict=True):
        total, means = np.zeros(width, np.float64), np.empty(height, np.float32)
        some = max(1, BLOCK // width)
        for start in range(0, height, some):
            part = matrix[start : start + some]
            means[start : start + some] = part.mean(axis=1, dtype=np.float64)
            total += part.sum(axis=0, dtype=np.float64)
        _mix(row, means, kept, fresh)
        _mix(column, (total / height).astype(np.float32), kept, fresh)
        ratio = row / max(np.float32(row.mean(dtype=np.float64)), TINY)
        for start in range(0, height, some):
            np.multiply(ratio[start : start + some, None], column, out=matrix[start : start + some])


def _mix(mean: Array, new: Array, kept: np.float32, fresh: np.float32) -> None:
    """Set `mean` to ``kept * mean + fresh * new``; `new` is scratch."""
    np.multiply(mean, kept, out=mean)
    np.multiply(new, fresh, out=new)
    np.add(mean, new, out=mean)
