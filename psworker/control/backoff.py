"""Retries of calls to one server: which failures are transient, how long to retry, and what final failures mean."""

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from pswire import running
from pswire.addresses import Address
from pswire.bounds import BoundError, check
from pswire.logs.events import event
from pswire.patience import LONGEST_PAUSE
from pswire.security.credentials import Credentials
from pswire.security.diagnosis import ConnectionProblem, problem_of
from pswire.transport.failures import may_pass, reason
from psworker.errors import (
    JobOver,
    JobStopped,
    PayloadRefused,
    Refused,
    SessionError,
    Unreachable,
    Untrusted,
    Voided,
)

log = logging.getLogger("ps-worker")

T = TypeVar("T")
M = TypeVar("M", bound=Message)

MEANING: dict[grpc.StatusCode, type[SessionError]] = {
    grpc.StatusCode.ABORTED: Voided,
    grpc.StatusCode.INVALID_ARGUMENT: PayloadRefused,
    grpc.StatusCode.FAILED_PRECONDITION: Refused,
    grpc.StatusCode.UNAUTHENTICATED: Untrusted,
    grpc.StatusCode.PERMISSION_DENIED: Untrusted,
    grpc.StatusCode.OUT_OF_RANGE: JobOver,
    grpc.StatusCode.NOT_FOUND: JobStopped,
}
# Seconds.
FIRST_PAUSE = 0.1
# Seconds for which a server may hang up before its first answer. One that is about to end looks like one that does not
# trust this process.
CONVINCING = 2.0
# The end of a server's request to wait. How long that takes depends on other workers.
MOMENT = "again in a moment"


class Contact:
    """Finds out whether TLS is the reason why one server does not answer.

    A server that has answered before may be exchanging its certificates, and is retried.
    """

    def __init__(self, address: Address, credentials: Credentials) -> None:
        self._address, self._credentials = address, credentials
        self._answered = False
        # When attempts began to end in a problem that does not pass by itself.
        self._since: float | None = None
        # The newest attempt's.
        self.problem: ConnectionProblem | None = None

    def answered(self) -> None:
        """Note that the server has answered a call."""
        self._answered, self._since, self.problem = True, None, None

    def failed(self, error: grpc.RpcError) -> None:
        """Note that a call failed."""
        problem = problem_of(error, self._address, self._credentials)
        if self._answered and problem is not None and not problem.certain and not self._credentials.encrypted:
            # It needs no certificates, so it is the connection.
            problem = None
        self.problem = problem
        self._since = (self._since or running.now()) if self.untrusted else None

    @property
    def untrusted(self) -> bool:
        """Whether the newest attempt had a problem that does not pass by itself."""
        return self.problem is not None and not self.problem.passing

    @property
    def hopeless(self) -> bool:
        """Whether further retries are pointless."""
        if self._answered or self.problem is None or self._since is None:
            return False
        return self.problem.certain or running.now() - self._since >= CONVINCING


@dataclass(slots=True)
class Backoff:
    """Pauses between retries that double up to `longest_pause`, with jitter, for `patience` seconds.

    `closing`: set by any thread when nobody needs the answer any more. `contact`: None if TLS cannot be the reason.
    `silent`: servers that were said to be silent; shared by all backoffs of a session, so that it says each once. All
    else belongs to the thread that calls. `seek`: looks for the server elsewhere; True once it is found.
    """

    server: int
    address: Address
    patience: float
    closing: threading.Event
    contact: Contact | None = None
    silent: "dict[str, Backoff]" = field(default_factory=dict)
    seek: Callable[[], bool] | None = None
    longest_pause: float = LONGEST_PAUSE
    _began: float | None = None
    _pause: float = FIRST_PAUSE

    @property
    def _name(self) -> str:
        return f"server {self.server} at {self.address}"

    def reset(self) -> None:
        """Begin anew: the server has answered."""
        self._began, self._pause = None, FIRST_PAUSE
        self.heard()

    def heard(self) -> None:
        """Any call to the server was answered: if it falls silent again, that is said again."""
        if self.silent:
            self.silent.pop(self._name, None)
        if self.contact is not None:
            self.contact.answered()

    def wait(self, error: grpc.RpcError) -> None:
        """Sleep before the next attempt.

        Raises Unreachable when the patience is over or nobody needs the answer, and Untrusted when TLS is the reason.
        """
        now = running.now()
        if self._began is None or reason(error).endswith(MOMENT):
            # A server that asks to wait does answer.
            self._began = now
        name = self._name
        why = self._why(error)
        waited = running.now() - self._began
        if self.closing.is_set():
            raise Unreachable(f"{name} does not answer ({why}), and is not needed any more")
        contact = self.contact
        if contact is not None and (contact.hopeless or (contact.untrusted and waited >= self.patience)):
            raise Untrusted(f"server {self.server}: {why}")
        if waited >= self.patience:
            raise Unreachable(
                f"{name} did not answer for {waited:.0f} s ({why}): is it running, and is this its address "
                "(--ps-hosts, PS_HOSTS, hosts=)?"
            )
        self._log_first(name, why)
        if self.seek is not None:
            # Others know who has taken its place, within a second or two.
            if not self.seek():
                self.closing.wait(FIRST_PAUSE * random.uniform(0.8, 1.2))
            self._pause = 2 * FIRST_PAUSE
            return
        # Jitter keeps workers that lost a server together from coming back together.
        self.closing.wait(self._pause * random.uniform(0.8, 1.2))
        self._pause = min(2 * self._pause, self.longest_pause)

    def _log_first(self, name: str, why: str) -> None:
        """Log the first failure only: there are as many retries as the patience is long, and several calls may wait
        for one server."""
        if self._pause != FIRST_PAUSE or self.silent.setdefault(name, self) is not self:
            return
        fields = event("server_silent", server=name, pause=self._pause)
        if why.endswith(MOMENT):
            log.info("%s asks to wait: %s", name, why, extra=fields)
            return
        log.warning(
            "%s %s (%s); trying again in %.1f s, and for %.0f s in all",
            *(name, _answered(why), why, self._pause, self.patience),
            extra=fields,
        )

    def _why(self, error: grpc.RpcError) -> str:
        """Return the reason for people."""
        why = reason(error)
        if self.contact is None or error.code() != grpc.StatusCode.UNAVAILABLE or _asks_to_wait(why):
            return why
        self.contact.failed(error)
        problem = self.contact.problem
        return why if problem is None else problem.sentence


def _asks_to_wait(why: str) -> bool:
    return why.endswith((": wait", MOMENT))


def _answered(why: str) -> str:
    return "asks to wait" if _asks_to_wait(why) else "does not answer"


def translated(error: grpc.RpcError, where: str) -> SessionError:
    """Return the session error that a final RPC error means."""
    kind = MEANING.get(error.code(), SessionError)
    if kind is SessionError:
        return SessionError(f"{where}: {error.code().name}: {reason(error)}")
    return kind(f"{where}: {error.details()}")


def bounded(reply: M) -> M:
    """Return the server's message. Raises SessionError when a field exceeds its bound, which no ps-server sends."""
    try:
        check(reply)
    except BoundError as error:
        raise out_of_bounds(error) from error
    return reply


def out_of_bounds(error: BoundError) -> SessionError:
    """Return the session error for a field beyond its bound."""
    return SessionError(f"the server sent what no ps-server sends: {error}")


def insist(call: Callable[[], T], backoff: Backoff) -> T:
    """Return `call()`, repeated while its server does not answer. Raises SessionError."""
    while True:
        try:
            answer = call()
        except grpc.RpcError as error:
            if not may_pass(error):
                backoff.heard()
                raise translated(error, f"server {backoff.server} at {backoff.address}") from error
            backoff.wait(error)
        else:
            backoff.heard()
            return answer
