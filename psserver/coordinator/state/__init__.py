"""All that a coordinator knows, as plain data: taken out, checked, and taken up again."""

from psserver.coordinator.state.records import CoordinatorState, TallyState
from psserver.coordinator.state.saving import reopened, roster_from, save, take_up, tickets_from

__all__ = [
    "CoordinatorState",
    "TallyState",
    "reopened",
    "roster_from",
    "save",
    "take_up",
    "tickets_from",
]
