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
from pswire.messages import REQUESTS
from pswire.records import to_plain
from pswire.v1 import coordinator_pb2 as pb

#: The methods of a coordinator that change it.
INPUTS: Final = (
    *("agree", "planned", "opening", "set_extent", "declare_work"),
    *("change_policy", "measured", "checkpoint", "resume"),
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
    """A coordinator that notes its inputs, while `notes` is not None. The noted ones are the caller's to take."""

    notes: list[Call] | None = None

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
    return json.dumps([now, [[c.name, _plain(list(c.given)), _plain(dict(c.named))] for c in calls]]).encode()


def decode(data: bytes) -> tuple[list[Call], float]:
    """Return what `encode` was given."""
    now, calls = json.loads(data)
    return [Call(name, _value(given), _value(named)) for name, given, named in calls], float(now)


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Extent() | WorkTerms():
            return {"record": type(value).__name__, **{n: getattr(value, n) for n in value.__match_args__}}
        case Policy():
            return {"policy": value.name, "knobs": to_plain(value.knobs)}
        case frozenset():
            return _plain(sorted(value))
        case list() | tuple():
            return [_plain(each) for each in value]
        case dict() | Mapping():
            return {"object": {name: _plain(each) for name, each in value.items()}}
        case _:
            request: protocol.Request = value
            return {"request": base64.b64encode(REQUESTS.to_wire(request).SerializeToString()).decode()}


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    if "object" in plain:
        return {name: _value(each) for name, each in plain["object"].items()}
    if "policy" in plain:
        return _Named(plain["policy"], plain["knobs"])
    if "record" in plain:
        return _RECORDS[plain.pop("record")](**plain)
    return REQUESTS.from_wire(pb.SessionRequest.FromString(base64.b64decode(plain["request"])))
