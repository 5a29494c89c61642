"""The identity of a process in TLS: a certificate, its key, and the trusted authorities.

TLS 1.3 on both sides. Sessions are not resumed: every connection checks the certificate anew.
"""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from pswire.security.names import IdentityError, Subject, subject_among
from pswire.security.secret import Secret

# X509_V_ERR_... codes of OpenSSL.
_EARLY, _ENDED, _PURPOSE, _HOST, _ADDRESS = 9, 10, 26, 62, 64
_STRANGE: Final = (2, 18, 19, 20, 21)


class WrongHostError(IdentityError):
    """The certificate is valid, but for other hosts."""


@dataclass(frozen=True)
class Identity:
    """A certificate, its key and trusted authorities, all in PEM.

    `cert` may contain intermediate certificates, and `ca` several authorities.
    """

    ca: bytes = field(repr=False)
    cert: bytes = field(repr=False)
    key: Secret

    def server_context(self) -> ssl.SSLContext:
        """Return a context for a listener, which accepts only clients with a certificate of these authorities.

        Raises IdentityError for files that TLS cannot use.
        """
        context = new_context(ssl.PROTOCOL_TLS_SERVER)
        # A session ticket would be written after the handshake, to a client that may never read.
        context.num_tickets = 0
        self._believe(context)
        context.verify_mode = ssl.CERT_REQUIRED
        self._show(context)
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return a context for a client. The server's certificate must be of these authorities and for the host.

        Raises IdentityError for files that TLS cannot use.
        """
        context = new_context(ssl.PROTOCOL_TLS_CLIENT)
        self._believe(context)
        self._show(context)
        return context

    @cached_property
    def line_context(self) -> ssl.SSLContext:
        """The context of `client_context`, made once for connections to many servers."""
        return self.client_context()

    @cached_property
    def facts(self) -> "CertificateFacts":
        """The facts in the certificate.

        Raises IdentityError if the authorities did not sign it, it is not valid now, or it has no usable name.
        """
        seen = self._seen(as_client=True) or self._seen(as_client=False)
        assert seen is not None, "a certificate for neither purpose is refused for the second"
        names = [value for kind, value in seen.get("subjectAltName", ()) if kind == "URI"]
        ends = ssl.cert_time_to_seconds(seen["notAfter"])
        return CertificateFacts(subject_among(names), ends, self._authority_ends(seen))

    def is_for(self, host: str) -> bool:
        """Return True if a client that connects to `host` accepts the certificate. Raises IdentityError as `facts`."""
        try:
            self._seen(as_client=False, host=host)
        except WrongHostError:
            return False
        return True

    def _show(self, context: ssl.SSLContext) -> None:
        """Load certificate and key. `ssl` reads files only, so they go through an anonymous file in memory."""

        def encrypted() -> str:
            raise IdentityError(
                "the key is encrypted; write it without a password, readable by its owner only"
            )

        with _as_file(self.cert + b"\n" + self.key.reveal()) as path:
            try:
                context.load_cert_chain(path, password=encrypted)
            except ssl.SSLError as error:
                if error.reason == "KEY_VALUES_MISMATCH":
                    raise IdentityError("the key does not belong to the certificate") from error
                raise IdentityError(
                    f"expected a certificate and its private key in PEM, got something else ({error.reason})"
                ) from error

    def _believe(self, context: ssl.SSLContext) -> None:
        try:
            context.load_verify_locations(cadata=self.ca.decode())
        except (ssl.SSLError, ValueError) as error:
            raise IdentityError(
                "expected certificates of authorities (CA) in PEM, got something else"
            ) from error

    def _seen(self, *, as_client: bool, host: str | None = None) -> dict[str, Any] | None:
        """Return this certificate as another end sees it, or None if it is not made for this side of a connection.

        `host`: the host that the other end expects; None: any.
        """
        client, server = new_context(ssl.PROTOCOL_TLS_CLIENT), new_context(ssl.PROTOCOL_TLS_SERVER)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        self._show(server)
        self._show(client)
        checks = server if as_client else client
        self._believe(checks)
        checks.verify_mode = ssl.CERT_REQUIRED
        client.check_hostname = host is not None
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = [
            client.wrap_bio(to_client, to_server, server_hostname=host),
            server.wrap_bio(to_server, to_client, server_side=True),
        ]
        try:
            _greet(ends)
        except ssl.SSLCertVerificationError as error:
            if error.verify_code == _PURPOSE and as_client:
                return None
            if error.verify_code in (_HOST, _ADDRESS):
                raise WrongHostError(f"the certificate is not for {host}") from error
            raise IdentityError(f"the certificate {_why(error)}") from error
        except ssl.SSLError as error:
            raise IdentityError(f"TLS cannot use the certificate ({error.reason})") from error
        return ends[as_client].getpeercert()

    def _authority_ends(self, seen: dict[str, Any]) -> float:
        context = new_context(ssl.PROTOCOL_TLS_CLIENT)
        self._believe(context)
        every: list[dict[str, Any]] = list(context.get_ca_certs())
        signed = [each for each in every if each["subject"] == seen["issuer"]]
        # With an intermediate certificate in between, any of them may be the root.
        return max(ssl.cert_time_to_seconds(each["notAfter"]) for each in signed or every)


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """The facts of a certificate that is valid now. Ends are seconds since 1970."""

    subject: Subject
    certificate_ends: float
    authority_ends: float

    @property
    def ends(self) -> float:
        """The time from which it is no longer accepted."""
        return min(self.certificate_ends, self.authority_ends)


def new_context(protocol: int) -> ssl.SSLContext:
    """Return a strict context.

    `ssl.create_default_context` would trust the system's authorities, and write keys to the file in SSLKEYLOGFILE.
    """
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.hostname_checks_common_name = False
    return context


def _greet(ends: list[ssl.SSLObject]) -> None:
    """Do a handshake in memory: the client's turn, then the server's, twice."""
    for end in (*ends, *ends):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue


def _why(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == _ENDED:
        return "or that of its authority has expired; make new ones (ps-lab certs DIR --renew)"
    if error.verify_code == _EARLY:
        return "is not valid yet; is the clock of this machine right?"
    if error.verify_code in _STRANGE:
        return "was not signed by the authority (CA) given with it"
    return f"is not accepted: {error.verify_message}"


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Yield a path at which only this process can read `data`, for the duration of the block."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("identity", os.MFD_CLOEXEC)
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        yield file.name
