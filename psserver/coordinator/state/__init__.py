"""The coordinator's state as plain data: saved, checked and restored."""

from psserver.coordinator.state.records import CoordinatorState as CoordinatorState
from psserver.coordinator.state.records import TallyState as TallyState
from psserver.coordinator.state.saving import reopened as reopened
from psserver.coordinator.state.saving import restore as restore
from psserver.coordinator.state.saving import save as save
from psserver.coordinator.state.saving import tickets_from as tickets_from
