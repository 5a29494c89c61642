"""The credentials with which a process speaks to its cluster: none, or certificates.

Everything that listens or connects uses the same `Credentials`: gRPC, data sockets, metrics, the dashboard.
"""

import logging
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pswire.logs.events import event
from pswire.security.files import TlsFiles
from pswire.security.identity import Identity
from pswire.security.names import IdentityError, Role
from pswire.security.secret import Secret

log = logging.getLogger("security")


class LiveIdentity:
    """An identity that follows its files. Call `now` for every new connection; existing ones keep theirs. Thread-safe.

    While new files are inconsistent, because they are still being written or are wrong, the old identity stays in use,
    and the log says so once.
    """

    def __init__(self, source: TlsFiles | Identity) -> None:
        """`source`: files, or an `Identity` that never changes. Raises IdentityError as `TlsFiles.read`."""
        self._files = source if isinstance(source, TlsFiles) else None
        self._guard = threading.Lock()
        # The state of the files when they were last read.
        self._stamps = self._files.stamps if self._files is not None else ()
        self._identity = source.read() if isinstance(source, TlsFiles) else source
        self._said = ""

    def now(self) -> Identity:
        """Return the current identity; the same object until the files change."""
        files = self._files
        if files is None:
            return self._identity
        with self._guard:
            stamps = files.stamps
            if stamps != self._stamps:
                self._read(files)
                self._stamps = stamps
            return self._identity

    def _read(self, files: TlsFiles) -> None:
        try:
            self._identity = files.read()
        except IdentityError as error:
            if str(error) != self._said:
                self._said = str(error)
                extra = event("identity_not_renewed")
                log.warning(
                    "the new certificate cannot be used yet, the old one stays: %s", error, extra=extra
                )
            return
        self._said = ""
        extra = event("identity_renewed", subject=str(self._identity.facts.subject))
        log.info("the certificate was renewed: %s", self._identity.facts.subject, extra=extra)


@dataclass(frozen=True)
class Credentials:
    """The credentials of one process.

    `live`: the identity, None without TLS. `role`: this process's. `insecure`: others may reach this process without
    TLS (`--insecure`). `job_secret`: what servers of one job prove to each other, and commands to them
    (`pswire.security.proof`); empty: a job without one.
    """

    live: LiveIdentity | None = None
    role: Role | None = None
    insecure: bool = False
    job_secret: Secret = field(default_factory=Secret)

    @property
    def encrypted(self) -> bool:
        return self.live is not None

    @property
    def identity(self) -> Identity:
        """The newest identity; the same object until the files change. Only with TLS."""
        assert self.live is not None, "without TLS there is no identity"
        return self.live.now()

    @property
    def server_contexts(self) -> Callable[[], ssl.SSLContext] | None:
        """A thread-safe function that returns the TLS context of a new incoming connection, except for gRPC.

        None without TLS. The function raises IdentityError for an identity that TLS cannot use.
        """
        if self.live is None:
            return None
        made: list[tuple[Identity, ssl.SSLContext]] = []

        def newest() -> ssl.SSLContext:
            identity = self.identity
            found = made[0] if made else None
            if found is None or found[0] is not identity:
                # Two threads may both make one, which is harmless.
                found = (identity, identity.server_context())
                made[:] = [found]
            return found[1]

        return newest


NO_TLS: Final = Credentials()
