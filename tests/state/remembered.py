"""Whether a copy of a coordinator, made from its saved state, knows all that it does."""

import json
from dataclasses import fields, is_dataclass
from typing import Any

from psserver.coordinator import Coordinator, JobState
from psserver.policies import Policy
from psserver.records import StateError


def copy_of(coordinator: Coordinator, policy: Policy) -> Coordinator:
    """Return a copy by way of JSON. `policy`: a new one of the kind with which the job began. Raises StateError."""
    state = JobState.read(json.loads(json.dumps(coordinator.saved(), allow_nan=False)))
    return Coordinator(coordinator.terms, policy, given=state)


def differs(coordinator: Coordinator, policy: Policy) -> bool:
    """Whether a copy of the coordinator knows something else than it does, its indices included.

    Nothing is compared for a policy that cannot be saved.
    """
    try:
        saved = coordinator.saved()
    except StateError:
        return False
    copy = copy_of(coordinator, policy)
    return known(copy.state) != known(coordinator.state) or copy.saved() != saved


# An index whose value only bounds a search.
BOUNDS = ("_lowest_free", "weighed")


def known(value: Any) -> Any:
    """Return all fields below a record, those too that are not saved, with dictionaries in order."""
    if is_dataclass(value) and not isinstance(value, type):
        return [
            (each.name, known(getattr(value, each.name))) for each in fields(value) if each.name not in BOUNDS
        ]
    if isinstance(value, dict):
        return [(key, known(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return [known(each) for each in value]
    return repr(value) if isinstance(value, float) else value
