"""Variable specifications to and from their wire form, the adapter for `model.proto`."""

from collections.abc import Iterable

from pswire.model.plan import Kind, PlanError, VariableSpec
from pswire.v1 import model_pb2

_TO_WIRE = {
    "trainable": model_pb2.VARIABLE_KIND_TRAINABLE,
    "state": model_pb2.VARIABLE_KIND_STATE,
}
_FROM_WIRE: dict[int, Kind] = {
    model_pb2.VARIABLE_KIND_TRAINABLE: "trainable",
    model_pb2.VARIABLE_KIND_STATE: "state",
}


def specs_to_wire(specs: Iterable[VariableSpec]) -> list[model_pb2.VariableSpec]:
    """For a `variables` field of a message."""
    return [
        model_pb2.VariableSpec(name=spec.name, shape=spec.shape, dtype=spec.dtype, kind=_TO_WIRE[spec.kind])
        for spec in specs
    ]


def specs_from_wire(messages: Iterable[model_pb2.VariableSpec]) -> tuple[VariableSpec, ...]:
    """The specifications of a `variables` field; `make_plan` judges the rest.

    Raises PlanError for a kind that is unspecified or unknown.
    """
    return tuple(_spec_from_wire(message) for message in messages)


def _spec_from_wire(message: model_pb2.VariableSpec) -> VariableSpec:
    kind = _FROM_WIRE.get(message.kind)
    if kind is None:
        raise PlanError(
            f"variable {message.name!r}: expected kind TRAINABLE or STATE, got number {int(message.kind)}"
        )
    return VariableSpec(message.name, tuple(message.shape), message.dtype, kind)
