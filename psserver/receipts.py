"""Receipts: how the coordinator knows that every shard holds a payload, without asking.

A shard answers a complete push with a keyed digest of (job, ticket, shard);
the key is known to the servers only. A commit carries the receipts of all
shards, so a worker that skips a push, or reuses another's, is refused before
anything is decided. The digest need not hold the payload: a shard accepts one
for a ticket and no other, so that its receipt can mean no other. It says whether
the payload is an ordinary one (`psserver.shard.payload_checks`), and the sum of the squares of its gradient: facts
of its content that the coordinator or a policy decides by. So nobody has to be believed.

Memberships are proved by the same key: what Join gives a worker, every server
of the job can compute for itself. One proof does for all of them, for they
have the key anyway; which memberships stand they learn from the log.
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
# Behind the digest of a receipt.
_SQUARES = struct.Struct("<d")


def new_secret() -> bytes:
    return secrets.token_bytes(32)


def receipt(
    secret: bytes, job: str, ticket: int, server: int, *, ordinary: bool = True, squares: float = 0.0
) -> bytes:
    """`squares`: the sum of the squares of the gradient in the payload, a finite number."""
    return _receipt(secret, job, ticket, server, ordinary, _SQUARES.pack(squares))


def _receipt(secret: bytes, job: str, ticket: int, server: int, ordinary: bool, squares: bytes) -> bytes:
    text = f"{job}/{ticket}/{server}/{'ordinary' if ordinary else 'large'}/".encode() + squares
    return hashlib.blake2b(text, key=secret, digest_size=LENGTH).digest() + squares


# Every request of a member proves its membership, to the push and to the read that follows. Few are asked for.
@lru_cache(maxsize=4096)
def membership_token(secret: bytes, job: str, worker: str, incarnation: int) -> bytes:
    """Given at Join: proves to every server that this worker is a member, for as long as it is.

    That of the empty name is the coordinator's own, and is given to nobody.
    """
    text = f"member/{job}/{incarnation}/{worker}".encode()
    return hashlib.blake2b(text, key=secret, digest_size=LENGTH).digest()


class Claim(NamedTuple):
    """Whose request it is, by its own word: a member's, or with an empty name the coordinator's."""

    job: str
    worker: str
    incarnation: int
    token: bytes

    def proven(self, secret: bytes) -> bool:
        expected = membership_token(secret, self.job, self.worker, self.incarnation)
        return hmac.compare_digest(self.token, expected)


@dataclass(frozen=True, slots=True)
class Examined:
    """What receipts say. `missing`: the servers of which none is valid. `ordinary`: every payload is. `norm`: L2, of
    the gradient that the servers hold, in six digits."""

    missing: list[int]
    ordinary: bool
    norm: float


def examine(secret: bytes, job: str, ticket: int, servers: int, receipts: Sequence[bytes]) -> Examined:
    """`receipts`: in task order."""
    missing, ordinary, sums = [], True, []
    for server in range(servers):
        got = receipts[server] if server < len(receipts) else b""
        squares = got[LENGTH:]
        if hmac.compare_digest(got, _receipt(secret, job, ticket, server, True, squares)):
            pass
        elif hmac.compare_digest(got, _receipt(secret, job, ticket, server, False, squares)):
            ordinary = False
        else:
            missing.append(server)
            continue
        # The server itself has written it.
        sums.append(_SQUARES.unpack(squares)[0])
    return Examined(missing, ordinary, norm_of(sums))


def opening(job_secret: bytes, job: str, server: int, secret: bytes) -> bytes:
    """Proves to server `server` that the coordinator of `job` holds the secret that all servers of the job share.

    Empty without such a secret: servers that were started by hand, without one, trust any process that reaches them.
    """
    if not job_secret:
        return b""
    text = f"open/{job}/{server}/".encode() + secret
    # Hashed first: a key of this function has at most 64 bytes.
    key = hashlib.blake2b(job_secret).digest()
    return hashlib.blake2b(text, key=key, digest_size=LENGTH).digest()


def opens(job_secret: bytes, job: str, server: int, secret: bytes, proof: bytes) -> bool:
    return hmac.compare_digest(opening(job_secret, job, server, secret), proof)


def moving(job_secret: bytes, job: str, server: int, address: str) -> bytes:
    """Proves to the coordinator of `job` that server `server` is at `address`. Empty without a secret, and then no
    proof."""
    if not job_secret:
        return b""
    text = f"move/{job}/{server}/{address}".encode()
    key = hashlib.blake2b(job_secret).digest()
    return hashlib.blake2b(text, key=key, digest_size=LENGTH).digest()


def moves(job_secret: bytes, job: str, server: int, address: str, proof: bytes) -> bool:
    return bool(job_secret) and hmac.compare_digest(moving(job_secret, job, server, address), proof)
