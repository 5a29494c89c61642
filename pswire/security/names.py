"""Names in certificates: `ps://<cluster>/<role>/<name>`, a URI among the subject alternative names.

The common name is for people and is never read, because a requester may put any text there.
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
    """A certificate, a key or a name is not valid. The text is a sentence for people."""


class Role(StrEnum):
    """The role of a process, which determines its rights."""

    SERVER = "server"
    WORKER = "worker"
    OBSERVER = "observer"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a certificate. Raises IdentityError for parts that a URI cannot hold unescaped.

    Without a `name` it stands for every process of its role, so that all workers of an elastic job may share one.
    """

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
    """Raise IdentityError unless `text`, the name of a cluster or a process, can stand in a certificate."""
    if not _PART.fullmatch(text):
        raise IdentityError(f"{what}: expected 1 to 64 letters, digits, dots, - or _, got {text[:80]!r}")


def cluster_named_after(text: str) -> str:
    """Return a valid cluster name as similar as possible to `text`, for example a job's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:64].strip("-") or "cluster"


def parse_subject(uri: str) -> Subject:
    """Parse `ps://<cluster>/<role>` or `ps://<cluster>/<role>/<name>`. Raises IdentityError."""
    parts = uri.removeprefix(SCHEME).split("/")
    if not uri.startswith(SCHEME) or len(parts) not in (2, 3) or not all(parts):
        raise IdentityError(f"expected {SCHEME}<cluster>/<role>/<name>, got {uri[:200]!r}")
    cluster, role, *name = parts
    if role not in set(Role):
        raise IdentityError(f"{uri[:200]!r}: unknown role{did_you_mean(role[:64], [*Role])}")
    return Subject(cluster, Role(role), *name)


def subject_among(names: Iterable[str]) -> Subject:
    """Return the subject among a certificate's subject alternative names, of whatever kind.

    Raises IdentityError unless exactly one of them is a `ps://` URI.
    """
    found = [name for name in names if name.startswith(SCHEME)]
    if len(found) != 1:
        got = f"{len(found)} of them" if found else "none"
        raise IdentityError(
            f"expected a certificate with one name {SCHEME}<cluster>/<role>/<name> (a URI among its subject "
            f"alternative names), got {got}; ps-lab certs makes such certificates"
        )
    return parse_subject(found[0])
