"""Before a server reads anything of a call: who calls, and may the caller?"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import grpc

from psserver.service.access.peers import ANYBODY, Peer
from psserver.service.access.roles import ROLES
from psserver.service.errors import Refused
from pswire.logs.events import event
from pswire.logs.texts import escaped
from pswire.security.credentials import NO_TLS, Credentials
from pswire.security.names import IdentityError, Role, Subject, subject_among
from pswire.security.tokens import HEADER

log = logging.getLogger("ps-server")

# Of a name in a refusal or a log.
LONGEST: Final = 200


class Context(Protocol):
    """The part of gRPC's context of a call that says who calls."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...
    def invocation_metadata(self) -> Any: ...
    def peer(self) -> str: ...


class Authorizer:
    """Of one server. The loop's thread owns it. `refused`: how many calls, by reason."""

    def __init__(self, credentials: Credentials = NO_TLS) -> None:
        self._credentials = credentials
        self._cluster = ""
        if credentials.mutual:
            self._cluster = credentials.identity.facts.subject.cluster
        self.refused: Counter[str] = Counter()

    def admit(self, method: str, context: Context) -> Peer:
        """Raises Refused for a peer that may not call `method`."""
        if not self._credentials.encrypted:
            return ANYBODY
        try:
            peer = self._by_token(context) if self._credentials.tokens else self._by_certificate(context)
        except Refused:
            self.refused["unknown"] += 1
            raise
        if peer.role not in ROLES.get(method, ()):
            self.refused["role"] += 1
            told = event("call_refused", peer=peer.credential, method=method)
            log.warning(
                "%s called %s, which is not for its role: refused", peer.credential, method, extra=told
            )
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{peer.credential} has the role {peer.role}, and {method.rpartition('/')[2]} is for "
                f"{_listed(ROLES.get(method, ()))}: give this process a certificate or token of that role",
            )
        return peer

    def _by_certificate(self, context: Context) -> Peer:
        shown = context.auth_context().get("x509_subject_alternative_name", ())
        try:
            subject = subject_among([name.decode() for name in shown])
        except (IdentityError, UnicodeDecodeError) as error:
            raise _unknown(escaped(str(error), LONGEST)) from error
        return self.peer_of(subject)

    def peer_of(self, subject: Subject) -> Peer:
        """Whom a certificate of our authority names. Raises Refused for another cluster's."""
        if subject.cluster != self._cluster:
            raise _unknown(
                f"the certificate is that of {subject}, and this is the cluster {self._cluster}: expected a "
                f"certificate of that one"
            )
        return Peer(subject.role, subject.name, str(subject))

    def _by_token(self, context: Context) -> Peer:
        headers = [str(value) for key, value in context.invocation_metadata() or () if key == HEADER]
        return self.peer_with(headers[0] if headers else "")

    def peer_with(self, header: str) -> Peer:
        """Whose token an `authorization` is. Raises Refused for nobody's."""
        tokens = self._credentials.tokens
        assert tokens is not None
        if not header:
            raise _unknown("expected a token, got none: give this process --token-file or PS_TOKEN")
        token = tokens.of(header)
        if token is None or token.role is None:
            raise _unknown("the token is none of those that this server knows")
        return Peer(token.role, token.name, f"the token of {token.holder}")


def _unknown(message: str) -> Refused:
    return Refused(grpc.StatusCode.UNAUTHENTICATED, message)


def _listed(roles: Iterable[Role]) -> str:
    return " and ".join(sorted(map(str, roles))) or "nobody"
