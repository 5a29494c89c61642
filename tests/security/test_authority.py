"""Certificates of our own making, looked at by others: `cryptography`'s verifier, OpenSSL's strict mode."""

import datetime
import ipaddress
import ssl

import pytest
from cryptography import x509
from cryptography.x509 import verification

from pslab import authority as module
from pslab.authority import Authority
from pswire.extras import how_to_install
from pswire.security.identity import Identity
from pswire.security.names import IdentityError, Role
from tests.promises import promise
from tests.security.authorities import authority
from tests.sentences import Recorder


def verifier(made: Authority) -> verification.PolicyBuilder:
    store = verification.Store([x509.load_pem_x509_certificate(made.cert)])
    return verification.PolicyBuilder().store(store)


def leaf(identity: Identity) -> x509.Certificate:
    return x509.load_pem_x509_certificate(identity.cert)


@promise("A second implementation accepts the certificates; a worker's certificate does not make a server.")
def test_a_second_implementation_believes_a_server_for_its_hosts() -> None:
    made = leaf(authority().issue(Role.SERVER, "server-0", ["h0.example", "10.0.0.7", "fd00::7"]))
    hosts = [x509.DNSName("h0.example"), x509.DNSName("localhost")]
    addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in ("10.0.0.7", "fd00::7", "127.0.0.1")]
    for subject in (*hosts, *addresses):
        verifier(authority()).build_server_verifier(subject).verify(made, [])
    with pytest.raises(verification.VerificationError):
        verifier(authority()).build_server_verifier(x509.DNSName("h1.example")).verify(made, [])
    with pytest.raises(verification.VerificationError):
        verifier(authority("other")).build_server_verifier(hosts[0]).verify(made, [])


def test_a_second_implementation_believes_a_worker_as_a_client_only() -> None:
    made = leaf(authority().issue(Role.WORKER, "w0"))
    seen = verifier(authority()).build_client_verifier().verify(made, [])
    assert [name.value for name in seen.subjects or []] == ["ps://lab/worker/w0"]
    with pytest.raises(verification.VerificationError):
        verifier(authority()).build_server_verifier(x509.DNSName("localhost")).verify(made, [])


def test_openssl_believes_it_in_its_strict_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 switches that on by default."""
    from pswire.security import identity as contexts

    plain = contexts.new_context

    def strict(protocol: int) -> ssl.SSLContext:
        context = plain(protocol)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(contexts, "new_context", strict)
    for role in Role:
        assert authority().issue(role, "x").facts.subject.role is role


def test_keys_are_of_each_process_alone_and_of_the_curve_p256() -> None:
    one, other = (authority().issue(Role.WORKER, "w0") for _ in range(2))
    assert one.key != other.key
    assert one.cert != other.cert
    assert leaf(one).public_key().curve.name == "secp256r1"  # type: ignore[union-attr]


def test_a_certificate_lasts_as_long_as_was_said_and_no_longer_than_its_authority() -> None:
    day = datetime.timedelta(days=1)
    made = Authority.make("lab", 3 * day)
    now = datetime.datetime.now(datetime.UTC)
    short, long = made.issue(Role.WORKER, "w0", valid=day), made.issue(Role.WORKER, "w0", valid=9 * day)
    assert abs(leaf(short).not_valid_after_utc - now - day) < datetime.timedelta(minutes=1)
    assert leaf(long).not_valid_after_utc == made.ends
    assert leaf(short).not_valid_before_utc < now - datetime.timedelta(minutes=30), "clocks differ"
    assert long.facts.ends == long.facts.authority_ends == made.ends.timestamp()


def test_an_authority_goes_on_from_its_certificate_and_key() -> None:
    again = Authority(authority().cert, authority().key)
    assert again.cluster == "lab"
    issued = again.issue(Role.OBSERVER, "o")
    assert Identity(authority().cert, issued.cert, issued.key).facts.subject.name == "o"


def test_what_is_no_authority_is_refused(sentences: Recorder) -> None:
    made, other = authority(), authority("other")
    with pytest.raises(IdentityError) as refused:
        Authority(made.cert, other.key)
    sentences.check(refused)
    with pytest.raises(IdentityError) as refused:
        Authority(b"nonsense", made.key)
    sentences.check(refused)


@pytest.mark.parametrize("cluster", ["", "two words", "a/b", "x" * 65])
def test_names_that_no_certificate_can_hold_are_refused(cluster: str, sentences: Recorder) -> None:
    with pytest.raises(IdentityError) as refused:
        Authority.make(cluster)
    sentences.check(refused)
    with pytest.raises(IdentityError) as refused:
        authority().issue(Role.WORKER, cluster or "a b")
    sentences.check(refused)


def test_a_host_that_is_none_is_refused(sentences: Recorder) -> None:
    with pytest.raises(IdentityError) as refused:
        authority().issue(Role.SERVER, "s", ["höst"])
    sentences.check(refused)


def test_without_the_extra_a_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(IdentityError) as refused:
        Authority.make("lab")
    assert str(refused.value) == f"making certificates needs cryptography: {how_to_install('tls')}"
