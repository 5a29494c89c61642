"""A folder of certificates, and additions to it, for `ps-lab certs`. Nothing is replaced without --renew.

ca.pem is the authority's certificate, which every process needs. ca-key.pem is its key: no process needs it, and
anybody who has it can make certificates. Each process has NAME.pem and NAME-key.pem.
"""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pslab.authority import Authority, Certificate, described
from pswire.addresses import AddressError, parse_address
from pswire.security.files import TlsFiles, read_file, write_file
from pswire.security.names import IdentityError, Role
from pswire.security.secret import Secret

CA = "ca"
# Minimal validity of an authority: its certificate is on every machine, so it outlives the others.
AUTHORITY_DAYS = 365


@dataclass(frozen=True, slots=True)
class WantedCertificate:
    """A certificate to make. `name`: its subject, "" for any process of the role; `hosts`: as in `Authority.issue`."""

    role: Role
    name: str
    hosts: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """The stem of its file names."""
        return self.name or str(self.role)


@dataclass(frozen=True, slots=True)
class HeldCertificate:
    """A certificate in a folder."""

    stem: str
    certificate: Certificate


@dataclass(frozen=True, slots=True)
class MadeCertificates:
    """The result of `make`: stems of the files that were written, and of those that existed and were kept."""

    cluster: str
    new: tuple[str, ...]
    kept: tuple[str, ...]


class CertificateFolder:
    """A folder of certificates. Every method may raise IdentityError and OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def files(self, stem: str) -> TlsFiles:
        return TlsFiles.in_folder(self.path, stem)

    def make(
        self, wanted: Iterable[WantedCertificate], cluster: str | None, days: int, *, renew: bool = False
    ) -> MadeCertificates:
        """Make the certificates in `wanted` that are missing; with `renew`, all of these and all existing ones anew.

        If there is no authority, make one first, for `cluster` or "lab".
        """
        every = list(wanted)
        there = {held.stem: held for held in self.held() if held.stem != CA}
        for each in every:
            if each.stem in there and not renew:
                _check_same(each, there[each.stem])
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = self._authority(cluster, days)
        valid = datetime.timedelta(days=days)
        if authority.ends < datetime.datetime.now(datetime.UTC) + valid:
            raise IdentityError(
                f"the authority of {self.path} ends on {authority.ends:%Y-%m-%d}, before certificates of {days} days "
                "would: expected fewer --days, or a new folder"
            )
        chosen = {each.stem: each for each in every}
        if renew:
            chosen = {stem: _as_before(held) for stem, held in there.items()} | chosen
        new = [stem for stem in chosen if renew or stem not in there]
        for stem in new:
            each = chosen[stem]
            issued = authority.issue(each.role, each.name, each.hosts, valid)
            self.files(stem).write(issued, replace=renew)
        return MadeCertificates(
            authority.cluster, tuple(new), tuple(stem for stem in there if stem not in new)
        )

    def held(self) -> list[HeldCertificate]:
        """Return all certificates: the authority first, then by name.

        A key without its certificate, or a certificate without its key, is an error.
        """
        if not self.path.is_dir():
            return []
        found = []
        for path in sorted(self.path.glob("*.pem")):
            stem = path.stem.removesuffix("-key")
            if stem == path.stem:
                found.append(HeldCertificate(stem, described(read_file(path, "certificate"))))
            if not ((self.path / f"{stem}.pem").exists() and (self.path / f"{stem}-key.pem").exists()):
                raise IdentityError(
                    f"{self.path}: expected both {stem}.pem and {stem}-key.pem, got one of them: remove it"
                )
        return sorted(found, key=lambda held: (held.stem != CA, _in_order(held.stem)))

    def _authority(self, cluster: str | None, days: int) -> Authority:
        cert, key = self.path / f"{CA}.pem", self.path / f"{CA}-key.pem"
        if not cert.exists():
            valid = datetime.timedelta(days=max(days + 1, AUTHORITY_DAYS))
            made = Authority.make("lab" if cluster is None else cluster, valid)
            write_file(key, made.key.reveal(), 0o600)
            write_file(cert, made.cert, 0o644)
            return made
        found = Authority(read_file(cert, "certificate"), Secret(read_file(key, "key", private=True)))
        if cluster not in (None, found.cluster):
            raise IdentityError(
                f"{self.path} belongs to cluster {found.cluster!r}, got --cluster {cluster}: use another folder"
            )
        return found


def _check_same(wanted: WantedCertificate, held: HeldCertificate) -> None:
    """Raise IdentityError if an existing certificate, which is kept, does not match the wanted one."""
    missing = [host for host in wanted.hosts if host not in held.certificate.hosts]
    subject = held.certificate.subject
    if missing:
        raise IdentityError(
            f"{wanted.stem}.pem exists and is not valid for {', '.join(missing)}: --renew replaces it"
        )
    if subject is None or (subject.role, subject.name) != (wanted.role, wanted.name):
        raise IdentityError(
            f"{wanted.stem}.pem exists: expected a certificate of a {wanted.role}, got {subject}"
        )


def _as_before(held: HeldCertificate) -> WantedCertificate:
    subject = held.certificate.subject
    if subject is None:
        raise IdentityError(f"{held.stem}.pem is not a certificate of a process of this cluster")
    return WantedCertificate(subject.role, subject.name, held.certificate.hosts)


def _in_order(stem: str) -> tuple[str, int]:
    """Sort w2 before w10."""
    letters = stem.rstrip("0123456789")
    number = stem[len(letters) :]
    return letters, int(number) if number else -1


def parse_servers(text: str) -> tuple[tuple[str, ...], ...]:
    """Parse `h0,h1:7071/10.0.0.7`: the names of each server, in task order. Raises AddressError."""
    return tuple(tuple(map(_host, part.strip().split("/"))) for part in text.split(","))


def _host(text: str) -> str:
    """Return the host of an address with or without a port. An IPv6 address without a port needs no brackets."""
    if not text:
        raise AddressError("expected servers such as h0,h1 or h0:7070/10.0.0.7, got an empty name")
    if (text.count(":") > 1 and not text.startswith("[")) or text.endswith("]"):
        return parse_address(f"[{text.strip('[]')}]:0").host
    return parse_address(text if ":" in text else f"{text}:0").host
