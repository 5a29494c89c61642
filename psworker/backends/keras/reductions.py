"""Whether n workers under a barrier equal one process: servers take the mean of gradients, weighed by samples."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import keras

from pswire.logs.events import event

log = logging.getLogger("ps-worker")

# How a batch's loss follows from those of its samples, where that is no mean over samples.
_OTHERS = {
    "sum": "sums over the samples of a batch, so one update of all workers is as large as one of a single worker",
    "mean_with_sample_weight": "divides by the sum of the sample weights, which may differ from batch to batch",
    None: "is not reduced to one number by Keras",
}


def warn_of_reduction(loss: Any, model: Any = None) -> None:
    """Warn once where `loss`, as Keras' `compile` takes it, is known to be no mean over samples. `model`: whose
    outputs Keras gives to it; with a mask, if layers made one."""
    outputs = getattr(model, "outputs", None) or ()
    if any(getattr(output, "_keras_mask", None) is not None for output in outputs):
        _warn_of_mask()
    for one in keras.tree.flatten(loss):
        reduction = getattr(one, "reduction", "sum_over_batch_size")
        if isinstance(one, keras.losses.Loss) and reduction in _OTHERS:
            _warn(type(one).__name__, str(reduction), _OTHERS[reduction])


@cache
def _warn_of_mask() -> None:
    log.warning(
        "an output of the model has a mask: Keras divides the loss by what is not masked, which may differ from batch "
        "to batch. Servers average gradients over workers, weighed by samples: several workers then differ from one "
        "process with all the samples; an output without a mask, or batches of equal lengths, do not",
        extra=event("loss_reduction", reduction="mask"),
    )


@cache
def _warn(name: str, reduction: str, what: str) -> None:
    log.warning(
        "the loss %s has reduction=%r: it %s. Servers average gradients over workers, weighed by samples: several "
        "workers then differ from one process with all the samples; the default reduction does not",
        *(name, reduction, what),
        extra=event("loss_reduction", reduction=reduction),
    )
