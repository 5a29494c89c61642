"""Who calls, and which names are whose."""

from dataclasses import dataclass
from typing import Final

import grpc

from psserver.service.errors import Refused
from pswire.security.names import Role


@dataclass(frozen=True, slots=True)
class Peer:
    """Who calls. `role`: None where nobody is asked who he is, and everybody may do everything. `name`: empty for any
    of that role. `credential`: what a name belongs to."""

    role: Role | None = None
    name: str = ""
    credential: str = ""


ANYBODY: Final = Peer()


class Names:
    """Which credential a worker's name belongs to: that of the first who had it, or the one that it is made for.

    The loop's thread owns it.
    """

    def __init__(self, reserved: frozenset[str] = frozenset()) -> None:
        """`reserved`: names that have a token of their own."""
        self._reserved = reserved
        self._held: dict[str, str] = {}

    def of(self, peer: Peer, asked: str) -> str:
        """The name under which the peer joins, where it asks for that one, or for any (empty). Raises Refused."""
        if peer.role is None:
            return asked
        if peer.name and asked not in ("", peer.name):
            raise _denied(
                f"{peer.credential} is for the worker {peer.name!r} only, and asks to join as {asked!r}"
            )
        name = peer.name or asked
        if not peer.name and name in self._reserved:
            raise _denied(f"the name {name!r} has a token of its own, and {peer.credential} is another one")
        holder = self._held.get(name, peer.credential)
        if holder != peer.credential:
            raise _denied(f"the name {name!r} is that of {holder}, and {peer.credential} is another one")
        return name

    def came(self, peer: Peer, name: str) -> None:
        """It has joined so."""
        if peer.role is not None:
            self._held.setdefault(name, peer.credential)


def _denied(message: str) -> Refused:
    return Refused(grpc.StatusCode.PERMISSION_DENIED, message)
