"""Tokens, the alternative to client certificates: a secret for each role or each name, sent with every call.

Over TLS only, because a listener on a plain connection could read them. A file of mode 0600 or the variable PS_TOKEN
holds one per line: ``worker/w0 SECRET``, ``worker SECRET`` (any name) or, at a client, ``SECRET`` alone.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pswire.security.files import read_file
from pswire.security.names import IdentityError, Role
from pswire.security.secret import Secret

VARIABLE: Final = "PS_TOKEN"
# The length in base64 of 32 random bytes, which a secret should be; in hexadecimal they are 64.
LEAST: Final = 43

_SECRET = re.compile(rf"[A-Za-z0-9_=+/-]{{{LEAST},256}}")
_HOLDER = re.compile(rf"({'|'.join(Role)})(?:/([A-Za-z0-9._-]{{1,64}}))?")
HEADER: Final = "authorization"
_BEARER = "Bearer "


class TokenError(ValueError):
    """A token, or a file of them, that cannot be used. The text never contains the secret."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token. `role`: None if a client's line does not say. `name`: empty for any."""

    role: Role | None
    name: str
    secret: Secret

    @property
    def holder(self) -> str:
        return f"{self.role}/{self.name}" if self.name else str(self.role)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one process: all that a server accepts, or a client's own."""

    held: tuple[Token, ...]

    def own(self, role: Role) -> Token:
        """Return the token that this process shows to a server. Raises TokenError if that is ambiguous."""
        mine = [token for token in self.held if token.role in (role, None)]
        if len(mine) != 1:
            raise TokenError(
                f"expected one token for the role {role}, got {len(mine)}: a client's file has its own line only"
            )
        return mine[0]

    def of(self, header: str) -> Token | None:
        """Return the token of a call's `authorization` header; compares with all, each in constant time."""
        given = Secret(header.removeprefix(_BEARER).encode(errors="replace"))
        found = [token for token in self.held if token.secret == given and token.role is not None]
        return found[0] if found else None

    @property
    def names(self) -> frozenset[str]:
        """The names of workers with tokens of their own, which holders of other tokens may not use."""
        return frozenset(token.name for token in self.held if token.role is Role.WORKER and token.name)


def bearer(token: Token) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call."""
    return ((HEADER, _BEARER + token.secret.reveal().decode()),)


def read_tokens(path: Path) -> Tokens:
    """Read a file of tokens. Raises TokenError for an invalid file, or one that others of this machine may read."""
    try:
        text = read_file(path, "file of tokens", private=True).decode("ascii")
    except IdentityError as error:
        raise TokenError(str(error)) from error
    except UnicodeDecodeError as error:
        raise TokenError(f"{path}: expected lines such as 'worker/w0 SECRET', got other bytes") from error
    return parse_tokens(text, str(path))


def parse_tokens(text: str, source: str) -> Tokens:
    """Parse lines of [ROLE[/NAME]] SECRET. Raises TokenError, which names `source` and the line, never the secret."""
    lines = [line.partition("#")[0].split() for line in text.splitlines()]
    held = tuple(_token(words, f"{source}: line {n}") for n, words in enumerate(lines, 1) if words)
    if not held:
        raise TokenError(f"{source}: expected a token, got none")
    _refuse_duplicates(held, source)
    return Tokens(held)


def _token(words: list[str], where: str) -> Token:
    *holder, secret = words
    expected = f"{where}: expected ROLE SECRET or ROLE/NAME SECRET, with a role of {', '.join(Role)}"
    if len(holder) > 1:
        raise TokenError(f"{expected}, got {len(words)} words")
    if not _SECRET.fullmatch(secret):
        raise TokenError(
            f"{where}: expected a secret of 32 random bytes (openssl rand -hex 32), got {len(secret)} characters"
        )
    if not holder:
        return Token(None, "", Secret(secret.encode()))
    found = _HOLDER.fullmatch(holder[0])
    if found is None:
        raise TokenError(f"{expected}, got {holder[0][:40]!r}" if len(holder[0]) < LEAST else expected)
    return Token(Role(found[1]), found[2] or "", Secret(secret.encode()))


def _refuse_duplicates(held: Iterable[Token], source: str) -> None:
    seen: set[Secret] = set()
    for token in held:
        if token.secret in seen:
            raise TokenError(f"{source}: one secret belongs to two holders, {token.holder} is the second")
        seen.add(token.secret)
