"""What translations of a framework's optimizer into the servers' [optimizer] have in common."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from pswire.logs.events import event
from psworker.errors import Unsupported

log = logging.getLogger("ps-worker")

Config = dict[str, Any]
LEAST = float(np.finfo(np.float32).tiny)


class TranslationError(Unsupported, ValueError):
    """The optimizer has no equal on the servers; the text names the nearest that has."""


def beginning(rate: float) -> float:
    """The rate that a job begins with. A later one is a multiple of it, so that 0, the beginning of a warm-up, is the
    least normal number of float32 here: it moves nothing."""
    return rate or LEAST


def single(value: Any) -> Any:
    """As a plain number or list; a float as the shortest decimal with the same float32."""
    if isinstance(value, list | tuple):
        return [single(each) for each in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    return float(str(np.float32(value)))


def warn_of_clipping(what: str, workers: int) -> None:
    """Say so where several workers clip, each its own gradient."""
    if workers > 1:
        log.warning(
            "each worker clips its own gradient (%s), because several servers have no norm of the mean; with one "
            "server the mean is clipped, as one process on all batches does it",
            what,
            extra=event("workers_clip"),
        )
