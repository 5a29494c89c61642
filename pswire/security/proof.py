"""How both ends of a call prove that they have the job's secret, without saying anything that proves it again.

The caller's metadata has a number that it drew for this call. The server answers with a number of its own and with a
proof over both, which the caller checks before it says anything. The caller then puts its own proof before its first
message. Each proof also covers the method and the server that is meant, and the caller's proof covers the message,
which names the job, its generation and the sender: a recording opens nothing, and neither does a proof that was meant
for another server, method or message.
"""

import hmac
import secrets
from collections.abc import Callable, Iterable
from typing import Any, Final

from pswire.security.secret import Secret

#: The environment variable in which servers and commands find the secret.
VARIABLE: Final = "PS_JOB_SECRET"
#: The file of a run folder in which commands of the same user find it, while the job runs without TLS.
FILE: Final = "secret"
#: Keys of the metadata: the number of the end that sends it, and its proof.
NONCE: Final = "ps-nonce-bin"
PROOF: Final = "ps-proof-bin"
LENGTH: Final = 32

Metadata = tuple[tuple[str, bytes], ...]


class ProofError(Exception):
    """The other end did not prove that it has the job's secret."""


def server_named(index: int) -> str:
    """Return how proofs name a server."""
    return f"server {index}"


#: How proofs name the server that leads. Commands do not know its index.
COORDINATOR: Final = "coordinator"


class _Call:
    """What both ends know of one call. `method`: its path; `whom`: the server that is meant."""

    def __init__(self, secret: Secret, method: str, whom: str) -> None:
        self._secret, self.method, self._whom = secret, method, whom
        self._asked = self._answered = b""

    def _proof(self, side: bytes, message: bytes = b"") -> bytes:
        parts = (side, self.method.encode(), self._whom.encode(), self._asked, self._answered, message)
        # With lengths, so that no other parts give the same text.
        text = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._secret.reveal(), text, "sha256")


class Caller(_Call):
    """The end that opens the call; an empty secret proves nothing, and asks for no proof."""

    def __init__(self, secret: Secret, method: str, whom: str) -> None:
        super().__init__(secret, method, whom)
        self._asked = secrets.token_bytes(LENGTH) if secret else b""
        self._checked = self._sealed = False

    @property
    def metadata(self) -> Metadata:
        """What the call's metadata must have."""
        return ((NONCE, self._asked),) if self._secret else ()

    def check(self, answer: Iterable[tuple[str, Any]] | None) -> None:
        """Check the metadata that the server sent first. Raises ProofError."""
        if not self._secret:
            return
        self._answered = _value(answer, NONCE)
        given = _value(answer, PROOF)
        if len(self._answered) != LENGTH or not hmac.compare_digest(given, self._proof(b"server")):
            raise ProofError("it does not prove that it has this job's secret")
        self._checked = True

    def seal(self, message: bytes) -> bytes:
        """Return the call's next message as it travels. `check` comes before the first one."""
        if not self._secret or self._sealed:
            return message
        assert self._checked, "expected the server's proof first"
        self._sealed = True
        return self._proof(b"caller", message) + message

    def sealing(self, serialise: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
        """Return the serialiser of the call's requests."""
        return lambda message: self.seal(serialise(message))


class Challenge(_Call):
    """The end that is called. Raises ProofError if the caller's metadata does not ask as it must."""

    def __init__(
        self, secret: Secret, method: str, whom: str, metadata: Iterable[tuple[str, Any]] | None
    ) -> None:
        super().__init__(secret, method, whom)
        self._asked = _value(metadata, NONCE)
        if len(self._asked) != LENGTH:
            raise ProofError("it does not ask for a proof of the job's secret")
        self._answered = secrets.token_bytes(LENGTH)

    @property
    def answer(self) -> Metadata:
        """The metadata to send first."""
        return (NONCE, self._answered), (PROOF, self._proof(b"server"))

    def opened(self, data: bytes) -> bytes:
        """Return the first message without its proof. Raises ProofError."""
        proof, message = data[:LENGTH], data[LENGTH:]
        if not hmac.compare_digest(proof, self._proof(b"caller", message)):
            raise ProofError("it does not prove that it has this job's secret")
        return message


def asked(metadata: Iterable[tuple[str, Any]] | None) -> bool:
    """Return whether the other end's metadata asks for a proof, or answers with one."""
    return bool(_value(metadata, NONCE))


def _value(metadata: Iterable[tuple[str, Any]] | None, key: str) -> bytes:
    for name, value in metadata or ():
        if name == key and isinstance(value, bytes):
            return value
    return b""
