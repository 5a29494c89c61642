"""Inputs of a coordinator: noted by a primary, taken again by a follower, in the same order and at the same times."""

import base64
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from psserver.coordinator import Coordinator, JoinDeferred, JoinRefused, Output
from psserver.coordinator.progress import Extent
from psserver.coordinator.work.units import WorkError, WorkTerms
from psserver.policies import Policy, PolicyError
from psserver.policies.succession import successor
from pswire import protocol
from pswire.messages import EXACT_REQUESTS
from pswire.records import to_plain
from pswire.v1 import coordinator_pb2 as pb

#: The methods of a coordinator that change it.
INPUTS: Final = (
    *("agree", "planned", "opening", "set_extent", "declare_work"),
    *("change_policy", "measured", "checkpoint", "unsaved", "resume"),
    *(
        "join",
        "connect",
        "dismiss_absent",
        "disconnect",
        "give_up",
        "handle",
        "interrupted",
        "note",
        "tick",
        "stop",
        "tried",
    ),
)
_RECORDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in (Extent, WorkTerms)}


class Call(NamedTuple):
    """One input: a method's name and what it was called with."""

    name: str
    given: Sequence[Any]
    named: Mapping[str, Any]


class NotedCoordinator(Coordinator):
    """A coordinator that notes its inputs, while `notes` is not None. The noted ones are the caller's to take.

    `noted`: called when an input is noted, before it is decided.
    """

    notes: list[Call] | None = None
    noted: Callable[[], object] = staticmethod(lambda: None)

    def taken(self) -> list[Call]:
        """Return what was noted, and note anew."""
        calls, self.notes = self.notes or [], []
        return calls


def _noting(name: str) -> Callable[..., Any]:
    method = getattr(Coordinator, name)

    @functools.wraps(method)
    def noted(self: NotedCoordinator, *given: Any, **named: Any) -> Any:
        # A refused input may have fired timers, so it is noted too.
        if self.notes is not None:
            self.notes.append(Call(name, given, named))
            self.noted()
        return method(self, *given, **named)

    return noted


for _name in INPUTS:
    setattr(NotedCoordinator, _name, _noting(_name))


def take(coordinator: Coordinator, calls: Sequence[Call]) -> list[Output]:
    """Give the coordinator what another one was given; return the outputs."""
    outputs: list[Output] = []
    for call in calls:
        try:
            given = [_built(coordinator, each) for each in call.given]
            found = getattr(coordinator, call.name)(*given, **call.named)
        except (JoinRefused, JoinDeferred, PolicyError, WorkError):
            # The other one was refused too.
            continue
        outputs += found[1] if call.name == "join" else found or ()
    return outputs


class _Named(NamedTuple):
    """A policy that takes over."""

    name: str
    knobs: Mapping[str, Any]


def _built(coordinator: Coordinator, value: Any) -> Any:
    if isinstance(value, _Named):
        terms = coordinator.terms
        return successor(coordinator.policy, value.name, value.knobs, terms.workers, terms.servers)
    return value


def encode(calls: Sequence[Call], now: float) -> bytes:
    """Return the inputs as bytes. `now`: when they were taken, by the job's clock."""
    return _ENCODER.encode([now, calls]).encode()


def decode(data: bytes) -> tuple[list[Call], float]:
    """Return what `encode` was given, with lists for other sequences."""
    now, calls = _DECODER.decode(data.decode())
    return [Call(*each) for each in calls], float(now)


# What an object of JSON is that stands for something else. No option and no knob has such a name.
_KIND: Final = "\0"


def _plain(value: object) -> object:
    """Return what stands for a value that JSON does not know."""
    if isinstance(value, protocol.Request):
        request = base64.b64encode(EXACT_REQUESTS.to_wire(value).SerializeToString())
        return {_KIND: "request", "bytes": request.decode()}
    if isinstance(value, Mapping):
        return {str(name): each for name, each in value.items()}
    if isinstance(value, Policy):
        return {_KIND: "policy", "name": value.name, "knobs": to_plain(value.knobs)}
    if isinstance(value, Extent | WorkTerms):
        kind = type(value)
        return {_KIND: kind.__name__} | {name: getattr(value, name) for name in kind.__match_args__}
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"expected an input of a coordinator, got a {type(value).__name__}")


def _value(plain: dict[str, Any]) -> object:
    """Return what an object of JSON stands for."""
    kind = plain.pop(_KIND, None)
    if kind is None:
        return plain
    if kind == "request":
        return EXACT_REQUESTS.from_wire(pb.SessionRequest.FromString(base64.b64decode(plain["bytes"])))
    return (_Named if kind == "policy" else _RECORDS[kind])(**plain)


# `json.dumps` and `json.loads` would make others for each message.
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), default=_plain)
_DECODER: Final = json.JSONDecoder(object_hook=_value)
