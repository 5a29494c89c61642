"""Messages between servers with replicas, as bytes.

A message is a JSON list: the part whose log it is about, and a list that begins with the name of a class. A
configuration within it is a text of JSON, which seldom changes: it is written and read once.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import lru_cache
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
from psserver.service.replicas.bodies import Body, Lies
from psserver.service.store.shared_memory import to_wire
from pswire.v1 import shard_pb2

#: Bytes of one piece of an item, and of the parts of one message, beyond which another one begins.
PIECE: Final = 2 << 20

_MESSAGES: Final = (Prepare, Promise, Sync, Synced, Propose, Accepted, Refuse, Append, Held, Expel)
_KINDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in (*_MESSAGES, Config, Member)}
# What a field of another type than these holds: a tuple.
_HELD: Final[dict[Any, type[Any]]] = {int: int, Config: Config}
# Names of the fields of each kind, in order, and what each holds.
_FIELDS: Final[dict[Any, tuple[tuple[str, type[Any]], ...]]] = {
    kind: tuple((field.name, _HELD.get(field.type, tuple)) for field in fields(kind))
    for kind in _KINDS.values()
}


def encode(message: Message, part: int = 0) -> bytes:
    return json.dumps([part, _plain(message)], separators=(",", ":")).encode()


def decode(data: bytes) -> tuple[int, Message]:
    """Return the part whose log it is about, and the message. Raises Refused for anything else."""
    try:
        part, message = map(_value, json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise invalid(f"expected a message about a replicated log, got {data[:80]!r}: {error}") from error
    if not isinstance(message, _MESSAGES) or not isinstance(part, int):
        raise invalid(f"expected a message about a replicated log, got {type(message).__name__}")
    return part, message


@lru_cache(maxsize=16)
def _text_of(config: Config) -> str:
    return json.dumps(_listed(config), separators=(",", ":"))


@lru_cache(maxsize=16)
def _config_in(text: str) -> Any:
    return _value(json.loads(text))


def _plain(value: Any) -> Any:
    return _text_of(value) if type(value) is Config else _listed(value)


def _listed(value: Any) -> Any:
    known = _FIELDS.get(type(value))
    if known is not None:
        return [type(value).__name__, *[_plain(getattr(value, name)) for name, _ in known]]
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _value(plain: Any) -> Any:
    if type(plain) is int and plain >= 0:
        return plain
    if isinstance(plain, str):
        return _config_in(plain)
    if not isinstance(plain, list):
        raise ValueError(f"expected a whole number, got {plain!r}")
    if not plain or not isinstance(plain[0], str):
        return tuple(map(_value, plain))
    kind = _KINDS[plain[0]]
    given = [_value(each) for each in plain[1:]]
    # A peer's mistake ends its stream and nothing else.
    for (name, expected), value in zip(_FIELDS[kind], given, strict=True):
        if not isinstance(value, expected):
            raise TypeError(f"{name}: expected {expected.__name__}, got {value!r}")
    return kind(*given)


def pieces(item: Item, body: Body, lies: Lies | None) -> Iterator[shard_pb2.ReplicatePart]:
    """Yield an item of the log in pieces, in order; in one if the receiver can read it where it `lies`.

    `body` must not change before each is taken.
    """
    assert isinstance(item, tuple), "an item's name is an epoch and a number"
    epoch, number = item
    if lies is not None:
        piece = shard_pb2.Piece(
            epoch=epoch,
            number=number,
            segment=to_wire(lies.place),
            use=lies.use,
            size=len(body),
            last=True,
        )
        yield shard_pb2.ReplicatePart(piece=piece)
        return
    view = memoryview(body)
    for start in range(0, max(len(body), 1), PIECE):
        end = start + PIECE
        piece = shard_pb2.Piece(
            epoch=epoch, number=number, data=bytes(view[start:end]), last=end >= len(body)
        )
        yield shard_pb2.ReplicatePart(piece=piece)


def requests(parts: Iterable[shard_pb2.ReplicatePart]) -> Iterator[shard_pb2.ReplicateRequest]:
    """Yield the parts in messages of bounded size; what they name elsewhere counts too, for the receiver copies it."""
    request, size = shard_pb2.ReplicateRequest(), 0
    for part in parts:
        nbytes = part.ByteSize() + part.piece.size
        if size and (size + nbytes > PIECE + (1 << 20) or len(request.parts) >= 4096):
            yield request
            request, size = shard_pb2.ReplicateRequest(), 0
        request.parts.append(part)
        size += nbytes
    if size:
        yield request
