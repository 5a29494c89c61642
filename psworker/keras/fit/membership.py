"""A worker's membership in a job: the servers, one of its own if need be, and the session with them."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pswire.addresses import Address
from psworker.backends import computes, log_backend
from psworker.backends.keras.step import backend
from psworker.backends.keras.variables import KerasModel, KerasVariables, collect
from psworker.connecting import open_link
from psworker.connection import Connection
from psworker.control.joining import Phase
from psworker.link import Link

# The newest session of this process, by servers and task. What the process trains there next is a phase behind it; it
# stays open until then, so that the servers wait.
_NEWEST: dict[tuple[tuple[Address, ...], int | None], Link] = {}


class FitMembership:
    """Holds the session of one worker, and its own server if there is none yet.

    `alone`: this process has started the server for itself. Threads may be different workers.
    """

    def __init__(self, connection: Connection) -> None:
        own = connection.own
        # The optimizer is known at the first batch, which may build the model.
        self._server = None if own is None else own.start({"name": "from-job"})
        self.alone = own is not None
        self.connection = connection if self._server is None else connection.at(self._server)
        self._key = self.connection.hosts, connection.task_index
        self.link: Link | None = None
        # The weights with which the job was joined, until the first version comes in their place.
        self.given: list[np.ndarray[Any, Any]] | None = None

    def open(
        self,
        variables: KerasVariables,
        optimizer: Mapping[str, Any],
        more: Mapping[str, Any],
        *,
        goes_on: bool = False,
    ) -> Link:
        """Join the job; `more`: its tables, and the digest of what the model computes.

        `goes_on`: begin another phase of the job of this membership's last session. Otherwise what this process trained
        on these servers before is over, and a job begins.
        """
        before, connection = _NEWEST.get(self._key), self.connection
        self.given = variables.values()
        specs = list(zip(variables.specs, self.given, strict=True))
        phase = Phase(stays=True)
        if before is not None and before.stop is not None:
            phase = Phase(stays=True, job=before.info.job, begins_next=not goes_on)
            connection = replace(connection, name=before.info.worker, task_index=before.info.rank)
        model = KerasModel(variables, backend().framework)
        self.link = link = open_link(
            connection,
            specs,
            optimizer=optimizer,
            phase=phase,
            computes=computes(model.backend, model.device),
            **more,
        )
        _NEWEST[self._key] = link
        log_backend(link.info.worker, model)
        if before is not None:
            before.close("begins another phase")
        return link

    @property
    def went_on(self) -> bool:
        """This process has trained something else on these servers since."""
        return _NEWEST.get(self._key) is not self.link

    def changed(self, variables: KerasVariables) -> str | None:
        """Name a variable that is not as it was given."""
        found = zip(variables.specs, variables.values(), self.given or (), strict=False)
        for spec, now, then in found:
            if not np.array_equal(now, then, equal_nan=True):
                return spec.name
        return None

    def rest(self) -> None:
        """End this part of the job, or of a phase; another one follows, and the servers wait for it."""
        link, self.link = self.link, None
        if link is not None and link.stop is None:
            link.done()

    def leave(self, reason: str) -> None:
        """Leave before the end, so that nobody waits for this worker."""
        link, self.link = self.link, None
        if link is not None:
            link.close(reason)

    def close(self) -> None:
        """End this worker's part, and its own server."""
        link, self.link = self.link, None
        try:
            if link is not None:
                try:
                    if link.stop is None:
                        link.done()
                finally:
                    link.close()
        finally:
            self._end_server(over=link is not None and link.stop is not None)

    def abandon(self) -> None:
        """Leave because the model is gone."""
        self.leave("its model is gone")
        self._end_server(over=False)

    def _end_server(self, *, over: bool) -> None:
        """End the own server. `over`: its job is over, so it ends by itself; otherwise it would wait on."""
        server = self._server
        if server is None:
            return
        newest = _NEWEST.pop(self._key, None)
        if newest is not None:
            newest.close()
        self._server = None
        if over:
            server.close()
        else:
            server.end()


def _leave_all() -> None:
    """Leave all jobs at the end of the process."""
    for link in _NEWEST.values():
        link.close()


# Registered first, so it runs last: a model's own end comes before.
atexit.register(_leave_all)


def named(model: Any) -> list[tuple[Any, str]]:
    """List the trainable variables, each with the name by which the servers know it."""
    found = collect(model)
    names = {id(variable): spec.name for variable, spec in zip(found.variables, found.specs, strict=True)}
    return [(variable, names[id(variable)]) for variable in model.trainable_variables]
