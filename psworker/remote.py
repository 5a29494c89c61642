"""A model on parameter servers in the user's own training loop: a version, gradients, `contribute`, and again.

No framework is used here: `psworker.keras`, `psworker.torch` and `psworker.jax` provide a `psworker.backends.Model`.
"""

from __future__ import annotations

import atexit
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from pswire.transport.wire import wire_named
from psworker.backends import Model, computes, cut, log_backend, payloads
from psworker.connecting import open_link
from psworker.connection import Connection, Hosts, Where
from psworker.errors import JobOver, Unsupported
from psworker.link import Link
from psworker.session import Session
from psworker.turn import Turn, Turns


class RemoteError(Unsupported, RuntimeError):
    """A call out of order, or with other variables; nothing was sent."""


class Remote:
    """What every framework's loop on parameter servers is: it takes versions up, and contributes. Not thread-safe.

    Close it, or use `with`.
    """

    def __init__(
        self,
        model: Model,
        optimizer: Callable[[int], Mapping[str, Any]],
        rate: Callable[[int], float | None],
        hosts: Hosts = None,
        *,
        function: str = "",
        follows: bool = True,
        **where: Unpack[Where],
    ) -> None:
        """Join the job, and start a server if there is none.

        `optimizer`: returns the [optimizer] for a number of servers. `rate`: returns the learning rate of the update
        from a version on, or None if the servers know it; worker 0 sets it for all. `hosts` and `where`: as in
        `psworker.connect`. `function`: a digest of what the model computes. `follows`: load the job's first version
        now, which is the same on all workers; the end of the process then closes this.

        Raises what `psworker.connect` raises.
        """
        connection = Connection.resolve(hosts, **where)
        self.config = optimizer(connection.parts)
        self.link: Link = open_link(
            connection,
            list(zip(model.specs, model.values(), strict=True)),
            optimizer=self.config,
            computes=computes(model.backend, model.device),
            function=function,
        )
        log_backend(self.link.info.worker, model)
        self._model, self._rate_of = model, rate
        self._dtype = wire_named(self.link.dtypes[0]).array_dtype
        plan = self.link.plan
        self._turns = Turns(self.link, lambda flats, _: model.put(cut(plan, flats)), rate=rate(0))
        self.turn: Turn | None = None
        #: The version of the weights in the model.
        self.version = 0
        self._closed = False
        if follows:
            atexit.register(self._at_exit)
            try:
                self.follow()
            except BaseException as error:
                # The caller gets no object to close.
                self.__exit__(type(error), error, None)
                raise

    @property
    def session(self) -> Session:
        """The session with the servers."""
        return Session(self.link, self._turns)

    @property
    def fates(self) -> dict[str, int]:
        """How many contributions had each fate so far."""
        return self._turns.fates

    def load(self) -> int | None:
        """Load the granted version into the model and return its number; None when the job is over.

        A second call before a contribution loads the same version again, which undoes changes of the model.
        """
        if self.turn is None or not self.turn.put():
            self.turn = None
            self.turn = self._turns.next()
        if self.turn is None:
            return None
        self.version = self.turn.grant.version
        return self.version

    def follow(self) -> None:
        """Load the next version, or the last if the job has ended."""
        if self.load() is None:
            self.close()

    def contribute(self, gradients: Sequence[Any], *, samples: int = 1, loss: float = math.nan) -> bool:
        """Contribute gradients of the loaded version, one for each trained variable in order, averaged over `samples`.

        Includes the changes of state (BatchNorm's averages) since `load`. Returns False if they did not count, because
        the turn was cancelled or a number is not finite. Raises RemoteError without a version, JobOver if the job is
        over, ValueError for `samples` below 0, ModelError for another shape, and Diverged (a SessionError) for the
        tenth failure in a row to be finite, as `fit` does.
        """
        if samples < 0:
            raise ValueError(f"samples: expected a number from 0, got {samples}")
        turn = self.pulled()
        flats = payloads(self.link.plan, self._model, [*gradients, *self._model.changes()], self._dtype)
        rate = None if self.link.info.rank else self._rate_of(self.version)
        loss = float(loss)
        # An error so far leaves the turn open.
        self.turn = None
        return turn.send(flats, samples=samples, loss=loss, rate=rate)

    def pulled(self) -> Turn:
        """Return the turn whose version is in the model. Raises as `contribute`."""
        stop = self.link.stop
        if self.turn is None and stop is not None:
            raise JobOver(f"the job is over at version {stop.version}: {stop.reason}")
        if self.turn is None:
            raise RemoteError(
                "gradients without pull(): they are computed from a version, which pull() brings"
            )
        return self.turn

    def close(self) -> None:
        """Say that this worker has no more data, wait for the others, and load the job's last version into the model.

        Safe to call twice.
        """
        self.__exit__(None, None, None)

    def _at_exit(self) -> None:
        """Close. A process that ends by an exception has data left: it leaves, and the others do not wait for it."""
        error = getattr(sys, "last_value", None)
        self.__exit__(None if error is None else type(error), error, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        atexit.unregister(self._at_exit)
        if self._closed:
            return
        self._closed, self.turn, link = True, None, self.link
        if kind is not None:
            # Other workers must not wait for a contribution that will not come.
            link.close(kind.__name__)
            return
        try:
            stop = link.stop or link.done()
            if stop.success:
                self._model.put(link.plan.gather(link.pull_final()))
        finally:
            link.close()
