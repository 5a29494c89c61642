"""Tokens, the second way to say who a process is: a secret for each role, or for each name, sent with every call.

Only over TLS: who listens on a plain connection would have them. A file of mode 0600 or the variable PS_TOKEN holds
one for each line, ``worker/w0 SECRET``, ``worker SECRET`` (any name) or, at a client, ``SECRET`` alone.
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
# Of the 32 random bytes that a secret should be, in base64; in hexadecimal they are 64.
LEAST: Final = 43

_SECRET = re.compile(rf"[A-Za-z0-9_=+/-]{{{LEAST},256}}")
_HOLDER = re.compile(rf"({'|'.join(Role)})(?:/([A-Za-z0-9._-]{{1,64}}))?")
HEADER: Final = "authorization"
_BEARER = "Bearer "


class TokenError(ValueError):
    """A token, or a file of them, that cannot be used; the text never has the secret."""


@dataclass(frozen=True, slots=True)
class Token:
    """`role`: None where a client does not say it. `name`: empty for any."""

    role: Role | None
    name: str
    secret: Secret

    @property
    def holder(self) -> str:
        return f"{self.role}/{self.name}" if self.name else str(self.role)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What one process holds: a server all that it accepts, a client its own."""

    held: tuple[Token, ...]

    def own(self, role: Role) -> Token:
        """The one that this process shows to a server. Raises TokenError where that is not clear."""
        mine = [token for token in self.held if token.role in (role, None)]
        if len(mine) != 1:
            raise TokenError(
                f"expected one token for the role {role}, got {len(mine)}: a client's file has its own line only"
            )
        return mine[0]

    def of(self, header: str) -> Token | None:
        """Whose token a call's `authorization` is; all are compared, each in constant time."""
        given = Secret(header.removeprefix(_BEARER).encode(errors="replace"))
        found = [token for token in self.held if token.secret == given and token.role is not None]
        return found[0] if found else None

    @property
    def names(self) -> frozenset[str]:
        """Names of workers that have a token of their own: nobody with another one takes them."""
        return frozenset(token.name for token in self.held if token.role is Role.WORKER and token.name)


def bearer(token: Token) -> tuple[tuple[str, str], ...]:
    """The metadata of a call."""
    return ((HEADER, _BEARER + token.secret.reveal().decode()),)


def read_tokens(path: Path) -> Tokens:
    """Raises TokenError for a file that others of this machine may read, or that is none."""
    try:
        text = read_file(path, "file of tokens", private=True).decode("ascii")
    except IdentityError as error:
        raise TokenError(str(error)) from error
    except UnicodeDecodeError as error:
        raise TokenError(f"{path}: expected lines such as 'worker/w0 SECRET', got other bytes") from error
    return parse_tokens(text, str(path))


def parse_tokens(text: str, source: str) -> Tokens:
    """Lines of [ROLE[/NAME]] SECRET. Raises TokenError, which names `source` and the line, never the secret."""
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
            raise TokenError(f"{source}: one secret stands for two holders, {token.holder} is the second")
        seen.add(token.secret)
