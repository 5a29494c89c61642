"""Authorization: who calls, which methods the caller may call, and who owns a worker's name. Checked before a
message is read."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from psserver.service.errors import Code, RequestRefused, denied, precondition
from psserver.service.guard.pace import KeyedPace
from pswire.logs.events import event
from pswire.logs.lines import escaped
from pswire.security.credentials import NO_TLS, Credentials
from pswire.security.names import IdentityError, Role, Subject, subject_among
from pswire.security.proof import COORDINATOR, FILE, VARIABLE, Challenge, ProofError, asked, server_named
from pswire.v1 import coordinator_pb2, options_pb2, shard_pb2


@dataclass(frozen=True, slots=True)
class Peer:
    """A caller. `role`: None if authentication is off, then every call is allowed. `name`: the only worker name
    that the credential may use; empty: any. `credential`: what a worker name is bound to."""

    role: Role | None = None
    name: str = ""
    credential: str = ""


ANYBODY: Final = Peer()


class Names:
    """The credential that each worker name is bound to: its first user's, or the one issued for the name.

    The loop's thread owns it.
    """

    def __init__(self) -> None:
        self._held: dict[str, str] = {}

    def name_for(self, peer: Peer, asked: str) -> str:
        """Return the name under which the peer joins if it asks for `asked` (empty: any name). Raises Refused."""
        if peer.role is None:
            return asked
        if peer.name and asked not in ("", peer.name):
            raise denied(
                f"{peer.credential} is for the worker {peer.name!r} only, and asks to join as {asked!r}"
            )
        name = peer.name or asked
        holder = self._held.get(name, peer.credential)
        if holder != peer.credential:
            raise denied(f"the name {name!r} is that of {holder}, and {peer.credential} is another one")
        return name

    def claim(self, peer: Peer, name: str) -> None:
        """Bind the name to the peer's credential, after its Join."""
        if peer.role is not None:
            self._held.setdefault(name, peer.credential)


# Roles of methods whose callers prove the job's secret.
_SERVERS, _ADMINS = frozenset({Role.SERVER}), frozenset({Role.ADMIN})
# The health service says only whether a server is running.
_ALL = frozenset(Role)


def _declared() -> Iterator[tuple[str, frozenset[Role]]]:
    """Yield our own methods with their callers, as declared in the protos. Raises TypeError if a method declares
    none."""
    for file in (coordinator_pb2, shard_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                callers = method.GetOptions().Extensions[options_pb2.callers]
                if not callers:
                    raise TypeError(f"{method.full_name}: expected callers in protos/pswire/v1, got none")
                names = (options_pb2.Caller.Name(caller).lower() for caller in callers)
                yield f"/{service.full_name}/{method.name}", frozenset(map(Role, names))


ROLES: Final[Mapping[str, frozenset[Role]]] = {
    **dict(_declared()),
    "/grpc.health.v1.Health/Check": _ALL,
}
# Roles that may read the metrics port, which is no gRPC method.
METRICS: Final = frozenset({Role.OBSERVER, Role.ADMIN, Role.SERVER})

log = logging.getLogger("ps-server")

# Longest name in a refusal or a log line, in characters.
LONGEST: Final = 200
# Seconds between two log lines about refusals of one credential.
MINUTE: Final = 60.0


class Context(Protocol):
    """The part of a gRPC call's context that identifies the caller."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...
    def invocation_metadata(self) -> Any: ...
    def peer(self) -> str: ...


class Authorizer:
    """Authorization of all calls of one server. `refused`: number of refused calls by reason. The loop's thread
    owns it."""

    def __init__(self, credentials: Credentials = NO_TLS, server: int = 0) -> None:
        """`server`: the index of this one."""
        self._credentials, self._server = credentials, server
        self._cluster = ""
        if credentials.encrypted:
            self._cluster = credentials.identity.facts.subject.cluster
        self.refused: Counter[str] = Counter()
        # Log lines about refusals, by who is refused: a flood of calls must not fill the log.
        self._lines = KeyedPace(1 / MINUTE, 1)

    def admit(self, method: str, context: Context) -> Peer:
        """Return the peer. Raises Refused if it may not call `method`."""
        if not self._credentials.encrypted:
            return ANYBODY
        try:
            peer = self._by_certificate(context)
        except RequestRefused as refused:
            address = address_of(context.peer()) or "this machine"
            self._refuse("unknown", "", method, f"a call from {address}: {refused.message}")
            raise
        if peer.role not in ROLES.get(method, ()):
            why = f"{peer.credential} called {method}, which is not for its role"
            self._refuse("role", peer.credential, method, why)
            raise denied(
                f"{peer.credential} has the role {peer.role}, and {method.rpartition('/')[2]} is for "
                f"{_listed(ROLES.get(method, ()))}: give this process a certificate of that role",
            )
        return peer

    def challenge(self, method: str, context: Context) -> Challenge | None:
        """Return what the caller of `method` must prove, or None. Raises Refused if it is not about to.

        Servers prove the job's secret to each other. So does whoever changes the job, where no role says who may.
        """
        roles = ROLES.get(method)
        if roles != _SERVERS and (roles != _ADMINS or self._credentials.encrypted):
            return None
        metadata, secret = context.invocation_metadata(), self._credentials.job_secret
        if not secret:
            if asked(metadata):
                raise precondition(
                    f"server {self._server} has no job secret, and the caller has one: give all servers of the job the "
                    f"same {VARIABLE}, or unset it everywhere"
                )
            return None
        whom = server_named(self._server) if roles == _SERVERS else COORDINATOR
        try:
            return Challenge(secret, method, whom, metadata)
        except ProofError as error:
            raise unproven(method) from error

    def _refuse(self, reason: str, credential: str, method: str, why: str) -> None:
        """Count a refusal; log one per credential and minute, and one of all without any."""
        self.refused[reason] += 1
        if self._lines.take(credential):
            fields = event("call_refused", peer=credential, method=method)
            log.warning("refused: %s; %d such calls in all", why, self.refused[reason], extra=fields)

    def _by_certificate(self, context: Context) -> Peer:
        shown = context.auth_context().get("x509_subject_alternative_name", ())
        try:
            subject = subject_among([name.decode() for name in shown])
        except (IdentityError, UnicodeDecodeError) as error:
            raise _unknown(escaped(str(error), LONGEST)) from error
        return self.peer_of(subject)

    def peer_of(self, subject: Subject) -> Peer:
        """Return the peer that a certificate of our authority names. Raises Refused for another cluster's
        certificate."""
        if subject.cluster != self._cluster:
            raise _unknown(
                f"the certificate {subject} is not of the cluster {self._cluster}: expected one of that cluster"
            )
        return Peer(subject.role, subject.name, str(subject))


def address_of(peer: str) -> str:
    """Return the address part of a gRPC peer ("ipv4:192.0.2.1:4321"), for sentences; empty if it has no port."""
    kind, _, place = peer.partition(":")
    return place.rpartition(":")[0] if kind in ("ipv4", "ipv6") else ""


def unproven(method: str) -> RequestRefused:
    """Return the refusal of a caller that does not prove the job's secret."""
    name = method.rpartition("/")[2]
    if ROLES[method] == _ADMINS:
        return denied(
            f"{name} is for those who have this job's secret: name the run's folder, in which the file {FILE!r} has "
            f"it, or set {VARIABLE} to it",
        )
    return precondition(
        f"{name} is for servers with this server's own job secret only: give all servers of the job the same "
        f"{VARIABLE} (ps-lab run does)"
    )


def _unknown(message: str) -> RequestRefused:
    return RequestRefused(Code.UNAUTHENTICATED, message)


def _listed(roles: Iterable[Role]) -> str:
    return " and ".join(sorted(map(str, roles))) or "nobody"
