"""A copy of a coordinator must know all that it knows, wherever a test of this folder leads it."""

import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator import Output
from tests.state.remembered import differs

# Inputs of a harness that are followed by a comparison: each of the first ones, then one in so many. A comparison looks
# at everything, so of very many inputs only a few are.
EACH, EVERY, MANY = 12, 16, 2048


@pytest.fixture(autouse=True)
def copies_know_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    take, taken = CoordinatorHarness.take, dict[int, int]()

    def compared(self: CoordinatorHarness, outputs: list[Output]) -> list[Output]:
        given = take(self, outputs)
        count = taken[id(self)] = taken.get(id(self), 0) + 1
        # Schedules have copies that take over.
        due = type(self) is CoordinatorHarness and (
            count <= EACH or count % (EVERY if count <= MANY else MANY) == 0
        )
        if isinstance(self.policy, str) and due:
            assert not differs(self.coordinator, self.built(self.policy, self.knobs))
        return given

    monkeypatch.setattr(CoordinatorHarness, "take", compared)
