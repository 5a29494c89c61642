"""Verbs for tests of local rules: one worker, without servers."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psworker.local import Gradient, LocalWork, build, by_ticket
from psworker.local.rule import RuleResult

Floats = NDArray[np.float32]
ADAMW = {"weight_decay": 0.1, "beta_1": 0.9, "beta_2": 0.99, "epsilon": 1e-8}


def flats(*values: Iterable[float]) -> list[Floats]:
    return [np.array(list(each), np.float32) for each in values]


def descending(compute: Callable[[Floats], Any], state: int = 0) -> Gradient:
    """The gradient of a function of all servers' payloads in a row; the last `state` elements of the last
    payload are state, to which every batch adds its number. The loss is the batch's number too."""

    def gradient(weights: list[Floats], batch: int) -> RuleResult:
        whole = np.concatenate(weights)
        g = np.asarray(compute(whole), np.float32)
        if state:
            g[-state:] = batch
        parts = np.split(g, np.cumsum([flat.size for flat in weights])[:-1])
        norm = float(np.linalg.norm(g[: g.size - state].astype(np.float64)))
        return RuleResult(parts, float(batch), norm, samples=3)

    return gradient


def worker(name: str, sizes: Iterable[int], **knobs: float) -> LocalWork:
    """`sizes`: trainable elements per server."""
    return LocalWork(build(name, knobs, list(sizes)))


def contribute(work: LocalWork, weights: list[Floats], gradient: Gradient, count: int = 1) -> Any:
    """One committed ticket of `count` batches, numbered 0, 1, ..."""
    result = work.payload(weights, gradient, range(count))
    work.keep()
    return result


def portions(count: int, steps: int) -> list[tuple[list[int], int, bool]]:
    """(batches, last, more) of every portion of `count` numbered batches."""
    source = by_ticket(((number, 10 * number) for number in range(count)), steps)
    return [(list(portion), portion.last, portion.more) for portion in source]
