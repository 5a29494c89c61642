"""A worker's membership in a job: the servers, one of its own if need be, and the session with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from psworker.servers import EmbeddedServer, Place
from psworker.session import Session
from psworker.tensorflow.variables import ModelVariables, collect


class Membership:
    """`place`: where servers run; None where `start` starts one, for this process alone. `join` opens a session."""

    def __init__(
        self,
        place: Place | None,
        start: Callable[[Mapping[str, Any]], EmbeddedServer] | None,
        join: Callable[..., Session],
    ) -> None:
        self.place, self._start, self._join = place, start, join
        self._server: EmbeddedServer | None = None
        self.session: Session | None = None
        # The weights with which the job was joined, until the first version comes in their place.
        self.given: list[np.ndarray[Any, Any]] | None = None

    @property
    def joined_before(self) -> bool:
        """A server of one's own runs."""
        return self._server is not None

    def open(
        self, variables: ModelVariables, optimizer: Mapping[str, Any], more: Mapping[str, Any]
    ) -> Session:
        """Join the job; `more`: the work that it deals."""
        if self._start is not None and self._server is None:
            self._server = self._start(optimizer)
        hosts = (self._server.address,) if self._server is not None else self.place.hosts  # type: ignore[union-attr]
        self.given = variables.values()
        specs = list(zip(variables.specs, self.given, strict=True))
        self.session = session = self._join(hosts, specs, optimizer=optimizer, **more)
        if session.worker_index:
            own_randomness(variables, session.worker_index)
        return session

    def changed(self, variables: ModelVariables, tolerance: float) -> str | None:
        """The name of a variable that is not as it was given, up to `tolerance` relative to 1 or to itself."""
        found = zip(variables.specs, variables.values(), self.given or (), strict=False)
        for spec, now, then in found:
            if not np.allclose(now, then, rtol=tolerance, atol=tolerance, equal_nan=True):
                return spec.name
        return None

    def leave(self, reason: str) -> None:
        """Without having done one's part; nobody waits for what will not come."""
        session, self.session = self.session, None
        if session is not None:
            session.close(reason)

    def close(self) -> None:
        """This worker's part is done; a server of one's own ends with the job."""
        session, self.session = self.session, None
        if session is not None:
            try:
                if session.stop is None:
                    session.done()
            finally:
                session.close()
        server, self._server = self._server, None
        if server is not None:
            server.close()


def named(model: Any) -> list[tuple[Any, str]]:
    """The trainable variables, each with the name by which the servers know it."""
    found = collect(model)
    names = {id(variable): spec.name for variable, spec in zip(found.variables, found.specs, strict=True)}
    return [(variable, names[id(variable.value)]) for variable in model.trainable_variables]


def own_randomness(variables: ModelVariables, worker_index: int) -> None:
    """Worker 0 draws what plain `fit` would; every other one has a stream of its own."""
    for variable in variables.seeds:
        own = np.random.SeedSequence([*map(int, variable.numpy()), worker_index])
        variable.assign(tf.constant(own.generate_state(2), variable.dtype))
