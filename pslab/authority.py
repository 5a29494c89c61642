"""A private certificate authority, in memory. Needs `cryptography` (extra `tls`), which no other module does."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from pswire.extras import how_to_install
from pswire.security.identity import Identity
from pswire.security.names import IdentityError, Role, Subject, check_part, subject_among
from pswire.security.secret import Secret

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

# The clocks of two machines may differ by this much.
SKEW = datetime.timedelta(hours=1)
# The default validity: longer than a run.
VALID: Final = datetime.timedelta(days=30)
# Names by which a machine reaches itself.
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def check_installed() -> None:
    """Raise IdentityError, which says what to install, if `cryptography` is missing."""
    if find_spec("cryptography") is None:
        raise IdentityError(f"making certificates needs cryptography: {how_to_install('tls')}")


@dataclass(frozen=True, slots=True)
class Certificate:
    """The contents of a certificate. `subject`: None for an authority's or a foreign one. `hosts`: it may serve."""

    subject: Subject | None
    hosts: tuple[str, ...]
    begins: datetime.datetime
    ends: datetime.datetime


def described(cert: bytes) -> Certificate:
    """Describe the first certificate in `cert`, whether or not it is valid or trusted. Raises IdentityError."""
    check_installed()
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(cert)
    except ValueError as error:
        raise IdentityError("expected a certificate in PEM, got something else") from error
    names: list[Any] = []
    subject = None
    try:
        names = list(found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        subject = subject_among(str(n.value) for n in names if isinstance(n, x509.UniformResourceIdentifier))
    except (x509.ExtensionNotFound, IdentityError):
        # A certificate of an authority, or a foreign one.
        names = names or []
    hosts = tuple(str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress))
    return Certificate(subject, hosts, found.not_valid_before_utc, found.not_valid_after_utc)


class Authority:
    """Signs certificates, with P-256 keys that it makes, for the processes of one cluster.

    `cert`: its own certificate in PEM, which the whole cluster trusts. `key`: in PEM; its holder is the authority.
    """

    def __init__(self, cert: bytes, key: Secret) -> None:
        """Load an authority. Raises IdentityError if certificate and key are none, and without `cryptography`."""
        check_installed()
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.x509.oid import NameOID

        self.cert, self.key = cert, key
        try:
            self._cert = x509.load_pem_x509_certificate(cert)
            self._key: EllipticCurvePrivateKey = serialization.load_pem_private_key(key.reveal(), None)
        except (TypeError, ValueError) as error:
            raise IdentityError(
                "expected an authority's certificate and its key in PEM, without a password"
            ) from error
        if self._key.public_key() != self._cert.public_key():
            raise IdentityError("the authority's key does not belong to its certificate")
        found = self._cert.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        self.cluster = str(found[0].value) if found else ""
        check_part(self.cluster, "the cluster that an authority's certificate names as its organization")

    @classmethod
    def make(cls, cluster: str, valid: datetime.timedelta = VALID) -> "Authority":
        """Make a new authority, whose certificates are valid for at most `valid`.

        Raises IdentityError without `cryptography`, and for a name that a certificate cannot hold (see
        `cluster_named_after`).
        """
        check_installed()
        from cryptography import x509

        check_part(cluster, "the name of a cluster")
        key = _new_key()
        name = _name(cluster, "authority")
        usage = _key_usage(key_cert_sign=True, crl_sign=True)
        builder = (
            _builder(name, name, key, valid)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )
        return cls(_pem(_signed(builder, key)), _key_pem(key))

    @property
    def ends(self) -> datetime.datetime:
        """The end of validity, in UTC."""
        ends: datetime.datetime = self._cert.not_valid_after_utc
        return ends

    def issue(
        self, role: Role, name: str = "", hosts: Sequence[str] = (), valid: datetime.timedelta | None = None
    ) -> Identity:
        """Issue a certificate and key for one process, together with the authority's certificate.

        `hosts`: DNS names and IP addresses under which others reach it; without any it serves clients only. A server
        also gets the names of the loopback interface. `name` "": any process of the role. `valid`: at most as long as
        the authority itself. Raises IdentityError for a name that a certificate cannot hold.
        """
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID as Usage

        subject = Subject(self.cluster, role, name)
        listens = role is Role.SERVER or bool(hosts)
        names = dict.fromkeys((*hosts, *LOOPBACK)) if listens else {}
        purposes = [Usage.CLIENT_AUTH, *([Usage.SERVER_AUTH] if listens else [])]
        key = _new_key()
        person = _name(self.cluster, f"{role} {name}".strip())
        builder = (
            _builder(person, self._cert.subject, key, valid or VALID, self.ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.UniformResourceIdentifier(str(subject)), *map(_host, names)]
                ),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        return Identity(self.cert, _pem(_signed(builder, self._key)), _key_pem(key))


def _builder(
    subject: "x509.Name",
    issuer: "x509.Name",
    key: "EllipticCurvePrivateKey",
    valid: datetime.timedelta,
    latest: datetime.datetime | None = None,
) -> "x509.CertificateBuilder":
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    ends = now + valid
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(ends if latest is None else min(ends, latest))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _signed(builder: "x509.CertificateBuilder", key: "EllipticCurvePrivateKey") -> "x509.Certificate":
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA256())


def _new_key() -> "EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name(cluster: str, common: str) -> "x509.Name":
    """Return a name for people to read; programs ignore it. X.509 allows 64 characters for each part."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster[:64]),
            x509.NameAttribute(NameOID.COMMON_NAME, common[:64]),
        ]
    )


def _key_usage(**used: bool) -> "x509.KeyUsage":
    from cryptography import x509

    every = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{each: used.get(each, False) for each in every})


def _host(text: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        # A DNS name, then.
        pass
    try:
        return x509.DNSName(text)
    except ValueError as error:
        raise IdentityError(
            f"a host in a certificate: expected a DNS name or an IP address, got {text!r}"
        ) from error


def _pem(cert: "x509.Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    pem: bytes = cert.public_bytes(Encoding.PEM)
    return pem


def _key_pem(key: "EllipticCurvePrivateKey") -> Secret:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return Secret(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
