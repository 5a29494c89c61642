"""What is wrong with a connection, in a sentence, from gRPC's text about the attempt that failed.

gRPC's code is the same ("unavailable") for a server that is not there and for one that does not trust this process.
tests/security/test_first_contact.py holds gRPC to its texts.
"""

from typing import Final, NamedTuple

import grpc

from pswire.addresses import Address
from pswire.security.credentials import Credentials

#: How gRPC begins when there was no connection on which a call could begin.
_NEVER_BEGAN: Final = ("failed to connect to all addresses", "errors resolving ")
#: A connection that ended before the first bytes of HTTP/2, which is also what a refused client sees in TLS 1.3.
_HUNG_UP: Final = ("Socket closed", "Connection reset by peer", "Broken pipe")


class ConnectionProblem(NamedTuple):
    """The reason of a failed connection.

    `certain`: it lasts until somebody fixes it; a server that is about to end may look like any other. `passing`: it
    has nothing to do with trust, and may soon be over.
    """

    sentence: str
    certain: bool = True
    passing: bool = False


#: Words of gRPC's texts (BoringSSL's reasons among them), and what they mean; the first that is found counts.
_MEANINGS: Final = (
    (
        "errors resolving ",
        ConnectionProblem("the name {host} is not known yet", certain=False, passing=True),
    ),
    (
        "WRONG_VERSION_NUMBER",
        ConnectionProblem(
            "{address} does not speak TLS, and this process was given certificates, so it sends nothing: start the "
            "server with --tls-ca, --tls-cert and --tls-key, or is the address right?"
        ),
    ),
    (
        "certificate has expired",
        ConnectionProblem(
            "the certificate of {address}, or that of its authority, has expired: make a new one for that server"
        ),
    ),
    (
        "certificate is not yet valid",
        ConnectionProblem(
            "the certificate of {address} is not valid yet: are the clocks of both machines right?"
        ),
    ),
    (
        "unsupported certificate purpose",
        ConnectionProblem(
            "the certificate of {address} is not one of a server: give that server its own --tls-cert"
        ),
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        ConnectionProblem(
            "the certificate of {address} was not signed by the authority in --tls-ca: is it of another cluster, or "
            "is the file an old one?"
        ),
    ),
    (
        "Hostname Verification Check failed",
        ConnectionProblem(
            "the certificate of {address} is not for {host}: reach the server by a name in its certificate, or make "
            "one with this name (ps-lab certs)"
        ),
    ),
    (
        "Handshake read failed",
        ConnectionProblem(
            "{address} ended the TLS handshake: it starts, ends or is busy", certain=False, passing=True
        ),
    ),
)
_REFUSES = (
    "{address} ended the connection after the handshake: it probably refuses the certificate of this process (is "
    "--tls-cert of this cluster's authority, and still good?)"
)
_SPEAKS_TLS = (
    "{address} ended the connection before any answer: it probably speaks TLS, and this process was given no "
    "certificates (--tls-ca, --tls-cert and --tls-key; docs/guides/tls.md); or it is a proxy with nothing behind it"
)


def problem_of(error: grpc.RpcError, address: Address, credentials: Credentials) -> ConnectionProblem | None:
    """Return what TLS, or the name service, has to do with a call's failure; None if neither is the reason."""
    text = error.details() or ""
    if error.code() != grpc.StatusCode.UNAVAILABLE or not text.startswith(_NEVER_BEGAN):
        return None
    found = next((problem for words, problem in _MEANINGS if words in text), None)
    if found is None and any(words in text for words in _HUNG_UP):
        found = ConnectionProblem(_REFUSES if credentials.encrypted else _SPEAKS_TLS, certain=False)
    if found is None:
        return None
    return found._replace(sentence=found.sentence.format(address=address, host=address.host))
