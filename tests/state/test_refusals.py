"""A state that does not fit is refused with a sentence, and nothing has changed then."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator import Coordinator, CoordinatorState, JobTerms
from psserver.optimizers import build as build_optimizer
from psserver.policies import Policy, TensorParts, build
from psserver.shard import Apply, Fold, Pin, Seal, Shard, ShardError, ShardState, reshard
from pswire import protocol
from pswire.model.plan import make_plan
from pswire.records import StateError
from tests.coordinator.faulty_policies import Honest
from tests.sentences import Recorder
from tests.shard.reference import MOMENTUM, SGD, VARIABLES, install, numbers, shards_of, stage

TERMS = JobTerms("j", {"name": "sgd"}, workers=2)


def fresh(policy: Policy | None = None, now: float = 0.0) -> Coordinator:
    return Coordinator(TERMS, policy or build("sync", {}, 2), now)


def saved(policy: str | Policy = "sync") -> dict[str, Any]:
    """Of a job in which w0 has committed, and w1 computes."""
    harness = CoordinatorHarness(policy, workers=2).starts()
    harness.commits("w0")
    found: dict[str, Any] = json.loads(json.dumps(harness.coordinator.state().to_json()))
    return found


# The coordinator


def test_a_state_that_fits() -> None:
    coordinator = fresh()
    coordinator.restore(CoordinatorState.from_json(saved()))
    assert coordinator.state().to_json() == saved()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: s.update(more=1), "coordinator state: expected the fields .* got unknown 'more'"),
        (lambda s: s.pop("loss"), "got no 'loss'"),
        (lambda s: s["members"][0].update(rank="1"), r"members\[0\].rank: expected a whole number, got '1'"),
        (lambda s: s["tickets"][0].update(state="late"), r"tickets\[0\].state: expected one of 'open'"),
        (
            lambda s: s.update(workers=3),
            "expected the state of a job with workers = 2, got one with workers = 3",
        ),
        (
            lambda s: s.update(servers=2),
            "expected the state of a job with servers = 1, got one with servers = 2",
        ),
        (lambda s: s.update(seed=9), "expected the state of a job with seed = 0, got one with seed = 9"),
        (
            lambda s: s.update(optimizer={"name": "adam"}),
            "expected the state of a job with optimizer = .*'sgd'",
        ),
        (
            lambda s: s.update(policy="async"),
            "expected the state of a job that began with policy .*, got .*'async'",
        ),
        (
            lambda s: s.update(knobs={"backup": 1}),
            "expected the state of a job that began with policy .*'backup': 1",
        ),
        (lambda s: s.update(entries=0), "no entry was written"),
        (lambda s: s.update(next_number=1), "a ticket's number is yet to be given"),
        (lambda s: s.update(members=s["members"] * 2), "two members have one name"),
        (lambda s: s["members"][1].update(rank=0), "two members have one rank"),
        (lambda s: s.update(tallies=s["tallies"][:1]), "a worker has no tally"),
        (lambda s: s["tickets"][0].update(base=9), "a ticket started from a version to come"),
        (lambda s: s["tickets"][0].update(number=1), "two tickets have one number"),
        (lambda s: s.update(folded=[{"ticket": 99, "factor": 1.0, "compensation": 0.0}]), "is not pending"),
        (lambda s: s.update(empty_since=1.0), "empty_since contradicts the members"),
        (
            lambda s: s.update(policy_state={}),
            "policy sync cannot take up its state: StateError: policy sync",
        ),
        (lambda s: s["policy_state"]["view"].update(folded=7), "folded than are in the buffer"),
        (lambda s: s["policy_state"]["view"].update(members=[]), "is held by no member"),
        (lambda s: s["policy_state"].update(gate={"paces": []}), "the gate WaitForUpdate remembers nothing"),
    ],
)
def test_a_state_of_a_coordinator_that_does_not_fit(
    change: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    state, coordinator = saved(), fresh()
    change(state)
    with pytest.raises(StateError, match=sentence):
        coordinator.restore(CoordinatorState.from_json(state))
    # It is as new: the job can begin, or another state be taken up.
    coordinator.restore(CoordinatorState.from_json(saved()))
    assert coordinator.state().to_json() == saved()


def test_a_coordinator_at_work_takes_up_nothing(sentences: Recorder) -> None:
    harness = CoordinatorHarness(workers=2).starts()
    before = harness.state()
    with sentences.raises(StateError):
        harness.coordinator.restore(CoordinatorState.from_json(saved("async")))
    assert harness.state() == before


def test_another_process_has_another_clock() -> None:
    """Times in the log are those of the job, whatever the clock of the process that goes on."""
    harness = CoordinatorHarness("async", workers=2, now=100.0).starts()
    harness.passes(2.0)
    state = harness.coordinator.state()
    shifted = Coordinator(harness.coordinator.terms, build("async", {}, 2), 5000.0)
    shifted.restore(CoordinatorState.from_json(state.to_json()), shift=4900.0)
    harness.coordinator, before = shifted, harness.coordinator
    ticket = harness.holds("w0") or 0
    commit = protocol.Commit(ticket, samples=8, loss=0.5, ready=True)
    expected = before.handle("w0", 0, commit, 103.0, norm=1.0)
    assert shifted.handle("w0", 0, commit, 5003.0, norm=1.0) == expected
    # w1's connection is lost in both at the same time of the job, and given up after the same wait.
    assert shifted.disconnect("w1", 0, 5004.0) == before.disconnect("w1", 0, 104.0)
    assert shifted.tick(5006.5) == before.tick(106.5) == []
    assert shifted.tick(5007.0) == before.tick(107.0) != []


# Policies of one's own


class Counts(Honest):
    """It can be saved."""

    def state(self) -> dict[str, object]:
        return {"commits": self.commits}

    def restore(self, state: dict[str, Any]) -> None:
        self.commits = state["commits"]


def test_a_policy_with_state(sentences: Recorder) -> None:
    policy = Counts(workers=2)
    coordinator = fresh(policy)
    coordinator.restore(CoordinatorState.from_json(saved(Counts(workers=2))))
    assert policy.commits == 1
    with sentences.raises(StateError):
        fresh(Counts(workers=2)).restore(replace(coordinator.state(), policy_state={}))


def test_a_policy_without_state(sentences: Recorder) -> None:
    harness = CoordinatorHarness(Honest(workers=2), workers=2).starts()
    with sentences.raises(StateError):
        harness.coordinator.state()
    # The job itself goes on.
    harness.commits("w0")
    assert (harness.stopped, harness.version) == ("", 1)


def test_a_policy_whose_state_is_not_plain(sentences: Recorder) -> None:
    class Sets(Honest):
        def state(self) -> dict[str, object]:
            return {"seen": {1, 2}}

    harness = CoordinatorHarness(Sets(workers=2), workers=2).starts()
    with sentences.raises(StateError):
        harness.coordinator.state()


def test_a_gate_that_remembers_and_does_not_say_what(sentences: Recorder) -> None:
    from psserver.policies.parts.gates import Immediate
    from psserver.policies.parts.view import Member, View

    class Counting(Immediate):
        def completed(self, view: View, member: Member, t: float) -> None:
            self.latest = t

    with sentences.raises(StateError):
        Counting().state(View())


# Shards


def shard_state(config: dict[str, object] = MOMENTUM, servers: int = 1) -> list[ShardState]:
    """Version 1; ticket 3 is folded, 4 is committed, 5 is open."""
    plan, shards = shards_of(servers, config, staging=8)
    install(plan, shards, numbers(0))
    for ticket in (2, 3, 4, 5):
        if ticket == 3:
            for shard in shards:
                shard.execute(Apply(1, 1.0, 1.0, (Fold(2, 1.0),)))
        for shard in shards:
            shard.execute(Pin(ticket, shard.version, worker=f"w{ticket % 2}"))
        if ticket < 5:
            stage(plan, shards, ticket, numbers(ticket))
            for shard in shards:
                shard.execute(Seal(ticket))
    for shard in shards:
        shard.execute(Fold(3, 0.5))
    return [shard.state() for shard in shards]


def new_shard(config: dict[str, object] = MOMENTUM, **more: Any) -> Shard:
    return Shard(make_plan(VARIABLES, 1), 0, build_optimizer(config), **more)


def same(left: ShardState, right: ShardState) -> bool:
    bits = {name: values.tobytes() for name, values in left.arrays.items()}
    return left.facts == right.facts and bits == {n: v.tobytes() for n, v in right.arrays.items()}


def test_a_shard_state_that_fits() -> None:
    (state,) = shard_state()
    shard = new_shard()
    shard.restore(state)
    assert same(shard.state(), state)
    assert sorted(state.arrays) == ["payload/4", "slot/0/momentum", "update/0", "version/1"]


@pytest.mark.parametrize(
    ("facts", "arrays", "sentence"),
    [
        (
            {"plan": "x"},
            {},
            r"expected the plan '.*', got 'x'; for another number of servers use reshard\(\)",
        ),
        ({"optimizer": SGD}, {}, "expected the optimizer .*momentum.*, got .*sgd"),
        ({"tensors": {"aggregator": "median"}}, {}, "expected the tensors .*, got .*median"),
        ({"version": 7}, {}, "its newest version is not among its arrays"),
        ({"pins": [(5, 0)]}, {}, "a version that a ticket needs is missing"),
        ({"pins": [(9, 1)]}, {}, "a version is kept for a ticket that is not open"),
        ({"tickets": []}, {}, "a version is kept for a ticket that is not open"),
        ({"slot_workers": ["w0"]}, {}, "momentum keeps one set of slots for all workers"),
        ({"factors": []}, {}, "the coming update: expected 1 factors and no workers, got 0 and 0"),
        ({"workers": ["w0"]}, {}, "the coming update: expected 1 factors and no workers, got 1 and 1"),
        ({}, {"payload/4": None}, "the payload of a committed ticket is missing"),
        ({}, {"payload/9": np.zeros(44, np.float32)}, "a payload is staged for a ticket that is not open"),
        ({}, {"payload/x": np.zeros(44, np.float32)}, "expected payload/<number>, got the array 'payload/x'"),
        ({}, {"slot/0/momentum": None}, r"missing arrays: \['slot/0/momentum'\]; unknown ones: none"),
        ({}, {"memory/m": np.zeros(44, np.float32)}, r"missing arrays: none; unknown ones: \['memory/m'\]"),
        (
            {},
            {"version/1": np.zeros(7, np.float32)},
            r"version/1: expected float32 of shape \(36,\), got .*\(7,\)",
        ),
        ({}, {"slot/0/momentum": np.zeros(27)}, "slot/0/momentum: expected float32 of shape .*, got float64"),
        (
            {},
            {"update/0": np.zeros((6, 6), np.float32)},
            r"update/0: expected .*, got float32 of shape \(6, 6\)",
        ),
    ],
)
def test_a_state_of_a_shard_that_does_not_fit(
    facts: dict[str, Any], arrays: dict[str, Any], sentence: str
) -> None:
    (good,) = shard_state()
    changed = {name: values for name, values in {**good.arrays, **arrays}.items() if values is not None}
    shard = new_shard()
    before = shard.state()
    with pytest.raises(StateError, match=sentence):
        shard.restore(ShardState(replace(good.facts, **facts), changed))
    assert same(shard.state(), before)
    shard.restore(good)
    assert same(shard.state(), good)


def test_another_accumulators_update(sentences: Recorder) -> None:
    (state,) = shard_state()
    more = ShardState(
        replace(state.facts, factors=[0.5, 0.5]), {**state.arrays, "update/1": state.arrays["update/0"]}
    )
    with sentences.raises(StateError):
        new_shard().restore(more)


def test_a_shard_at_work(sentences: Recorder) -> None:
    (state,) = shard_state()
    plan, (shard,) = shards_of(1)
    install(plan, [shard], numbers(0))
    with sentences.raises(StateError):
        shard.restore(state)
    shard.execute(Pin(2, 0))
    stage(plan, [shard], 2, numbers(2))
    update = shard.prepare(Fold(2, 1.0))
    with sentences.raises(ShardError):
        shard.state()
    assert update is not None
    update.compute()
    update.finish()
    assert shard.state().facts.factors == [1.0]


# Other numbers of servers


def test_states_that_can_not_be_put_together(sentences: Recorder) -> None:
    states, old, new = shard_state(servers=2), make_plan(VARIABLES, 2), make_plan(VARIABLES, 3)
    with sentences.raises(StateError):
        reshard(states[:1], old, new)
    with sentences.raises(StateError):
        reshard(states[::-1], old, new)
    with sentences.raises(StateError):
        reshard(states, old, make_plan(VARIABLES[:2], 3))
    later = replace(states[1], facts=replace(states[1].facts, version=2))
    with sentences.raises(StateError):
        reshard([states[0], later], old, new)


def test_there_and_back() -> None:
    states, old, new = shard_state(servers=2), make_plan(VARIABLES, 2), make_plan(VARIABLES, 3)
    assert all(map(same, reshard(reshard(states, old, new), new, old), states))


def test_what_not_every_server_has() -> None:
    """A payload that came to one server only is to be pushed again; a version that one gave up is gone."""
    plan, shards = shards_of(2, staging=8)
    install(plan, shards, numbers(0))
    for ticket in (2, 3):
        for shard in shards:
            shard.execute(Pin(ticket, 0))
    stage(plan, shards, 2, numbers(2))
    slot = shards[0].begin(3)
    slot.values[...] = 1.0
    assert shards[0].staging.finish(slot)
    for shard in shards:
        shard.execute(Seal(2))
    shards[0].arena.unpin(3)
    for shard in shards:
        shard.execute(Apply(1, 1.0, 1.0, (Fold(2, 1.0),)))
    states = [shard.state() for shard in shards]
    assert "version/0" in states[1].arrays and "payload/3" in states[0].arrays
    (whole,) = reshard(states, plan, make_plan(VARIABLES, 1))
    # Ticket 3 is still open: what layers' state was where it started is kept.
    state = [number for number, spec in enumerate(VARIABLES) if spec.kind == "state"]
    assert sorted(whole.arrays) == [*(f"base/0/{number}" for number in state), "slot/0/momentum", "version/1"]
    assert (whole.facts.pins, [t.ticket for t in whole.facts.tickets]) == ([], [3])


def test_tensor_parts_are_part_of_it(sentences: Recorder) -> None:
    (state,) = shard_state()
    shard = new_shard(tensors=TensorParts("taylor"))
    with sentences.raises(StateError):
        shard.restore(state)
