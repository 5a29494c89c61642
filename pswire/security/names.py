"""Whom a certificate names: `ps://<cluster>/<role>/<name>`, a URI among its subject alternative names.

The common name is for people, and is never read: it is one text in which
whoever asks for a certificate may write what he likes.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pswire.nearest import did_you_mean

SCHEME: Final = "ps://"
_PART: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class IdentityError(ValueError):
    """A certificate, a key or a name that is not what it should be; the text is a sentence for people."""


class Role(StrEnum):
    """What a process is, and with it what it may do."""

    SERVER = "server"
    WORKER = "worker"
    OBSERVER = "observer"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Subject:
    """Of a certificate. Without a `name` it stands for every process of its role, so that all workers of an elastic
    job may share one. Raises IdentityError for parts that a URI cannot hold as they are."""

    cluster: str
    role: Role
    name: str = ""

    def __post_init__(self) -> None:
        check_part(self.cluster, "the name of a cluster")
        if self.name:
            check_part(self.name, f"the name of a {self.role}")

    def __str__(self) -> str:
        whole = f"{SCHEME}{self.cluster}/{self.role}"
        return f"{whole}/{self.name}" if self.name else whole


def check_part(text: str, what: str) -> None:
    """Raises IdentityError unless `text`, a cluster's name or a process's, can stand in a certificate."""
    if not _PART.fullmatch(text):
        raise IdentityError(f"{what}: expected 1 to 64 letters, digits, dots, - or _, got {text[:80]!r}")


def cluster_named_after(text: str) -> str:
    """A cluster's name that is as near to `text`, a job's name say, as can be."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:64].strip("-") or "cluster"


def parse_subject(uri: str) -> Subject:
    """`ps://<cluster>/<role>` or `ps://<cluster>/<role>/<name>`. Raises IdentityError."""
    parts = uri.removeprefix(SCHEME).split("/")
    if not uri.startswith(SCHEME) or len(parts) not in (2, 3) or not all(parts):
        raise IdentityError(f"expected {SCHEME}<cluster>/<role>/<name>, got {uri[:200]!r}")
    cluster, role, *name = parts
    if role not in set(Role):
        raise IdentityError(f"{uri[:200]!r}: unknown role{did_you_mean(role[:64], [*Role])}")
    return Subject(cluster, Role(role), *name)


def subject_among(names: Iterable[str]) -> Subject:
    """Of a certificate with these subject alternative names, of whatever kind. Raises IdentityError unless exactly one
    of them is a `ps://` URI."""
    found = [name for name in names if name.startswith(SCHEME)]
    if len(found) != 1:
        got = f"{len(found)} of them" if found else "none"
        raise IdentityError(
            f"expected a certificate with one name {SCHEME}<cluster>/<role>/<name> (a URI among its subject "
            f"alternative names), got {got}; ps-lab certs makes such certificates"
        )
    return parse_subject(found[0])
