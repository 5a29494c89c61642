"""A state that does not fit is refused with a sentence, and nothing has changed then."""

import json
from collections.abc import Callable
from dataclasses import field, fields, is_dataclass, make_dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator import Coordinator, JobState, JobTerms
from psserver.optimizers import build as build_optimizer
from psserver.policies import Policy, TensorParts, build
from psserver.records import StateError, from_plain, to_plain
from psserver.shard import Apply, Fold, Hold, Seal, Shard, ShardError, ShardState, reshard
from pswire.model.plan import make_plan
from tests.coordinator.faulty_policies import Honest
from tests.promises import promise
from tests.sentences import Recorder
from tests.shard.reference import MOMENTUM, SGD, VARIABLES, install, numbers, shards_of, stage

TERMS = JobTerms("j", workers=2)


def restored(plain: object, policy: Policy | None = None) -> Coordinator:
    return Coordinator(TERMS, policy or build("sync", {}, 2), given=JobState.read(plain))


def saved(policy: str | Policy = "sync") -> dict[str, Any]:
    """Of a job in which w0 has committed, and w1 computes."""
    harness = CoordinatorHarness(policy, workers=2).starts()
    harness.commits("w0")
    found: dict[str, Any] = json.loads(json.dumps(harness.coordinator.saved()))
    return found


# The coordinator


def test_a_state_that_fits() -> None:
    assert restored(saved()).saved() == saved()


def _three_tickets(state: dict[str, Any]) -> None:
    live = state["tickets"]["live"]
    for number in (7, 8):
        live[str(number)] = {**live["3"], "number": number}
    state["tickets"]["next_number"] = 9


def _twice(table: dict[str, Any], old: str, new: str) -> None:
    table[new] = table[old]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: s.update(more=1), "coordinator state: expected the fields .* got unknown 'more'"),
        (lambda s: s.pop("loss"), "got no 'loss'"),
        (
            lambda s: s["roster"]["present"]["w0"].update(rank="1"),
            r"present.w0.rank: expected a whole number, got '1'",
        ),
        (lambda s: s["tickets"]["live"]["2"].update(state="late"), r"live.2.state: expected one of 'open'"),
        (lambda s: _twice(s["tickets"]["live"], "2", "x"), "expected whole numbers as keys, got 'x'"),
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
            lambda s: s["policy"].update(name="async"),
            "expected the state of a job that began with policy .*, got .*'async'",
        ),
        (
            lambda s: s["policy"].update(knobs={"backup": 1}),
            "expected the state of a job that began with policy .*'backup': 1",
        ),
        (lambda s: s.update(entries=0), "no entry was written"),
        (lambda s: s["tickets"].update(next_number=1), "a ticket's number is yet to be given"),
        (lambda s: _twice(s["roster"]["present"], "w0", "w9"), "a member has two names"),
        (lambda s: s["roster"]["present"]["w1"].update(rank=0), "two members have one rank"),
        (lambda s: s["roster"]["tallies"].pop("w1"), "a worker has no tally"),
        (lambda s: s["tickets"]["live"]["2"].update(base=9), "a ticket started from a version to come"),
        (lambda s: s["tickets"]["live"]["2"].update(number=1), "a ticket has two numbers"),
        (_three_tickets, "a worker holds more than 2 open tickets"),
        (
            lambda s: s.update(folded={"99": {"ticket": 99, "factor": 1.0, "compensation": 0.0}}),
            "is not pending",
        ),
        (lambda s: s["roster"].update(empty_since=1.0), "empty_since contradicts the members"),
        (
            lambda s: s["policy"].update(remembers={}),
            "policy sync cannot take up its state: StateError: policy sync",
        ),
        (lambda s: s["policy"]["remembers"]["view"].update(folded=7), "folded than are in the buffer"),
        (lambda s: s["policy"]["remembers"]["view"].update(members={}), "is held by no member"),
        (
            lambda s: s["policy"]["remembers"].update(gate={"paces": []}),
            "the gate WaitForUpdate remembers nothing",
        ),
    ],
)
def test_a_state_of_a_coordinator_that_does_not_fit(
    change: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    state = saved()
    change(state)
    with pytest.raises(StateError, match=sentence):
        restored(state)


def records_of_the_state() -> list[type[Any]]:
    """`JobState`, and every record that a field of it, or of one of those, can have."""
    found: list[Any] = [JobState]
    for kind in found:
        pending = list(get_type_hints(kind).values())
        while pending:
            hint = pending.pop()
            pending += get_args(hint)
            if is_dataclass(hint) and hint not in found:
                found.append(hint)
    return found


def example(hint: Any) -> Any:
    """Return plain data that can be read as a value of this type."""
    origin, inner = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return {name: example(each) for name, each in fields_of(hint).items()}
    if origin is Literal:
        return inner[0]
    if type(None) in inner:
        return None
    if isinstance(hint, type) and issubclass(hint, tuple):
        return [example(each) for each in get_type_hints(hint).values()]
    if origin is tuple and inner[-1] is not Ellipsis:
        return [example(each) for each in inner]
    return {int: 1, float: 1.0, str: "w", bool: True, object: {}}.get(hint, {} if origin is dict else [])


def fields_of(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind) if each.init}


@promise("A field that is added to the coordinator's state is saved, read, copied and compared by itself")
@pytest.mark.parametrize("kind", records_of_the_state(), ids=lambda kind: kind.__name__)
def test_a_field_more(kind: Any) -> None:
    added = [("more", dict[int, str], field(default_factory=dict))]
    more = make_dataclass("More", added, bases=(kind,), frozen=kind.__dataclass_params__.frozen)
    plain = {**example(kind), "more": {"7": "x"}}
    read = from_plain(more, json.loads(json.dumps(plain)), "it")
    assert read.more == {7: "x"} and to_plain(read) == plain
    assert read == from_plain(more, plain, "it") != from_plain(more, {**plain, "more": {}}, "it")


# Policies of one's own


class Counts(Honest):
    """It can be saved."""

    def state(self) -> dict[str, object]:
        return {"commits": self.commits}

    def restore(self, state: dict[str, Any]) -> None:
        self.commits = state["commits"]


def test_a_policy_with_state(sentences: Recorder) -> None:
    policy, plain = Counts(workers=2), saved(Counts(workers=2))
    restored(plain, policy)
    assert policy.commits == 1
    plain["policy"]["remembers"] = {}
    with sentences.raises(StateError):
        restored(plain, Counts(workers=2))


def test_a_policy_without_state(sentences: Recorder) -> None:
    harness = CoordinatorHarness(Honest(workers=2), workers=2).starts()
    with sentences.raises(StateError):
        harness.coordinator.saved()
    # The job itself goes on.
    harness.commits("w0")
    assert (harness.stopped, harness.version) == ("", 1)


def test_a_policy_whose_state_is_not_plain(sentences: Recorder) -> None:
    class Sets(Honest):
        def state(self) -> dict[str, object]:
            return {"seen": {1, 2}}

    harness = CoordinatorHarness(Sets(workers=2), workers=2).starts()
    with sentences.raises(StateError):
        harness.coordinator.saved()


def test_a_gate_that_remembers_and_does_not_say_what(sentences: Recorder) -> None:
    from psserver.policies.parts.gates import Immediate
    from psserver.policies.parts.view import Participant, View

    class Counting(Immediate):
        def completed(self, view: View, member: Participant, t: float) -> None:
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
            shard.execute(Hold(ticket, shard.version, worker=f"w{ticket % 2}"))
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
    assert sorted(state.arrays) == ["payload/4", "slot/momentum", "update/0", "version/1"]


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
        ({"holds": [(5, 0)]}, {}, "a version that a ticket needs is missing"),
        ({"holds": [(9, 1)]}, {}, "a version is kept for a ticket that is not open"),
        ({"tickets": []}, {}, "a version is kept for a ticket that is not open"),
        ({"factors": []}, {}, "the coming update: expected 1 factors, got 0"),
        ({}, {"payload/4": None}, "the payload of a committed ticket is missing"),
        ({}, {"payload/9": np.zeros(44, np.float32)}, "a payload is staged for a ticket that is not open"),
        ({}, {"payload/x": np.zeros(44, np.float32)}, "expected payload/<number>, got the array 'payload/x'"),
        ({}, {"slot/momentum": None}, r"missing arrays: \['slot/momentum'\]; unknown ones: none"),
        ({}, {"memory/m": np.zeros(44, np.float32)}, r"missing arrays: none; unknown ones: \['memory/m'\]"),
        (
            {},
            {"version/1": np.zeros(7, np.float32)},
            r"version/1: expected float32 of shape \(36,\), got .*\(7,\)",
        ),
        ({}, {"slot/momentum": np.zeros(27)}, "slot/momentum: expected float32 of shape .*, got float64"),
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
    shard.execute(Hold(2, 0))
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
            shard.execute(Hold(ticket, 0))
    stage(plan, shards, 2, numbers(2))
    slot = shards[0].begin(3)
    slot.values[...] = 1.0
    assert shards[0].staging.finish(slot)
    for shard in shards:
        shard.execute(Seal(2))
    shards[0].holds.has_read(3)
    for shard in shards:
        shard.execute(Apply(1, 1.0, 1.0, (Fold(2, 1.0),)))
    states = [shard.state() for shard in shards]
    assert "version/0" in states[1].arrays and "payload/3" in states[0].arrays
    (whole,) = reshard(states, plan, make_plan(VARIABLES, 1))
    # Ticket 3 is still open: what layers' state was where it started is kept.
    state = [number for number, spec in enumerate(VARIABLES) if spec.kind == "state"]
    assert sorted(whole.arrays) == [*(f"base/0/{number}" for number in state), "slot/momentum", "version/1"]
    assert (whole.facts.holds, [t.ticket for t in whole.facts.tickets]) == ([], [3])


def test_tensor_parts_are_part_of_it(sentences: Recorder) -> None:
    (state,) = shard_state()
    shard = new_shard(tensors=TensorParts("taylor"))
    with sentences.raises(StateError):
        shard.restore(state)
