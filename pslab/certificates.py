"""What a folder of certificates holds, and what is added to it: `ps-lab certs`. Nothing is replaced unasked.

ca.pem is the authority's certificate, which every process needs; ca-key.pem its key, which no process needs and
whoever has makes certificates. Beside them NAME.pem and NAME-key.pem for each process."""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pswire.addresses import Address, AddressError, parse_address
from pswire.security.authority import Authority, Certificate, described
from pswire.security.files import TlsFiles, read_file
from pswire.security.identity import Identity
from pswire.security.names import IdentityError, Role
from pswire.security.secret import Secret

CA = "ca"
# An authority lasts at least so long: its certificate is on every machine, and theirs are made anew before.
AUTHORITY_DAYS = 365


@dataclass(frozen=True, slots=True)
class Wanted:
    """A certificate: `name` as in it, "" for any process of the role; `hosts` as of `Authority.issue`."""

    role: Role
    name: str
    hosts: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """Of its files."""
        return self.name or str(self.role)


@dataclass(frozen=True, slots=True)
class Held:
    """One of a folder."""

    stem: str
    certificate: Certificate


@dataclass(frozen=True, slots=True)
class Made:
    """`new`: the stems of what was written; `kept`: of what was there."""

    cluster: str
    new: tuple[str, ...]
    kept: tuple[str, ...]


class CertificateFolder:
    """Every method raises IdentityError, with a sentence, and OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def files(self, stem: str) -> TlsFiles:
        return TlsFiles.in_folder(self.path, stem)

    def make(self, wanted: Iterable[Wanted], cluster: str | None, days: int, *, renew: bool = False) -> Made:
        """What is missing of `wanted`; with `renew` all of it, and of what is there already, with new keys. An
        authority first, where there is none; its cluster is `cluster`, "lab" by default."""
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
                "would: give fewer --days, or make a new folder"
            )
        chosen = {each.stem: each for each in every}
        if renew:
            chosen = {stem: _as_before(held) for stem, held in there.items()} | chosen
        new = [stem for stem in chosen if renew or stem not in there]
        for stem in new:
            each = chosen[stem]
            issued = authority.issue(each.role, each.name, each.hosts, valid)
            self.files(stem).write(issued, replace=renew)
        return Made(authority.cluster, tuple(new), tuple(stem for stem in there if stem not in new))

    def held(self) -> list[Held]:
        """What is there: the authority first, then by name. A key without a certificate, or the other way round, is
        an error: whatever made it was interrupted."""
        if not self.path.is_dir():
            return []
        found = []
        for path in sorted(self.path.glob("*.pem")):
            stem = path.stem.removesuffix("-key")
            if stem == path.stem:
                found.append(Held(stem, described(read_file(path, "certificate"))))
            if not ((self.path / f"{stem}.pem").exists() and (self.path / f"{stem}-key.pem").exists()):
                raise IdentityError(
                    f"{self.path}: {stem}.pem and {stem}-key.pem belong together, and one is missing; "
                    "remove the other one"
                )
        return sorted(found, key=lambda held: (held.stem != CA, _in_order(held.stem)))

    def _authority(self, cluster: str | None, days: int) -> Authority:
        cert, key = self.path / f"{CA}.pem", self.path / f"{CA}-key.pem"
        if not cert.exists():
            valid = datetime.timedelta(days=max(days + 1, AUTHORITY_DAYS))
            made = Authority.make("lab" if cluster is None else cluster, valid)
            TlsFiles(cert, key=key).write(Identity(made.cert, key=made.key))
            return made
        found = Authority(read_file(cert, "certificate"), Secret(read_file(key, "key", private=True)))
        if cluster not in (None, found.cluster):
            raise IdentityError(
                f"{self.path} is the folder of cluster {found.cluster!r}, got --cluster {cluster}: "
                "use another folder"
            )
        return found


def _check_same(wanted: Wanted, held: Held) -> None:
    """What is there is kept, and must therefore do."""
    missing = [host for host in wanted.hosts if host not in held.certificate.hosts]
    subject = held.certificate.subject
    if missing:
        raise IdentityError(
            f"{wanted.stem}.pem is there already, and not for {', '.join(missing)}: --renew makes it anew"
        )
    if subject is None or (subject.role, subject.name) != (wanted.role, wanted.name):
        raise IdentityError(
            f"{wanted.stem}.pem is there already, and is not that of a {wanted.role}: {subject}"
        )


def _as_before(held: Held) -> Wanted:
    subject = held.certificate.subject
    if subject is None:
        raise IdentityError(f"{held.stem}.pem is no certificate of a process of this cluster")
    return Wanted(subject.role, subject.name, held.certificate.hosts)


def _in_order(stem: str) -> tuple[str, int]:
    """w2 before w10."""
    letters = stem.rstrip("0123456789")
    number = stem[len(letters) :]
    return letters, int(number) if number else -1


# Of an address that is given without one.
PORT = 7070


@dataclass(frozen=True, slots=True)
class ServerHost:
    """`address`: as in --ps-hosts; `others`: names and addresses by which it is reached, too."""

    address: Address
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.address.host, *self.others)


def parse_servers(text: str) -> tuple[ServerHost, ...]:
    """`h0,h1:7071/10.0.0.7`: servers in task order, each with its port if that is not 7070, and behind slashes what
    else it is called. Raises AddressError."""
    return tuple(_server(part.strip()) for part in text.split(","))


def _server(text: str) -> ServerHost:
    first, *others = text.split("/")
    if not all((first, *others)):
        raise AddressError(f"expected servers such as h0,h1 or h0:7070/10.0.0.7, got {text!r}")
    return ServerHost(_address(first), tuple(_address(other).host for other in others))


def _address(text: str) -> Address:
    """With a port or without; an IPv6 address without one needs no brackets."""
    bare = text.count(":") > 1 and not text.startswith("[")
    if bare or text.endswith("]"):
        return parse_address(f"[{text.strip('[]')}]:{PORT}")
    return parse_address(text if ":" in text else f"{text}:{PORT}")
