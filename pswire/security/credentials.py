"""What one process has to speak with the others of its cluster: nothing, certificates, or tokens over TLS.

Everything that listens or connects is given the same `Credentials`: gRPC, the data line, metrics, the dashboard.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pswire.security.identity import Identity
from pswire.security.names import Role
from pswire.security.rotation import LiveIdentity
from pswire.security.tokens import Tokens, bearer

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Credentials:
    """`live`: the identity, None without TLS. `tokens`: instead of certificates of clients. `role`: this process's.
    `insecure`: others may reach this process although there is no TLS (`--insecure`)."""

    live: LiveIdentity | None = None
    tokens: Tokens | None = None
    role: Role | None = None
    insecure: bool = False

    @property
    def encrypted(self) -> bool:
        return self.live is not None

    @property
    def mutual(self) -> bool:
        """Both ends show certificates."""
        return self.encrypted and self.tokens is None

    @property
    def kind(self) -> str:
        """ "tls", "tokens" or "none": for statuses and summaries."""
        if not self.encrypted:
            return "none"
        return "tls" if self.tokens is None else "tokens"

    @property
    def identity(self) -> Identity:
        """The newest; the same object until the files change. Only with TLS."""
        assert self.live is not None, "without TLS there is no identity"
        return self.live.now()

    @property
    def server_contexts(self) -> Callable[[], ssl.SSLContext] | None:
        """That of TLS for a new connection to this process, other than gRPC's; None without TLS.

        It raises IdentityError for an identity that TLS cannot use. Any thread may call it.
        """
        if self.live is None:
            return None
        made: list[tuple[Identity, ssl.SSLContext]] = []

        def newest() -> ssl.SSLContext:
            identity = self.identity
            found = made[0] if made else None
            if found is None or found[0] is not identity:
                # Two threads may both make one, which does no harm.
                found = (identity, identity.server_context(mutual=self.mutual))
                made[:] = [found]
            return found[1]

        return newest

    @cached_property
    def metadata(self) -> Metadata:
        """Of every call that this process makes. Raises TokenError where its own token is not clear."""
        if self.tokens is None or self.role is None:
            return ()
        return bearer(self.tokens.own(self.role))


NO_TLS: Final = Credentials()
