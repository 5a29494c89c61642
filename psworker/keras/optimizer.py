"""`RemoteOptimizer`: replaces the Keras optimizer in a custom training loop.

optimizer = psworker.keras.RemoteOptimizer(model, keras.optimizers.Adam(0.01))
for x, y in batches:
    with tf.GradientTape() as tape:
        loss = loss_of(model(x, training=True), y)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Unpack

import keras

from psworker.backends.keras import backend
from psworker.connection import Hosts, Where
from psworker.keras.remote import Remote
from psworker.remote import Following, RemoteError


class RemoteOptimizer(Following):
    """Takes the place of a Keras optimizer in a loop; nothing else of the loop changes.

    The servers run `optimizer`, one of Keras' or its name. `apply` contributes gradients, and loads the next version
    into the variables of `model`, a built Keras model or a layer. The constructor joins the job and waits for its first
    version, the same for all workers. `hosts`, `where`: as in `psworker.connect`. `close` it, or use `with`; the end of
    the process does so, too, and loads the job's last version only then. Two optimizers, of a GAN say, are two jobs,
    each with servers of its own.

    Raises what `Remote` raises. Not thread-safe.
    """

    def __init__(self, model: Any, optimizer: Any, hosts: Hosts = None, **where: Unpack[Where]) -> None:
        self.optimizer = keras.optimizers.get(optimizer)
        self.remote: Remote
        super().__init__(Remote(model, self.optimizer, hosts, **where))

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
    ) -> None:
        """Contribute gradients of all trainable variables of the model, in any order (None: in its own).

        `samples`, the number that the gradients were averaged over, and `loss` are for the log, and for policies that
        weigh by samples. A gradient that is not finite, or comes too late, does not count; see `Remote.apply`. Raises
        RemoteError for other variables and within a function that is traced, JobOver where the job has ended, and as
        `Remote.apply`.
        """
        if backend().framework.traces(gradients):
            raise RemoteError(
                "RemoteOptimizer.apply() within a tf.function, or one that JAX or PyTorch compiles: expected its "
                "gradients, applied outside of it, because a graph cannot push them"
            )
        self._check_running()
        self.remote.apply(self._in_order(gradients, trainable_variables), samples=samples, loss=loss)
        self._pull()

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        """Apply pairs, as `apply` does."""
        gradients, variables = zip(*grads_and_vars, strict=True)
        self.apply(gradients, variables)

    def _in_order(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> Sequence[Any]:
        mine = self.remote.model.trainable_variables
        if variables is None:
            return gradients
        given = {id(variable): gradient for variable, gradient in zip(variables, gradients, strict=True)}
        if given.keys() != {id(variable) for variable in mine}:
            raise RemoteError(
                f"expected gradients for the {len(mine)} trainable variables of {self.remote.model.name!r}, got some "
                f"for {len(given)} variables: a RemoteOptimizer is of one model, all of it"
            )
        return [given[id(variable)] for variable in mine]
