"""`Remote`: a Keras model and its optimizer on parameter servers, for training loops of one's own.

A model with several optimizers (a GAN) has a `Remote` for each: an optimizer is a job.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import keras

import psworker.remote
from psworker.backends import Model
from psworker.backends.keras import KerasModel, backend, collect
from psworker.backends.lookups import tables_of
from psworker.connection import Hosts, Where
from psworker.keras.translate import translate, warn_of_clipping, worker_clips
from psworker.optimizers import TranslationError
from psworker.remote import RemoteError


class Remote(psworker.remote.Remote):
    """The loop: `while remote.pull() is not None: ...; remote.apply(gradients)`. Close it, or use `with`.

    `model`: a built Keras model, or a layer. `optimizer`: one of Keras' that `distribute` takes, or its name. `hosts`
    and `where`: as in `psworker.connect`; without any servers one is started here.

    Raises TranslationError, and what `psworker.connect` raises. Not thread-safe.
    """

    def __init__(self, model: Any, optimizer: Any, hosts: Hosts = None, **where: Unpack[Where]) -> None:
        tables = tables_of(model._flatten_layers())
        if tables:
            raise RemoteError(
                f"the rows of {', '.join(table.name for table in tables)} are pulled for each batch, which a loop of "
                "your own does by hand: expected distribute(), a Job, or psworker.connect(tables=...) with plain arrays"
            )
        self.model = model
        self._optimizer = keras.optimizers.get(optimizer)
        _check(self._optimizer)
        self._variables = KerasModel(collect(model), backend().framework)
        names = zip(model.trainable_variables, self._variables.specs, strict=False)
        trained = [(variable, spec.name) for variable, spec in names]
        super().__init__(
            self._variables,
            lambda servers: translate(self._optimizer, trained, servers=servers),
            lambda version: _rate(self._optimizer),
            hosts,
            **where,
        )
        self._clips = worker_clips(self._optimizer, self.config)
        warn_of_clipping(self._optimizer, self.config, self.link.info.size)

    def _compared(self, model: Model) -> Any:
        return self.model

    def apply(self, gradients: Sequence[Any], *, samples: int = 1, loss: float = math.nan) -> bool:
        """Contribute gradients for `model.trainable_variables`, in order (None: zero), to the pulled version.

        Returns and raises as `contribute`; RemoteError for another number of gradients.
        """
        self._pulled()
        trained = self._variables.found.trained
        if len(gradients) != len(trained):
            raise RemoteError(
                f"expected {len(trained)} gradients, one for each trainable variable, got {len(gradients)}"
            )
        ops = keras.ops
        found = [
            ops.zeros(variable.shape) if one is None else ops.cast(ops.convert_to_tensor(one), "float32")
            for variable, one in zip(trained, gradients, strict=True)
        ]
        if self._clips:
            found = self._optimizer._clip_gradients(found)
        return self.contribute(found, samples=samples, loss=loss)


def _check(optimizer: Any) -> None:
    refused: Mapping[str, object] = {
        "gradient_accumulation_steps": optimizer.gradient_accumulation_steps,
        "use_ema": optimizer.use_ema,
        "loss_scale_factor": optimizer.loss_scale_factor,
    }
    for setting, value in refused.items():
        if value:
            raise TranslationError(
                f"{setting} is what distribute() does within fit; in a loop of your own it is yours: leave it out"
            )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise TranslationError(
            "LossScaleOptimizer: in a loop of your own unscale the gradients before apply()"
        )


def _rate(optimizer: Any) -> float | None:
    rate = optimizer._learning_rate
    return float(rate.value) if isinstance(rate, keras.Variable) else None
