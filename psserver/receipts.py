"""Receipts: proofs that every shard holds a payload, so that the coordinator need not ask.

A shard answers a complete push with a keyed digest of (job, ticket, shard); only servers know the key. A commit carries
the receipts of all shards, so a worker that skips a push or reuses another's is refused before anything is decided. The
digest need not cover the payload: a shard accepts one payload for a ticket and no other, so a receipt can mean no
other. A receipt also says the sum of the squares of the payload's gradient: a fact by which a policy decides without
having to trust the worker.

The same key proves memberships: every server can compute the token that Join gives a worker. One token serves for all
servers, because all have the key; the log says which memberships are current.
"""

import hashlib
import hmac
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from psserver.shard.payload_checks import norm_of

LENGTH = 16
# Follows the digest of a receipt.
_SQUARES = struct.Struct("<d")


def new_secret() -> bytes:
    return secrets.token_bytes(32)


def receipt(secret: bytes, job: str, ticket: int, server: int, squares: float = 0.0) -> bytes:
    """Return a shard's receipt. `squares`: the finite sum of the squares of the payload's gradient."""
    return _receipt(secret, job, ticket, server, _SQUARES.pack(squares))


def _receipt(secret: bytes, job: str, ticket: int, server: int, squares: bytes) -> bytes:
    text = f"{job}/{ticket}/{server}/".encode() + squares
    return hashlib.blake2b(text, key=secret, digest_size=LENGTH).digest() + squares


# Each request of a member proves its membership, so few distinct tokens are computed often.
@lru_cache(maxsize=4096)
def membership_token(secret: bytes, job: str, worker: str, incarnation: int) -> bytes:
    """Return the token of Join: it proves to every server that this worker is a member, while it is one.

    The token of the empty name is the coordinator's own, and is given to nobody.
    """
    text = f"member/{job}/{incarnation}/{worker}".encode()
    return hashlib.blake2b(text, key=secret, digest_size=LENGTH).digest()


class Claim(NamedTuple):
    """The identity that a request claims: a member, or (with an empty name) the coordinator."""

    job: str
    worker: str
    incarnation: int
    token: bytes

    def proven(self, secret: bytes) -> bool:
        expected = membership_token(secret, self.job, self.worker, self.incarnation)
        return hmac.compare_digest(self.token, expected)


@dataclass(frozen=True, slots=True)
class Examined:
    """The facts in the receipts of a commit.

    `missing`: the servers without a valid one. `norm`: the L2 norm of the whole gradient, in six digits.
    """

    missing: list[int]
    norm: float


def examine(secret: bytes, job: str, ticket: int, servers: int, receipts: Sequence[bytes]) -> Examined:
    """Check the receipts of a commit, which are in task order."""
    missing, sums = [], []
    for server in range(servers):
        got = receipts[server] if server < len(receipts) else b""
        squares = got[LENGTH:]
        if hmac.compare_digest(got, _receipt(secret, job, ticket, server, squares)):
            # Trusted: the digest proves that the server wrote it.
            sums.append(_SQUARES.unpack(squares)[0])
        else:
            missing.append(server)
    return Examined(missing, norm_of(sums))


def missing_receipts(ticket: int, missing: Sequence[int]) -> str:
    """Say that a commit is refused for want of the receipts of these servers."""
    servers = ", ".join(map(str, missing))
    return (
        f"commit of ticket {ticket}: expected a receipt from every server's Push, "
        f"got none that is valid from server {servers}"
    )
