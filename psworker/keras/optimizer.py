"""`RemoteOptimizer`: replaces the Keras optimizer in a custom training loop.

optimizer = psworker.keras.RemoteOptimizer(model, keras.optimizers.Adam(0.01))
for x, y in batches:
    with tf.GradientTape() as tape:
        loss = loss_of(model(x, training=True), y)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

import keras

from psworker.backends.keras.function import function_of
from psworker.backends.keras.step import backend
from psworker.backends.keras.variables import KerasModel, collect
from psworker.backends.lookups import tables_of
from psworker.connection import Hosts, Where
from psworker.keras.translate import translate, warn_of_clipping, worker_clips
from psworker.optimizers import TranslationError
from psworker.remote import Remote, RemoteError


class RemoteOptimizer(Remote):
    """Takes the place of a Keras optimizer in a loop; nothing else of the loop changes.

    The servers run `optimizer`, one of Keras' that `distribute` takes, or its name. `apply` contributes gradients, and
    loads the next version into the variables of `model`, a built Keras model or a layer. The constructor joins the job
    and waits for its first version, the same for all workers. `hosts`, `where`: as in `psworker.connect`; without any
    servers one is started here. `close` it, or use `with`; the end of the process does so, too, and loads the job's
    last version only then. Two optimizers, of a GAN say, are two jobs, each with servers of its own.

    Raises TranslationError, RemoteError for a model with tables, and what `psworker.connect` raises. Not thread-safe.
    """

    def __init__(self, model: Any, optimizer: Any, hosts: Hosts = None, **where: Unpack[Where]) -> None:
        tables = tables_of(model._flatten_layers())
        if tables:
            raise RemoteError(
                f"the rows of {', '.join(table.name for table in tables)} are pulled for each batch, which a loop of "
                "your own does by hand: expected distribute(), a Job, or psworker.connect(tables=...) with plain arrays"
            )
        self.model, self.optimizer = model, keras.optimizers.get(optimizer)
        _check(self.optimizer)
        variables = KerasModel(collect(model), backend().framework)
        self._trained = variables.found.trained
        names = zip(model.trainable_variables, variables.specs, strict=False)
        trained = [(variable, spec.name) for variable, spec in names]
        super().__init__(
            variables,
            lambda servers: translate(self.optimizer, trained, servers=servers),
            lambda version: _rate(self.optimizer),
            hosts,
            function=function_of(model, None),
            **where,
        )
        self._clips = worker_clips(self.optimizer, self.config)
        warn_of_clipping(self.optimizer, self.config, self.link.info.size)

    @property
    def learning_rate(self) -> Any:
        """The Keras optimizer's; a rate that worker 0 sets goes to the servers with its next contribution."""
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        self.optimizer.learning_rate = rate

    def apply(
        self,
        gradients: Sequence[Any],
        trainable_variables: Sequence[Any] | None = None,
        *,
        samples: int = 1,
        loss: float = math.nan,
    ) -> bool:
        """Contribute gradients of all trainable variables of the model, in any order (None: in its own).

        `samples`, the number that the gradients were averaged over, and `loss` are for the log, and for policies that
        weigh by samples. Returns False for what does not count: a gradient that is not finite, or comes too late.
        Raises RemoteError for other variables and within a function that is traced, JobOver where the job has ended,
        and as `contribute`.
        """
        if backend().framework.traces(gradients):
            raise RemoteError(
                "RemoteOptimizer.apply() within a tf.function, or one that JAX or PyTorch compiles: expected its "
                "gradients, applied outside of it, because a graph cannot push them"
            )
        self.pulled()
        gradients = self._in_order(gradients, trainable_variables)
        if len(gradients) != len(self._trained):
            raise RemoteError(
                f"expected {len(self._trained)} gradients, one for each trainable variable, got {len(gradients)}"
            )
        ops = keras.ops
        found = [
            ops.zeros(variable.shape) if one is None else ops.cast(ops.convert_to_tensor(one), "float32")
            for variable, one in zip(self._trained, gradients, strict=True)
        ]
        if self._clips:
            found = self.optimizer._clip_gradients(found)
        counts = self.contribute(found, samples=samples, loss=loss)
        self.follow()
        return counts

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        """Apply pairs, as `apply` does."""
        gradients, variables = zip(*grads_and_vars, strict=True)
        self.apply(gradients, variables)

    def _in_order(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> Sequence[Any]:
        mine = self.model.trainable_variables
        if variables is None:
            return gradients
        given = {id(variable): gradient for variable, gradient in zip(variables, gradients, strict=True)}
        if given.keys() != {id(variable) for variable in mine}:
            raise RemoteError(
                f"expected gradients for the {len(mine)} trainable variables of {self.model.name!r}, got some "
                f"for {len(given)} variables: a RemoteOptimizer is of one model, all of it"
            )
        return [given[id(variable)] for variable in mine]


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
