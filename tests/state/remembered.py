"""Find what a coordinator remembers and its saved state forgets, by a look at all of its objects.

A new field that is not saved is found as soon as any test gives it another value than it has at the start.
"""

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from psserver.coordinator import Coordinator, CoordinatorState
from psserver.policies import Policy
from pswire.records import StateError

#: What no copy needs, by name of the field, and why.
DERIVED = {
    "_outputs": "of the input that is being taken: a state is saved between two inputs",
    "_deferred": "waits for a trial, and during one nothing is saved",
    "_rounded": "the result of the last calculation",
    "_now": "the time of the event that is being decided",
    "_newest": "the time of an entry of the input that is being taken",
    "_lowest_free": "a bound, from which the least free rank is found",
    "policy": "has a state of its own, which is compared",
    "_assurance": "restored by whoever made it",
    "terms": "those of the process",
}


def remembered(coordinator: Coordinator) -> dict[str, object]:
    """What it remembers: value by path, such as "_ledger.roster.present[w0].rank"."""
    return dict(_values(coordinator, "", set()))


def _values(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, object]]:
    if isinstance(value, float) and math.isnan(value):
        yield path, "nan"
    elif value is None or isinstance(value, (bool, int, float, str, bytes)):
        yield path, value
    elif isinstance(value, Mapping):
        yield f"{path}, keys in order", list(map(str, value))
        for key, each in value.items():
            yield from _values(each, f"{path}[{key}]", seen)
    elif isinstance(value, (list, tuple, deque)):
        yield f"{path}, length", len(value)
        for number, each in enumerate(value):
            yield from _values(each, f"{path}[{number}]", seen)
    elif isinstance(value, (set, frozenset)):
        yield path, sorted(map(str, value))
    elif id(value) not in seen:
        seen.add(id(value))
        for name in _fields(value):
            if name not in DERIVED:
                yield from _values(getattr(value, name), f"{path}.{name}" if path else name, seen)


def _fields(value: Any) -> list[str]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*getattr(value, "__dict__", ()), *(name for name in slots if hasattr(value, name))]


def differences(coordinator: Coordinator, policy: Policy, now: float) -> list[str]:
    """Where a copy of the coordinator knows something else than it does. `policy`: a new one of the kind with which
    the job began. Nothing is compared during a trial, and for a policy that cannot be saved."""
    if coordinator.trying:
        return []
    try:
        state = coordinator.state().to_json()
    except StateError:
        return []
    copy = Coordinator(coordinator.terms, policy, now)
    copy.restore(CoordinatorState.from_json(json.loads(json.dumps(state, allow_nan=False))))
    before, after = remembered(coordinator), remembered(copy)
    if coordinator.stopped is not None:
        # At the stop all that was pending was dropped.
        before = {path: value for path, value in before.items() if not path.startswith("_driver.folded")}
        after = {path: value for path, value in after.items() if not path.startswith("_driver.folded")}
    paths = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    found = [f"{path}: {before.get(path)!r}, and in the copy {after.get(path)!r}" for path in paths]
    return found if copy.state().to_json() == state else [*found, "the copy's state is another one"]
