"""Bounds: every field of every message has one, and every one is kept."""

import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pswire import bounds
from pswire.bounds import Bound, BoundError, Closed, Data, Many, Nested, Real, Text, Whole
from pswire.bounds.kinds import row_of
from pswire.v1 import coordinator_pb2, memory_pb2, model_pb2, shard_pb2
from tests.promises import promise
from tests.sentences import Recorder

FILES = (model_pb2, memory_pb2, coordinator_pb2, shard_pb2)
FIELDS = {
    (name, field.name): field
    for file in FILES
    for name, kind in file.DESCRIPTOR.message_types_by_name.items()
    for field in kind.fields
}
KINDS: dict[str, type[Message]] = {
    name: getattr(file, name) for file in FILES for name in file.DESCRIPTOR.message_types_by_name
}
# Largest values of protobuf's own types: a bound at or above them cannot be exceeded on the wire.
TYPE_MOST = {
    FieldDescriptor.TYPE_UINT32: 2**32 - 1,
    FieldDescriptor.TYPE_UINT64: 2**64 - 1,
    FieldDescriptor.TYPE_INT64: 2**63 - 1,
}


@promise("Any one message costs little, whatever it says.")
def test_every_field_has_a_bound() -> None:
    assert {key for key in FIELDS if not key[0].endswith("Entry")} == set(bounds.BOUNDS)


def test_a_field_without_a_bound_keeps_a_process_from_starting() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="planted.proto", package="planted", syntax="proto3")
    message = file.message_type.add(name="Planted")
    message.field.add(name="flag", number=1, type=FieldDescriptor.TYPE_BOOL, label=1)
    message.field.add(name="free", number=2, type=FieldDescriptor.TYPE_STRING, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    planted = pool.FindMessageTypeByName("planted.Planted")
    assert row_of("Planted", planted.fields_by_name["flag"]).bound == Closed()
    with pytest.raises(TypeError, match="Planted.free"):
        row_of("Planted", planted.fields_by_name["free"])


@pytest.mark.parametrize("row", bounds.TABLE, ids=lambda row: f"{row.message}.{row.field}")
def test_the_bound_is_one_of_the_fields_type(row: bounds.FieldBound) -> None:
    field = FIELDS[row.message, row.field]
    assert row.why
    if field.is_repeated:
        assert isinstance(row.bound, Many)
        assert (row.bound.each is None) == (field.message_type is not None and row.bound.key is None)
        return
    assert isinstance(row.bound, expected_kind(field))


def expected_kind(field: FieldDescriptor) -> type | tuple[type, ...]:
    match field.type:
        case FieldDescriptor.TYPE_MESSAGE:
            return Nested
        case FieldDescriptor.TYPE_BOOL | FieldDescriptor.TYPE_ENUM:
            return Closed
        case FieldDescriptor.TYPE_STRING:
            return Text
        case FieldDescriptor.TYPE_BYTES:
            return Data
        case FieldDescriptor.TYPE_DOUBLE:
            return Real
        case _:
            return Whole


def cases() -> Iterator[Any]:
    """For each row: (message, field, a value at its bound, the values just beyond it)."""
    for row in bounds.TABLE:
        field = FIELDS[row.message, row.field]
        at, beyond = samples(row.bound, field)
        if beyond or at is not None:
            yield pytest.param(row, at, beyond, id=f"{row.message}.{row.field}")


def samples(bound: Bound, field: FieldDescriptor) -> tuple[Any, list[Any]]:
    match bound:
        case Whole(most, least):
            beyond = [most + 1] if most < TYPE_MOST[field.type] else []
            return most, beyond + ([least - 1] if least > 0 else [])
        case Real(most, least, nonfinite):
            beyond = [] if math.isinf(most) else [most * 1.01]
            beyond += [] if math.isinf(least) else [least - 1.0 if least == 0 else least * 1.01]
            return (least if math.isfinite(least) else 1.0), beyond + (
                [] if nonfinite else [math.nan, math.inf]
            )
        case Text(most, printable, plain):
            hostile = ["\x1b[2J", "a\nb"] if printable else []
            return "x" * most, ["x" * (most + 1), *hostile, *(["é"] if plain else [])]
        case Data(most):
            return b"x" * most, [b"x" * (most + 1)]
        case Many(most, each, key):
            return many_samples(most, each, key, field)
        case _:
            return None, []


def many_samples(
    most: int, each: Bound | None, key: Text | None, field: FieldDescriptor
) -> tuple[Any, list[Any]]:
    if key is not None:
        too_large = 2 * each.most if isinstance(each, Real) and each.nonfinite else math.nan
        return (
            {f"m{i}": 1.0 for i in range(most)},
            [{f"m{i}": 1.0 for i in range(most + 1)}, {"x" * (key.most + 1): 1.0}, {"m": too_large}],
        )
    if each is None:
        kind = KINDS[field.message_type.name]
        # What is in it is the business of its own rows; an empty one is within them.
        return ([kind()] * min(most, 1000)), [[kind()] * (most + 1)]
    at, beyond = samples(each, element_type(each))
    return [at], [[at] * (most + 1), *([value] for value in beyond)]


def element_type(each: Bound) -> Any:
    class Element:
        type = FieldDescriptor.TYPE_INT64 if isinstance(each, Whole) else FieldDescriptor.TYPE_STRING

    return Element


@pytest.mark.parametrize(("row", "at", "beyond"), list(cases()))
def test_what_is_at_the_bound_passes_and_what_is_beyond_is_refused(
    row: bounds.FieldBound, at: Any, beyond: list[Any]
) -> None:
    kind = KINDS[row.message]
    if at is not None:
        bounds.check(kind(**{row.field: at}))
    for value in beyond:
        with pytest.raises(BoundError, match=f"{row.message}.{row.field}: expected"):
            bounds.check(kind(**{row.field: value}))


def test_messages_inside_messages_are_checked(sentences: Recorder) -> None:
    commit = coordinator_pb2.Commit(ticket=1, times=coordinator_pb2.Times(compute=-1.0))
    with pytest.raises(BoundError) as refused:
        bounds.check(shard_pb2.ExchangeRequest(commit=coordinator_pb2.CommitRequest(commit=commit)))
    sentences.check(refused)


def test_a_loss_that_is_not_finite_is_no_breach_of_a_bound() -> None:
    """It is recorded as absent; the gradient itself is what must be finite."""
    for loss in (math.nan, math.inf, -math.inf):
        bounds.check(coordinator_pb2.Commit(ticket=1, loss=loss))


def test_a_hostile_shape_costs_no_time(sentences: Recorder) -> None:
    """Its product would have millions of digits."""
    spec = model_pb2.VariableSpec(name="v", shape=[2**62] * 100_000, dtype="float32")
    started = time.thread_time()
    with pytest.raises(BoundError) as refused:
        bounds.check(coordinator_pb2.JoinRequest(variables=[spec]))
    sentences.check(refused)
    assert time.thread_time() - started < 1.0
