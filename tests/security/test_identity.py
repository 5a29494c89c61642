"""What a process shows, and whom it believes: contexts that shake hands, in memory."""

import ssl

import pytest

from pswire.security.identity import Identity
from pswire.security.names import IdentityError, Role
from pswire.security.secret import Secret
from tests.security.authorities import authority, ended, future, nobody, server, worker
from tests.sentences import Recorder


def shaken(client: ssl.SSLContext, server: ssl.SSLContext, host: str = "localhost") -> list[ssl.SSLObject]:
    """Both ends after a handshake; raises what either raises. The client learns last what the server thinks of it."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for end in (*ends, *ends):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return ends


def test_each_end_knows_the_other() -> None:
    s, w = server(), worker()
    _, at_server = shaken(w.client_context(), s.server_context())
    assert at_server.version() == "TLSv1.3"
    assert str(w.facts.subject) == "ps://lab/worker/w0"
    assert s.facts.subject.role is Role.SERVER
    assert s.facts.ends > s.facts.authority_ends - 2


def test_older_versions_of_tls_are_not_spoken() -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(ssl.SSLError):
        shaken(old, server().server_context())


def test_the_host_must_be_the_one_that_was_meant() -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shaken(worker().client_context(), server().server_context(), "elsewhere")
    for host in ("localhost", "127.0.0.1", "::1"):
        shaken(worker().client_context(), server().server_context(), host)


def test_a_certificate_knows_the_hosts_that_it_is_for() -> None:
    for host in ("localhost", "127.0.0.1", "::1"):
        assert server().is_for(host)
    for host in ("elsewhere", "10.0.0.1"):
        assert not server().is_for(host)


def test_a_certificate_of_others_is_believed_by_neither_end() -> None:
    stranger = worker(cluster="other")
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(stranger.client_context(), server().server_context())
    # It believes the server, and shows a certificate of its own authority.
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(
            Identity(authority().cert, stranger.cert, stranger.key).client_context(),
            server().server_context(),
        )


def test_a_client_without_a_certificate_is_refused(sentences: Recorder) -> None:
    with pytest.raises(ssl.SSLError) as refused:
        shaken(nobody(), server().server_context())
    sentences.check(refused)


def test_a_workers_certificate_makes_no_server() -> None:
    """Whoever runs a worker cannot pose as a server to others."""
    posing = authority().issue(Role.WORKER, "w0")
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(worker("w1").client_context(), posing.server_context())


def test_no_session_is_resumed() -> None:
    """A ticket would outlive the certificate that it was given for."""
    at_client, at_server = shaken(worker().client_context(), server().server_context())
    at_server.write(b"x")
    assert at_client.read(1) == b"x"
    assert at_client.session is None or not at_client.session.has_ticket


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        (ended(Role.WORKER, "w0"), "has expired; make new ones"),
        (future("w0"), "is not valid yet; is the clock"),
        (Identity(authority("other").cert, worker().cert, worker().key), "does not belong"),
        (Identity(authority().cert, worker().cert, worker().key), "does not belong"),
        (Identity(authority().cert, b"nonsense", Secret(b"nonsense")), "in PEM, got something else"),
        (Identity(b"nonsense", worker().cert, Secret()), "in PEM, got something else"),
    ],
)
def test_what_is_wrong_is_said(identity: Identity, said: str) -> None:
    with pytest.raises(IdentityError, match=said):
        _ = identity.facts


def test_an_identity_of_another_authority_is_told_apart(sentences: Recorder) -> None:
    w = worker()
    with pytest.raises(IdentityError) as refused:
        _ = Identity(authority("other").cert, w.cert, w.key).facts
    sentences.check(refused)


def test_authorities_may_be_several() -> None:
    """While one authority follows another, both are believed."""
    both = authority().cert + authority("other").cert
    w, o = worker(), worker(cluster="other")
    for each in (w, o):
        assert Identity(both, each.cert, each.key).facts.subject.role is Role.WORKER
    s = server()
    accepts = Identity(both, s.cert, s.key).server_context()
    shaken(w.client_context(), accepts)
    shaken(Identity(both, o.cert, o.key).client_context(), accepts)


def test_secrets_do_not_print() -> None:
    w = worker()
    secret = w.key.reveal().decode()
    for shown in (repr(w), str(w), f"{w.key}", f"{w.key!r}"):
        assert secret[40:60] not in shown
        assert "***" in shown
    assert w.key == Secret(w.key.reveal())
    assert w.key != Secret(b"other")
    assert bool(w.key)
    assert not Secret()
