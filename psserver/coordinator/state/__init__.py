"""All that a coordinator knows, as plain data: taken out, checked, and taken up again."""

from psserver.coordinator.state.records import CoordinatorState as CoordinatorState
from psserver.coordinator.state.records import TallyState as TallyState
from psserver.coordinator.state.saving import reopened as reopened
from psserver.coordinator.state.saving import save as save
from psserver.coordinator.state.saving import take_up as take_up
from psserver.coordinator.state.saving import tickets_from as tickets_from
