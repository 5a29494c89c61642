"""JAX training loops on parameter servers: a pytree and an Optax chain.

    with psworker.jax.distribute(params, optax.adam(1e-3)) as job:
        while (params := job.pull()) is not None:
            job.push(gradients_of(params, next(batches)))

See docs/guides/loop.md. Importing this package loads JAX; Optax is loaded by whoever makes a chain of it.
"""

from __future__ import annotations

import math
from typing import Any, Unpack

from psworker.backends import ModelError
from psworker.backends.jax import JaxModel
from psworker.connection import Hosts, Where
from psworker.jax.translate import Translated, translate
from psworker.optimizers import TranslationError, warn_of_own_clipping
from psworker.remote import Remote, RemoteError

__all__ = ["JaxLoop", "ModelError", "RemoteError", "TranslationError", "distribute", "translate"]


def distribute(
    params: Any,
    optimizer: Any,
    hosts: Hosts = None,
    *,
    state: Any = None,
    **where: Unpack[Where],
) -> JaxLoop:
    """Let parameter servers hold `params`, a pytree of floating arrays, and run `optimizer`, an Optax chain.

    A schedule of the chain is evaluated by worker 0 at the version that it has. Clipping is of the mean gradient where
    there is one server. `state`: a pytree of what the model keeps beside (BatchNorm's averages), whose changes are
    averaged over the workers. `hosts`, `where`: as in `psworker.connect`; without any servers one is
    started here.

    Raises TranslationError, ModelError, and what `psworker.connect` raises.
    """
    return JaxLoop(params, optimizer, hosts, state, where)


class JaxLoop(Remote):
    """The loop: `while (params := job.pull()) is not None: ...; job.push(gradients)`. Made by `distribute`.

    Close it, or use `with`. Not thread-safe.
    """

    def __init__(self, params: Any, optimizer: Any, hosts: Hosts, state: Any, where: Where) -> None:
        self._tree = model = JaxModel(params, state)
        made: list[Translated] = []

        def translated(servers: int) -> dict[str, Any]:
            made.append(translate(optimizer, params, model.names, servers))
            return made[0].config

        super().__init__(
            model, translated, lambda version: made[0].rate(version), hosts, follows=False, **where
        )
        self._before = made[0].before
        for link in self._before:
            if link.name.startswith("clip"):
                warn_of_own_clipping(link.name, self.link.info.size)

    @property
    def params(self) -> Any:
        """The parameters of the version that was pulled last; after `close` the job's last."""
        return self._tree.params

    @property
    def state(self) -> Any:
        """The state that belongs to `params`."""
        return self._tree.state

    def pull(self) -> Any:
        """`params` of the granted version; `state` then has what belongs to them. None when the job is over."""
        if self.load() is None:
            self.close()
            return None
        return self.params

    def push(self, gradients: Any, *, state: Any = None, samples: int = 1, loss: float = math.nan) -> bool:
        """Contribute gradients, a tree as `params`, of the pulled version, and `state` as it is now.

        `samples`, over how many they were averaged, and `loss` are for the log, and for policies that weigh by samples.
        False where they did not count: the ticket was cancelled, or a number is not finite. Raises ModelError for
        another tree, RemoteError without a `pull` before, and as `contribute`.
        """
        self._tree.check(gradients, "gradients")
        if state is not None:
            self._tree.check(state, "state")
            self._tree.state = state
        self._tree.check_kept(self.state, "state", "expected push(gradients, state=...), as the step made it")
        for link in self._before:
            if link.name == "add_decayed_weights":
                self._tree.check_kept(self.params, "params", "a chain that decays before its rule reads them")
            gradients = link(gradients, self.params)
        return self.contribute(self._tree.leaves(gradients), samples=samples, loss=float(loss))
