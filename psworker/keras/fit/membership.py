"""A worker's membership in a job: the servers, one of its own if need be, and the session with them."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pswire.addresses import Address
from psworker.backends import computes, log_backend
from psworker.backends.keras import KerasModel, KerasVariables, backend, collect
from psworker.control.joining import Phase
from psworker.servers import EmbeddedServer, Place
from psworker.session import Session

# The newest session of this process, by servers and task. What the process trains there next is a phase behind it; it
# stays open until then, so that the servers wait.
_NEWEST: dict[tuple[tuple[Address, ...], int | None], Session] = {}


class Membership:
    """Holds the session of one worker, and its own server if there is one.

    `place`: where servers run; None where `start` starts one, for this process alone. `join` opens a session.
    `task_index`: this worker's number, if it was given; threads may be different workers.
    """

    def __init__(
        self,
        place: Place | None,
        start: Callable[[], EmbeddedServer] | None,
        join: Callable[..., Session],
        task_index: int | None,
    ) -> None:
        self.place, self._join, self._task_index = place, join, task_index
        self._server = None if start is None else start()
        self.session: Session | None = None
        # The weights with which the job was joined, until the first version comes in their place.
        self.given: list[np.ndarray[Any, Any]] | None = None

    @property
    def hosts(self) -> tuple[Address, ...]:
        """All servers, in task order."""
        if self._server is not None:
            return (self._server.address,)
        assert self.place is not None, "the server of its own has ended"
        return self.place.hosts

    @property
    def parts(self) -> int:
        """Parts into which the model is cut."""
        return 1 if self.place is None else self.place.parts

    def open(
        self,
        variables: KerasVariables,
        optimizer: Mapping[str, Any],
        more: Mapping[str, Any],
        *,
        goes_on: bool = False,
    ) -> Session:
        """Join the job; `more`: the work that it deals.

        `goes_on`: begin another phase of the job of this membership's last session. Otherwise what this process trained
        on these servers before is over, and a job begins.
        """
        before, hosts = _NEWEST.get((self.hosts, self._task_index)), self.hosts
        self.given = variables.values()
        specs = list(zip(variables.specs, self.given, strict=True))
        phase, known = Phase(stays=True), dict[str, Any]()
        if before is not None and before.stop is not None:
            phase = Phase(stays=True, job=before.job, begins_next=not goes_on)
            known = {"name": before.worker, "task_index": before.worker_index}
        model = KerasModel(variables, backend().framework)
        known["computes"] = computes(model.backend, model.device)
        self.session = session = self._join(hosts, specs, optimizer=optimizer, phase=phase, **known, **more)
        _NEWEST[hosts, self._task_index] = session
        log_backend(session.worker, model)
        if before is not None:
            before.close("begins another phase")
        return session

    @property
    def went_on(self) -> bool:
        """This process has trained something else on these servers since."""
        return _NEWEST.get((self.hosts, self._task_index)) is not self.session

    def changed(self, variables: KerasVariables, tolerance: float) -> str | None:
        """Name a variable that is not as it was given, up to `tolerance` relative to 1 or to itself."""
        found = zip(variables.specs, variables.values(), self.given or (), strict=False)
        for spec, now, then in found:
            if not np.allclose(now, then, rtol=tolerance, atol=tolerance, equal_nan=True):
                return spec.name
        return None

    def rest(self) -> None:
        """End this part of the job, or of a phase; another one follows, and the servers wait for it."""
        session, self.session = self.session, None
        if session is not None and session.stop is None:
            session.done()

    def leave(self, reason: str) -> None:
        """Leave before the end, so that nobody waits for this worker."""
        session, self.session = self.session, None
        if session is not None:
            session.close(reason)

    def close(self) -> None:
        """End this worker's part, and its own server."""
        session, self.session = self.session, None
        try:
            if session is not None:
                try:
                    if session.stop is None:
                        session.done()
                finally:
                    session.close()
        finally:
            self._end_server(over=session is not None and session.stop is not None)

    def abandon(self) -> None:
        """Leave because the model is gone."""
        self.leave("its model is gone")
        self._end_server(over=False)

    def _end_server(self, *, over: bool) -> None:
        """End the own server. `over`: its job is over, so it ends by itself; otherwise it would wait on."""
        server = self._server
        if server is None:
            return
        newest = _NEWEST.pop((self.hosts, self._task_index), None)
        if newest is not None:
            newest.close()
        self._server = None
        if over:
            server.close()
        else:
            server.end()


def _leave_all() -> None:
    """Leave all jobs at the end of the process."""
    for session in _NEWEST.values():
        session.close()


# Registered first, so it runs last: a model's own end comes before.
atexit.register(_leave_all)


def named(model: Any) -> list[tuple[Any, str]]:
    """List the trainable variables, each with the name by which the servers know it."""
    found = collect(model)
    names = {id(variable): spec.name for variable, spec in zip(found.variables, found.specs, strict=True)}
    return [(variable, names[id(variable)]) for variable in model.trainable_variables]
