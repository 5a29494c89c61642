"""Workers whose models compute something else are refused, and only these."""

import json
import math
from typing import Any

import pytest

from pslab.verify.harness import CoordinatorHarness, JoinError
from psserver.coordinator import Coordinator, JobState
from psserver.decisions.entries import Model
from psserver.policies import build
from tests.promises import promise
from tests.sentences import Recorder

LAYERS: list[list[Any]] = [
    ["Functional 'functional'", "a0", "", []],
    ["StringLookup 'words'", "b0", "c0", [0.5, -1.0]],
    ["Dense 'dense'", "d0", "", []],
]


def text(*layers: list[Any]) -> str:
    return json.dumps(layers or LAYERS)


def other(layer: int, part: int, value: Any = "f1") -> str:
    layers = [list(each) for each in LAYERS]
    layers[layer][part] = value
    return text(*layers)


def join(harness: CoordinatorHarness, worker: str, function: str, session: str = "A") -> None:
    rank = int(worker[1:])
    harness.join(worker, session, rank, function=function)
    harness.connects(worker, session)


def test_the_log_has_a_digest_of_the_layers_whatever_they_are_called() -> None:
    """And of nothing that machines round differently."""
    other_names = text(*([f"{each[0]}_7", *each[1:3], [n + 1e-6 for n in each[3]]] for each in LAYERS))
    found = []
    for function in (text(), other_names, other(0, 1), other(1, 2), ""):
        harness = CoordinatorHarness("async", workers=1)
        join(harness, "w0", function)
        harness.ready("w0")
        harness.commits("w0")
        found += [entry.function for entry in harness.entries(Model)]
    assert found[0] == found[1] and len(set(found)) == 4 and found[4] == ""


def begun() -> CoordinatorHarness:
    harness = CoordinatorHarness("async", workers=2, now=0.0)
    join(harness, "w0", text())
    return harness


@pytest.mark.parametrize(
    "function",
    [
        *(other(1, 2), other(2, 1), other(1, 3, [0.5, -1.01]), text(*LAYERS[:2])),
        *("[" * 5000, "{}", '"a"', "[[1, 2], [3]]", other(1, 3, [10**400, 0]), other(1, 3, [math.nan, 0])),
    ],
    ids=[
        *("vocabulary", "configuration", "mean", "fewer layers"),
        *("deep", "object", "text", "numbers", "large", "nan"),
    ],
)
def test_another_function_is_refused_with_its_layer_and_nothing_changes(
    function: str, sentences: Recorder
) -> None:
    harness = begun()
    before = harness.state(), len(harness.log)
    with pytest.raises(JoinError) as refused:
        join(harness, "w1", function)
    sentences.check(str(refused.value))
    assert (harness.state(), len(harness.log)) == before


def test_the_same_function_and_none_may_join() -> None:
    harness = begun()
    join(harness, "w1", text())
    join(harness, "w2", "")
    join(harness, "w0", text(), session="B")
    assert set(harness.coordinator.state.roster.present) == {"w0", "w1", "w2"}


def test_names_of_layers_decide_nothing() -> None:
    """Keras numbers the layers that a process has made: a notebook that builds its model twice has other names."""
    harness = begun()
    join(harness, "w1", text(*([f"{name[:-1]}_1'", *digests] for name, *digests in LAYERS)))
    assert set(harness.coordinator.state.roster.present) == {"w0", "w1"}


@promise("Models whose numbers differ by how a machine rounds train together.")
def test_numbers_that_are_near_decide_nothing() -> None:
    harness = begun()
    join(harness, "w1", other(1, 3, [0.5001, -1.0009]))
    assert set(harness.coordinator.state.roster.present) == {"w0", "w1"}


def test_the_first_worker_that_names_one_proposes_it() -> None:
    harness = CoordinatorHarness("async", workers=2, now=0.0)
    join(harness, "w0", "")
    join(harness, "w1", text())
    with pytest.raises(JoinError):
        join(harness, "w2", other(1, 2))


def test_a_worker_that_comes_back_alone_before_anything_is_trained_may_have_another_one() -> None:
    harness = begun()
    join(harness, "w0", other(1, 2), session="B")
    with pytest.raises(JoinError):
        join(harness, "w1", text())


def test_after_a_commit_its_worker_is_refused_too() -> None:
    harness = begun()
    join(harness, "w1", text())
    harness.ready("w0", "w1")
    harness.commits("w0", ready=False)
    harness.ready("w0", "w1")
    harness.commits("w0")
    harness.leaves("w0")
    harness.leaves("w1")
    with pytest.raises(JoinError):
        join(harness, "w0", other(1, 2), session="B")


def test_a_job_that_resumes_compares_with_what_it_had() -> None:
    harness = begun()
    plain = json.loads(json.dumps(harness.coordinator.saved()))
    policy = build("async", {}, 2)
    harness.coordinator = Coordinator(harness.coordinator.terms, policy, given=JobState.read(plain))
    with pytest.raises(JoinError):
        join(harness, "w1", other(1, 2))


def test_a_further_phase_may_train_with_another_loss() -> None:
    harness = CoordinatorHarness("sync", workers=1, now=0.0)
    harness.join("w0", "A", 0, stays=True, function=text())
    harness.connects("w0")
    harness.ready("w0")
    harness.commits("w0", ready=False)
    harness.ready("w0")
    harness.commits("w0", ready=False)
    harness.done("w0")
    assert harness.coordinator.state.phase == 1
    join(harness, "w0", other(2, 1), session="B")


@pytest.mark.parametrize("kept", ["[]", "{", json.dumps([["Dense 'dense'", "a0", ""]])])
def test_a_text_of_another_form_in_a_checkpoint_refuses_nobody(kept: str) -> None:
    harness = begun()
    plain = json.loads(json.dumps(harness.coordinator.saved()))
    plain["function"]["text"] = kept
    policy = build("async", {}, 2)
    harness.coordinator = Coordinator(harness.coordinator.terms, policy, given=JobState.read(plain))
    join(harness, "w1", text())
    with pytest.raises(JoinError):
        join(harness, "w0", other(1, 2), session="B")
