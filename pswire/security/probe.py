"""Diagnosis of failed connections where TLS is the reason: gRPC reports all of them as "unavailable".

Makes one connection with Python's `ssl`, as a client would. In TLS 1.3 a server checks the client's certificate after
the client's handshake is over, so its refusal arrives with the first read.
"""

import socket
import ssl
from typing import Final, NamedTuple

from pswire.addresses import Address
from pswire.security.credentials import Credentials
from pswire.security.names import IdentityError

# Seconds that each step may take.
PATIENCE: Final = 0.8
# gRPC closes a connection without a common application protocol.
PROTOCOL: Final = "h2"

# X509_V_ERR_... of OpenSSL.
_EARLY, _ENDED, _HOST, _ADDRESS, _PURPOSE = 9, 10, 62, 64, 26
_STRANGE: Final = (2, 18, 19, 20, 21)


class Problem(NamedTuple):
    """The reason of a failed connection.

    `certain`: it lasts until somebody fixes it; otherwise a server that is shutting down may look the same. `passing`:
    it is unrelated to TLS, and may soon be over.
    """

    sentence: str
    certain: bool = True
    passing: bool = False


def find_problem(address: Address, credentials: Credentials, patience: float = PATIENCE) -> Problem | None:
    """Return the TLS problem of a connection; None if TLS is not the reason, or all is well.

    Takes at most three times `patience`, plus the system's name resolution.
    """
    try:
        with socket.create_connection((address.host, address.port), patience) as plain:
            plain.settimeout(patience)
            if credentials.encrypted:
                return _with_tls(address, credentials, plain)
            return _without(address, plain)
    except socket.gaierror as error:
        # On Kubernetes a name may be available only half a minute after its pod.
        return Problem(f"the name {address.host} is not known yet ({error.strerror})", False, True)
    except OSError:
        # Refused or unreachable, which gRPC reports itself.
        return None


def nobody_listens(address: Address, patience: float = PATIENCE) -> bool:
    """Return whether the system at the address refuses connections: no process has the port. False for silence."""
    try:
        with socket.create_connection((address.host, address.port), patience):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


class _Closed(ssl.SSLSocket):
    """Closes at its first failure: `wrap_socket` leaves it open if the peer resets before the handshake."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except OSError:
            self.close()
            raise


def _without(address: Address, plain: socket.socket) -> Problem | None:
    """Check whether the address answers to TLS, without verifying who it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([PROTOCOL])
    context.sslsocket_class = _Closed
    try:
        with context.wrap_socket(plain):
            pass
    except OSError:
        return None
    return Problem(
        f"{address} speaks TLS, and this process was given no certificates: give it --tls-ca, --tls-cert "
        "and --tls-key (docs/guides/tls.md)"
    )


def _with_tls(address: Address, credentials: Credentials, plain: socket.socket) -> Problem | None:
    try:
        context = credentials.identity.client_context()
    except IdentityError as error:
        return Problem(str(error))
    context.set_alpn_protocols([PROTOCOL])
    context.sslsocket_class = _Closed
    try:
        tls = context.wrap_socket(plain, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        return Problem(_of_server(address, error))
    except (TimeoutError, ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError):
        # A server that is busy or shutting down, or behind a proxy that is not up yet.
        return Problem(f"{address} does not speak TLS (yet)", False, True)
    except ssl.SSLError as error:
        alert = _alert(error)
        return Problem(_of_own(address, alert)) if alert else Problem(_no_tls(address))
    with tls:
        return _after(address, tls)


def _after(address: Address, tls: ssl.SSLSocket) -> Problem | None:
    """Check what follows the handshake, which is over for this end."""
    try:
        if tls.recv(1):
            # gRPC's first bytes: the other end accepts this one, too.
            return None
    except TimeoutError:
        return None
    except ssl.SSLError as error:
        if alert := _alert(error):
            return Problem(_of_own(address, alert))
    except OSError:
        # The peer hung up, as gRPC servers do when they refuse a certificate.
        pass
    why = "it probably refuses the certificate of this process: is it of this cluster's authority, and still good?"
    return Problem(f"{address} ended the connection after the handshake: {why}", False)


def _no_tls(address: Address) -> str:
    return (
        f"{address} does not speak TLS, and this process was given certificates, so it sends nothing: start the "
        "server with --tls-ca, --tls-cert and --tls-key, or is the address right?"
    )


def _of_server(address: Address, error: ssl.SSLCertVerificationError) -> str:
    """Say what is wrong with the server's certificate."""
    code = error.verify_code
    if code in _STRANGE:
        return (
            f"the certificate of {address} was not signed by the authority in --tls-ca: is it of another cluster, or "
            "is the file an old one?"
        )
    if code == _ENDED:
        return f"the certificate of {address}, or that of its authority, has expired: make a new one for that server"
    if code == _EARLY:
        return f"the certificate of {address} is not valid yet: are the clocks of both machines right?"
    if code in (_HOST, _ADDRESS):
        return (
            f"the certificate of {address} is not for {address.host}: reach the server by a name in its certificate, "
            "or make one with this name (ps-lab certs)"
        )
    if code == _PURPOSE:
        return f"the certificate of {address} is not one of a server"
    return f"the certificate of {address} is not accepted: {error.verify_message}"


def _alert(error: ssl.SSLError) -> str:
    """Return the alert that the other end sent, such as CERTIFICATE_EXPIRED; empty if none."""
    return (error.reason or "").partition("ALERT_")[2]


def _of_own(address: Address, alert: str) -> str:
    """Say why the server refuses this process's certificate."""
    if "CERTIFICATE_REQUIRED" in alert:
        return (
            f"{address} expects a certificate of its clients, and this process shows none: give --tls-cert and "
            "--tls-key"
        )
    if "EXPIRED" in alert:
        return f"{address} refuses the certificate of this process: it has expired"
    if "UNKNOWN_CA" in alert:
        return (
            f"{address} refuses the certificate of this process: an authority signed it that it does not know"
        )
    return f"{address} refuses the certificate of this process ({alert.lower().replace('_', ' ')})"
