"""Messages between servers with replicas, as bytes.

A message is a JSON list: the part whose log it is about, and a list of a class's name and the values of its fields. A
configuration among them is a text of JSON, which seldom changes: it is written and read once.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final

from psserver.replication import Config, SyncMember
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
_KINDS: Final[dict[Any, type[Any]]] = {kind.__name__: kind for kind in _MESSAGES}
# `json.dumps` would make another encoder for each message.
_JSON: Final = json.JSONEncoder(separators=(",", ":"))


def encode(message: Message, part: int = 0) -> bytes:
    kind = type(message)
    values = [getattr(message, name) for name in kind.__match_args__]
    plain = [_text_of(value) if type(value) is Config else value for value in values]
    return _JSON.encode([part, [kind.__name__, *plain]]).encode()


def decode(data: bytes) -> tuple[int, Message]:
    """Return the part whose log it is about, and the message. Raises Refused for anything else."""
    try:
        part, (name, *given) = json.loads(data)
        kind = _KINDS[name]
        # A peer's mistake ends its stream and nothing else.
        message = kind(*[read(value) for read, value in zip(_FIELDS[kind], given, strict=True)])
        return _number(part), message
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise invalid(f"expected a message about a replicated log, got {data[:80]!r}: {error}") from error


@lru_cache(maxsize=16)
def _text_of(config: Config) -> str:
    members = [(each.server, each.incarnation) for each in config.members]
    return _JSON.encode([config.epoch, config.primary, members, config.base])


@lru_cache(maxsize=16)
def _config_in(text: str) -> Config:
    epoch, primary, members, base = json.loads(text)
    held = tuple(SyncMember(server, incarnation) for server, incarnation in _pairs(members))
    return Config(_number(epoch), _number(primary), held, _number(base))


def _number(plain: Any) -> int:
    if type(plain) is not int or plain < 0:
        raise ValueError(f"expected a whole number, got {plain!r}")
    return plain


def _pairs(plain: Any) -> tuple[tuple[int, int], ...]:
    """Read the names of items, each of an epoch and a number, or members."""
    return tuple([(_number(first), _number(second)) for first, second in plain])


_READ: Final[dict[Any, Callable[[Any], Any]]] = {int: _number, Config: _config_in, tuple[Item, ...]: _pairs}
# What reads the fields of each kind, in order.
_FIELDS: Final[dict[Any, list[Callable[[Any], Any]]]] = {
    kind: [_READ[field.type] for field in fields(kind)] for kind in _MESSAGES
}


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
