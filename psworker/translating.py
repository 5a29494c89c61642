"""Shared parts of the translations from a framework's optimizer into the servers' [optimizer]."""

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
    """The optimizer has no equivalent on the servers; the text names the nearest that has one."""


def beginning(rate: float) -> float:
    """Return the learning rate for a job to begin with.

    Later rates are multiples of it, so 0, the beginning of a warm-up, becomes the least normal float32: it moves
    nothing.
    """
    return rate or LEAST


def single(value: Any) -> Any:
    """Return a plain number or list; a float becomes the shortest decimal with the same float32."""
    if isinstance(value, list | tuple):
        return [single(each) for each in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    return float(str(np.float32(value)))


def warn_of_clipping(what: str, workers: int) -> None:
    """Warn if several workers clip, each its own gradient."""
    if workers > 1:
        log.warning(
            "each worker clips its own gradient (%s), because several servers have no norm of the mean; with one "
            "server the mean is clipped, as one process on all batches does it",
            what,
            extra=event("workers_clip"),
        )
