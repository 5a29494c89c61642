"""What servers tell about versions: put together, told once, and decided behind."""

from collections import deque
from typing import Any
from unittest import mock

import pytest

from psserver.coordinator import inputs
from psserver.facts import VersionFacts, from_wire, to_wire
from psserver.service.job.decider import Decider
from psserver.shard import VersionMade
from pswire.model.plan import VariableSpec, make_plan

PLAN = make_plan([VariableSpec("a", (4, 2)), VariableSpec("b", (3,))], 2)


def test_all_servers_are_waited_for_and_nothing_counts_twice() -> None:
    facts = VersionFacts(2)
    facts.take(0, VersionMade(0))
    facts.take(0, VersionMade(1, {"a": 1}, 8))
    assert facts.next(-1, PLAN) is None
    facts.take(1, VersionMade(0))
    assert facts.next(-1, PLAN) == inputs.Executed(0)
    facts.take(1, VersionMade(1, {"a": 2, "b": 3}, 3))
    facts.take(1, VersionMade(1, {"a": 8}, 3))
    # Of two variables with as many the first by name; all of `b` is kept back, wherever it lies.
    assert facts.next(0, PLAN) == inputs.Executed(1, 6, 11, "a", whole=True)
    assert facts.next(1, PLAN) is None


def test_a_variable_is_whole_if_all_servers_together_keep_it_back() -> None:
    facts = VersionFacts(2)
    for server, kept in enumerate((3, 4)):
        facts.take(server, VersionMade(0, {"a": kept}, 8))
    found = facts.next(-1, PLAN)
    assert found is not None and found.kept == 7 and not found.whole
    for server, kept in enumerate((4, 4)):
        facts.take(server, VersionMade(1, {"a": kept}, 8))
    found = facts.next(0, PLAN)
    assert found is not None and found.whole


def test_a_server_that_was_restored_has_nothing_to_tell_of_before() -> None:
    facts = VersionFacts(2)
    facts.take(0, VersionMade(4, {"a": 1}, 8))
    facts.take(1, VersionMade(5))
    assert facts.next(3, PLAN) == inputs.Executed(4, 1, 8, "a")


@pytest.mark.parametrize("fact", [VersionMade(3), VersionMade(4, {"a": 2, "b": 1}, 9)])
def test_a_fact_comes_back_from_its_form_on_the_wire(fact: VersionMade) -> None:
    assert from_wire(to_wire(fact)) == fact


def decider(told: int = -1) -> Any:
    """A decider without a coordinator; `input`, `give` and `fail` are to be set."""
    made: Any = object.__new__(Decider)
    made.failure, made._telling, made._waiting = None, False, {}
    made._behind, made._ready = {}, deque()
    made.agreement, made.facts = mock.Mock(plan=PLAN), VersionFacts(1)
    made.coordinator = mock.Mock()
    made.coordinator.state.kept_back.told, made.coordinator.state.version = told, 10
    made.coordinator.state.stopped = None
    return made
