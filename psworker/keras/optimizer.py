"""`RemoteOptimizer`: in the place of a Keras optimizer in a training loop of one's own.

optimizer = psworker.keras.RemoteOptimizer(model, keras.optimizers.Adam(0.01))
for x, y in batches:
    with tf.GradientTape() as tape:
        loss = loss_of(model(x, training=True), y)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
"""

from __future__ import annotations

import atexit
import math
import sys
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import keras
import tensorflow as tf

from psworker.errors import JobOver
from psworker.keras.remote import Remote, RemoteError
from psworker.session import Session


class RemoteOptimizer:
    """The servers run `optimizer`, one of Keras' or its name: `apply` contributes gradients, and brings the next
    version into the variables of `model`, a built Keras model or a layer. Nothing else of the loop changes.

    It joins the job when it is made, and waits for its first version, which is that of all workers. `more`: the
    arguments of `Remote`. `close` it, or use `with`; the end of the process does so, too, and leaves the job's
    last version in the model only then. Two optimizers, of a GAN say, are two jobs, each with servers of its own.

    Raises what `Remote` raises. Not thread-safe.
    """

    def __init__(self, model: Any, optimizer: Any, *args: Any, **more: Any) -> None:
        self.optimizer = keras.optimizers.get(optimizer)
        self.remote = Remote(model, self.optimizer, *args, **more)
        self._closed = False
        atexit.register(self._at_exit)
        try:
            self._pull()
        except BaseException as error:
            # Nobody gets this one to close it.
            self.__exit__(type(error), error, None)
            raise

    @property
    def learning_rate(self) -> Any:
        """As of the Keras optimizer; what is set goes to the servers with the next contribution, from worker 0."""
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        self.optimizer.learning_rate = rate

    @property
    def version(self) -> int:
        """The version of the weights in the model."""
        return self.remote.version

    @property
    def session(self) -> Session:
        """The session with the servers."""
        return self.remote.session

    def apply(
        self,
        gradients: Sequence[Any],
        trainable_variables: Sequence[Any] | None = None,
        *,
        samples: int = 1,
        loss: float = math.nan,
    ) -> None:
        """As the Keras optimizer's: `trainable_variables` are all of the model's, in any order (None: in its own).

        `samples`, over how many the gradients were averaged, and `loss` are for the log, and for policies that weigh by
        samples.

        What is not finite, or comes too late, does not count; see `Remote.apply`. Raises RemoteError for other
        variables and within a tf.function, JobOver where the job has ended, and as `Remote.apply`.
        """
        if tf.inside_function():
            raise RemoteError(
                "RemoteOptimizer.apply() within a tf.function: expected the gradients of a tf.function, applied "
                "outside of it, for what travels is no graph"
            )
        stop = self.remote.session.stop
        if stop is not None:
            raise JobOver(f"the job is over at version {stop.version}: {stop.reason}")
        self.remote.apply(self._in_order(gradients, trainable_variables), samples=samples, loss=loss)
        self._pull()

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        """As `apply`, of pairs."""
        gradients, variables = zip(*grads_and_vars, strict=True)
        self.apply(gradients, variables)

    def close(self) -> None:
        """This worker has no more data; waits for the others, and leaves the job's last version in the model. Safe to
        call twice."""
        self.__exit__(None, None, None)

    def _pull(self) -> None:
        """The next version, or the last where the job has ended."""
        if self.remote.pull() is None:
            self.close()

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

    def _at_exit(self) -> None:
        """A process that an exception ends is not done with its data: it leaves, and nobody waits for it."""
        error = getattr(sys, "last_value", None)
        self.__exit__(None if error is None else type(error), error, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        atexit.unregister(self._at_exit)
        if not self._closed:
            self._closed = True
            self.remote.__exit__(kind, error, trace)
