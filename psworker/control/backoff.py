"""Calls to one server: which failures pass, how long to insist, what the others mean, whether TLS is the reason."""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from pswire.addresses import Address
from pswire.bounds import BoundError, check
from pswire.logs.events import event
from pswire.security.credentials import Credentials
from pswire.security.probe import Problem, find_problem
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

# A server that is about to end may look like one that refuses this process: so often, one after the other, it is none.
LIKELY = 3


class Contact:
    """Of one server. A server that has answered once may be exchanging its certificates: it is waited for."""

    def __init__(self, address: Address, credentials: Credentials) -> None:
        self._address, self._credentials = address, credentials
        self._answered = False
        self._alike = 0
        # The last that was found.
        self.problem: Problem | None = None

    def answered(self) -> None:
        self._answered, self._alike, self.problem = True, 0, None

    def look(self) -> None:
        """A call has failed: why? Takes a second or two at most. Without TLS of its own a process asks only until the
        first answer."""
        if self._answered and not self._credentials.encrypted:
            return
        self.problem = find_problem(self._address, self._credentials)
        untrusted = self.problem is not None and not self.problem.passing
        self._alike = self._alike + 1 if untrusted else 0

    @property
    def hopeless(self) -> bool:
        """Nobody has to wait any longer to know."""
        return not self._answered and self.untrusted and (self._certain or self._alike >= LIKELY)

    @property
    def untrusted(self) -> bool:
        return self.problem is not None and not self.problem.passing

    @property
    def _certain(self) -> bool:
        return self.problem is not None and self.problem.certain


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
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


@dataclass(slots=True)
class Backoff:
    """Pauses that double up to `LONGEST_PAUSE`, with jitter, until `patience` seconds have passed or `closing` is set.

    `closing`: nobody needs the answer any more; any thread may set it. All else belongs to the thread that calls.
    """

    server: int
    address: Address
    patience: float
    closing: threading.Event
    # None: whether TLS is the reason is not looked at.
    contact: Contact | None = None
    _began: float | None = None
    _pause: float = FIRST_PAUSE

    def reset(self) -> None:
        self._began, self._pause = None, FIRST_PAUSE
        if self.contact is not None:
            self.contact.answered()

    def wait(self, error: grpc.RpcError) -> None:
        """Sleep before the next attempt. Raises Unreachable when patience is over, or nobody needs the answer, and
        Untrusted where TLS is the reason."""
        now = time.monotonic()
        if self._began is None or reason(error).endswith(MOMENT):
            # A server that is there, and says what it waits for, is not one that does not answer.
            self._began = now
        name = f"server {self.server} at {self.address}"
        why = self._why(error)
        waited = time.monotonic() - self._began
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
        self._tell(name, why)
        # Jitter: workers that lost a server together should not come back together.
        self.closing.wait(self._pause * random.uniform(0.8, 1.2))
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _tell(self, name: str, why: str) -> None:
        """Once: the tries that follow are as many as the patience is long."""
        told = event("server_silent", server=name, pause=self._pause)
        if self._pause != FIRST_PAUSE:
            return
        if why.endswith(MOMENT):
            log.info("%s asks to wait: %s", name, why, extra=told)
            return
        log.warning(
            "%s %s (%s); trying again in %.1f s, and for %.0f s in all",
            *(name, _answered(why), why, self._pause, self.patience),
            extra=told,
        )

    def _why(self, error: grpc.RpcError) -> str:
        """The reason for people, by a look of one's own where gRPC says only that a server is not available."""
        why = reason(error)
        if self.contact is None or error.code() != grpc.StatusCode.UNAVAILABLE or _asks_to_wait(why):
            return why
        self.contact.look()
        problem = self.contact.problem
        return why if problem is None else problem.sentence


# How long it may be is up to other workers.
MOMENT = "join again in a moment"


def _asks_to_wait(why: str) -> bool:
    return why.endswith((": wait", MOMENT))


def _answered(why: str) -> str:
    """A server that says when to come again does answer."""
    return "asks to wait" if _asks_to_wait(why) else "does not answer"


def translated(error: grpc.RpcError, where: str) -> SessionError:
    """The session error that a final RPC error stands for."""
    kind = MEANING.get(error.code(), SessionError)
    if kind is SessionError:
        return SessionError(f"{where}: {error.code().name}: {reason(error)}")
    return kind(f"{where}: {error.details()}")


def bounded(reply: M) -> M:
    """The server's message itself. Raises SessionError when a field is beyond its bound, as no server of ours sends."""
    try:
        check(reply)
    except BoundError as error:
        raise beyond(error) from error
    return reply


def beyond(error: BoundError) -> SessionError:
    """What a message stands for that no server of ours sends."""
    return SessionError(f"the server sent what no ps-server sends: {error}")


def insist(call: Callable[[], T], backoff: Backoff) -> T:
    """`call()`, again and again while its server does not answer. Raises SessionError."""
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            if not may_pass(error):
                raise translated(error, f"server {backoff.server} at {backoff.address}") from error
            backoff.wait(error)
