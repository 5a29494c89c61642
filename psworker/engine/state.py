"""The state of a client engine as a value: plain, comparable, and JSON when it has to be kept."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from psworker.engine.messages import (
    Abandon,
    Cancel,
    Commit,
    Disposition,
    Grant,
    Leave,
    Refusal,
    Stop,
    Times,
)


@dataclass(frozen=True, slots=True)
class EngineState:
    """See the fields of the same names in `ClientEngine`. `void`: tickets that were cancelled, and why."""

    lossless_link: bool
    stop: Stop | None
    refusal: Refusal | None
    leaving: Leave | None
    asked: bool
    exhausted: bool
    held: int | None
    exchanged: int | None
    newest: Grant | None
    grants: tuple[Grant, ...]
    unanswered: tuple[Commit, ...]
    awaited: tuple[int, ...]
    abandoned: tuple[Abandon, ...]
    void: tuple[Cancel, ...]
    dispositions: tuple[Disposition, ...]


_ONE = {"stop": Stop, "refusal": Refusal, "leaving": Leave, "newest": Grant}
_MANY = {"grants": Grant, "abandoned": Abandon, "void": Cancel, "dispositions": Disposition}


def state_to_json(state: EngineState) -> dict[str, Any]:
    """For `json.dumps`, which writes a loss that is not a number as NaN; receipts are hexadecimal."""
    document = asdict(state)
    for commit in document["unanswered"]:
        commit["receipts"] = [receipt.hex() for receipt in commit["receipts"]]
    return document


def state_from_json(document: Mapping[str, Any]) -> EngineState:
    """What `state_to_json` made, after `json.loads`."""
    fields = dict(document)
    for name, kind in _ONE.items():
        fields[name] = None if fields[name] is None else kind(**fields[name])
    for name, each in _MANY.items():
        fields[name] = tuple(each(**item) for item in fields[name])
    fields["unanswered"] = tuple(_commit(item) for item in fields["unanswered"])
    fields["awaited"] = tuple(fields["awaited"])
    return EngineState(**fields)


def _commit(fields: Mapping[str, Any]) -> Commit:
    times = None if fields["times"] is None else Times(*fields["times"])
    receipts = tuple(bytes.fromhex(receipt) for receipt in fields["receipts"])
    return Commit(**{**fields, "times": times, "receipts": receipts})
