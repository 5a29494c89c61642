"""Why a server cannot be spoken with, where TLS is the reason: gRPC says "unavailable" for all of them.

One connection by Python's `ssl`, as a client would make it. Of TLS 1.3 it is to be known that a server looks at the
client's certificate when the client's handshake is over: its refusal comes with the first read.
"""

import socket
import ssl
from typing import Final, NamedTuple

from pswire.addresses import Address
from pswire.security.credentials import Credentials
from pswire.security.names import IdentityError

# How long each step may take; seconds.
PATIENCE: Final = 0.8
# Without a protocol that both know, gRPC ends a connection.
PROTOCOL: Final = "h2"

# X509_V_ERR_... of OpenSSL.
_EARLY, _ENDED, _HOST, _ADDRESS, _PURPOSE = 9, 10, 62, 64, 26
_STRANGE: Final = (2, 18, 19, 20, 21)


class Problem(NamedTuple):
    """`certain`: it stays until somebody mends it. Otherwise a server that is about to end may look the same.
    `passing`: it has nothing to do with TLS, and may well be otherwise soon."""

    sentence: str
    certain: bool = True
    passing: bool = False


def find_problem(address: Address, credentials: Credentials, patience: float = PATIENCE) -> Problem | None:
    """None where TLS is not the reason: nothing listens, say, or all is well. Takes at most thrice `patience`, and
    what the system takes to look a name up."""
    try:
        with socket.create_connection((address.host, address.port), patience) as plain:
            plain.settimeout(patience)
            if credentials.encrypted:
                return _with_tls(address, credentials, plain)
            return _without(address, plain)
    except socket.gaierror as error:
        # On Kubernetes a name may be there half a minute after its pod.
        return Problem(f"the name {address.host} is not known yet ({error.strerror})", False, True)
    except OSError:
        # Refused, or out of reach: gRPC says so itself.
        return None


class _Closed(ssl.SSLSocket):
    """By its first failure: `wrap_socket` leaves one open whose peer has reset the connection before the handshake."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except OSError:
            self.close()
            raise


def _without(address: Address, plain: socket.socket) -> Problem | None:
    """Does it answer to TLS? Whoever it is: nothing is believed."""
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
        f"{address} speaks TLS, and this process was given no certificates: give it --tls-ca, and --tls-cert and "
        "--tls-key or a token (docs/guides/tls.md)"
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
        # A server that is busy or about to end; or one behind a proxy that is not there yet.
        return Problem(f"{address} does not speak TLS (yet)", False, True)
    except ssl.SSLError as error:
        alert = _alert(error)
        return Problem(_of_own(address, alert)) if alert else Problem(_no_tls(address))
    with tls:
        return _after(address, credentials, tls)


def _after(address: Address, credentials: Credentials, tls: ssl.SSLSocket) -> Problem | None:
    """The handshake is over for this end."""
    try:
        if tls.recv(1):
            # gRPC's first words: the other end believes this one, too.
            return None
    except TimeoutError:
        return None
    except ssl.SSLError as error:
        if alert := _alert(error):
            return Problem(_of_own(address, alert))
    except OSError:
        # It hung up, as a server of gRPC does that refuses a certificate: it says nothing more.
        pass
    why = (
        "it probably refuses the certificate of this process: is it of this cluster's authority, and still good?"
        if credentials.identity.cert
        else "it probably expects a certificate of its clients, and this process shows none: give --tls-cert and "
        "--tls-key"
    )
    return Problem(f"{address} ended the connection after the handshake: {why}", False)


def _no_tls(address: Address) -> str:
    return (
        f"{address} does not speak TLS, and this process was given certificates, so it sends nothing: start the "
        "server with --tls-ca, --tls-cert and --tls-key, or is the address right?"
    )


def _of_server(address: Address, error: ssl.SSLCertVerificationError) -> str:
    """What is wrong with the server's certificate."""
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
    """The other end's last word, such as CERTIFICATE_EXPIRED; empty where it has said none."""
    return (error.reason or "").partition("ALERT_")[2]


def _of_own(address: Address, alert: str) -> str:
    """What the server says of this process's certificate."""
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
