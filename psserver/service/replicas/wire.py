"""What servers with replicas tell each other, as bytes: messages are JSON lists that begin with the name of a class."""

import json
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, Final

from psserver.replication import Config, Member
from psserver.replication.messages import (
    Accepted,
    Append,
    Expel,
    Held,
    Item,
    Message,
    Prepare,
    Promise,
    Propose,
    Refuse,
    Sync,
    Synced,
)
from psserver.service.errors import invalid
from pswire.v1 import shard_pb2

#: Bytes of one piece of an item, and of the parts of one message, beyond which another one begins.
PIECE: Final = 2 << 20

_MESSAGES: Final = (Prepare, Promise, Sync, Synced, Propose, Accepted, Refuse, Append, Held, Expel)
_KINDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in (*_MESSAGES, Config, Member)}


def encode(message: Message) -> bytes:
    return json.dumps(_plain(message), separators=(",", ":")).encode()


def decode(data: bytes) -> Message:
    """Return the message. Raises Refused for anything else."""
    try:
        found = _value(json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise invalid(f"expected a message about a replicated log, got {data[:80]!r}: {error}") from error
    if not isinstance(found, _MESSAGES):
        raise invalid(f"expected a message about a replicated log, got {type(found).__name__}")
    return found


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return [type(value).__name__, *(_plain(getattr(value, each.name)) for each in fields(value))]
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        if plain and isinstance(plain[0], str):
            kind = _KINDS[plain[0]]
            given = map(_value, plain[1:])
            return kind(*(_typed(field, value) for field, value in zip(fields(kind), given, strict=True)))
        return tuple(map(_value, plain))
    if type(plain) is not int or plain < 0:
        raise ValueError(f"expected a whole number, got {plain!r}")
    return plain


def _typed(field: Any, value: Any) -> Any:
    """Check a value against the field's type, so that a peer's mistake ends its stream and nothing else."""
    expected = {int: int, Config: Config}.get(field.type, tuple)
    if not isinstance(value, expected):
        raise TypeError(f"{field.name}: expected {expected.__name__}, got {value!r}")
    return value


def pieces(item: Item, body: bytes) -> list[shard_pb2.ReplicatePart]:
    """Return an item of the log in pieces, in order."""
    assert isinstance(item, tuple), "an item's name is an epoch and a number"
    epoch, number = item
    view = memoryview(body)
    ends = range(0, max(len(body), 1), PIECE)
    return [
        shard_pb2.ReplicatePart(
            piece=shard_pb2.Piece(
                epoch=epoch,
                number=number,
                data=bytes(view[start : start + PIECE]),
                last=start + PIECE >= len(body),
            )
        )
        for start in ends
    ]


def requests(parts: list[shard_pb2.ReplicatePart]) -> Iterable[shard_pb2.ReplicateRequest]:
    """Yield the parts in messages of bounded size."""
    request, size = shard_pb2.ReplicateRequest(), 0
    for part in parts:
        nbytes = part.ByteSize()
        if size and (size + nbytes > PIECE + (1 << 20) or len(request.parts) >= 4096):
            yield request
            request, size = shard_pb2.ReplicateRequest(), 0
        request.parts.append(part)
        size += nbytes
    if size:
        yield request
