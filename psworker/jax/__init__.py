"""JAX training loops on parameter servers: a pytree and an Optax chain.

    with psworker.jax.distribute(params, optax.adam(1e-3)) as job:
        while (params := job.pull()) is not None:
            job.push(gradients_of(params, next(batches)))

See docs/guides/loop.md. Importing this package loads JAX; Optax is loaded by whoever makes a chain of it.
"""

from __future__ import annotations

import math
from types import TracebackType
from typing import Any, Self, Unpack

from psworker.backends import ModelError
from psworker.backends.jax import JaxModel
from psworker.connection import Hosts, Where
from psworker.jax.translate import Translated, translate
from psworker.optimizers import TranslationError, warn_of_own_clipping
from psworker.remote import Remote, RemoteError
from psworker.session import Session

__all__ = ["Job", "ModelError", "RemoteError", "TranslationError", "distribute", "translate"]


def distribute(
    params: Any,
    optimizer: Any,
    hosts: Hosts = None,
    *,
    state: Any = None,
    **where: Unpack[Where],
) -> Job:
    """Let parameter servers hold `params`, a pytree of floating arrays, and run `optimizer`, an Optax chain.

    A schedule of the chain is evaluated by worker 0 at the version that it has. Clipping is of the mean gradient where
    there is one server. `state`: a pytree of what the model keeps beside (BatchNorm's averages), whose changes are
    averaged over the workers. `hosts`, `where`: as in `psworker.connect`; without any servers one is
    started here.

    Raises TranslationError, ModelError, and what `psworker.connect` raises.
    """
    return Job(params, optimizer, hosts, state, where)


class Job:
    """The loop: `while (params := job.pull()) is not None: ...; job.push(gradients)`. Made by `distribute`.

    Close it, or use `with`. Not thread-safe.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        hosts: Hosts,
        state: Any,
        where: Where,
    ) -> None:
        self._model = model = JaxModel(params, state)
        made: list[Translated] = []

        def translated(servers: int) -> dict[str, Any]:
            made.append(translate(optimizer, params, model.names, servers))
            return made[0].config

        self.remote = Remote(model, translated, lambda version: made[0].rate(version), hosts, **where)
        self._before = made[0].before
        for link in self._before:
            if link.name.startswith("clip"):
                warn_of_own_clipping(link.name, self.remote.link.info.size)

    @property
    def session(self) -> Session:
        """The session with the servers."""
        return self.remote.session

    @property
    def version(self) -> int:
        """The version of `params`."""
        return self.remote.version

    @property
    def params(self) -> Any:
        """The parameters of the version that was pulled last; after `close` the job's last."""
        return self._model.params

    @property
    def state(self) -> Any:
        """The state that belongs to `params`."""
        return self._model.state

    def pull(self) -> Any:
        """`params` of the granted version; `state` then has what belongs to them. None when the job is over."""
        if self.remote.pull() is None:
            self.close()
            return None
        return self.params

    def push(self, gradients: Any, *, state: Any = None, samples: int = 1, loss: float = math.nan) -> bool:
        """Contribute gradients, a tree as `params`, of the pulled version, and `state` as it is now.

        `samples`, over how many they were averaged, and `loss` are for the log, and for policies that weigh by samples.
        False where they did not count: the ticket was cancelled, or a number is not finite. Raises ModelError for
        another tree, RemoteError without a `pull` before, and as `Remote.contribute`.
        """
        self._model.check(gradients, "gradients")
        if state is not None:
            self._model.check(state, "state")
            self._model.state = state
        self._model.check_kept(
            self.state, "state", "expected push(gradients, state=...), as the step made it"
        )
        for link in self._before:
            if link.name == "add_decayed_weights":
                self._model.check_kept(
                    self.params, "params", "a chain that decays before its rule reads them"
                )
            gradients = link(gradients, self.params)
        return self.remote.contribute(self._model.leaves(gradients), samples=samples, loss=float(loss))

    def close(self) -> None:
        """Leave, as this worker has no more data, and wait for the others. `params` are those of the job's last version
        then. Safe to call twice."""
        self.remote.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remote.__exit__(kind, error, trace)
