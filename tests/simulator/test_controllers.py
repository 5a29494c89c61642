"""[policy.adapt] of an experiment file: read strictly, tried out at the start, followed by a simulation."""

from pathlib import Path
from typing import Any

import pytest

from pslab.check.checker import check_run
from pslab.experiment import Experiment
from pslab.replay.run_folder import prove, replay_of
from pslab.simulator.build import SimulationError, build
from psserver.policies import PolicyError
from psserver.policies import build as build_policy
from psserver.policy_plan import adapt_of
from pswire.config.experiment import ExperimentError
from pswire.config.toml import read_toml
from tests.replay.simulated import document, simulate
from tests.sentences import Recorder

CASES = [
    ("k-sync", {"aggregate": 1, "adapt": {"name": "adasync", "rate": "sqrt", "floor": 0.7}}),
    ("k-sync", {"aggregate": 2, "adapt": {"name": "noise-scale", "rate": "linear"}}),
]


@pytest.mark.parametrize(("policy", "knobs"), CASES)
def test_a_run_with_a_controller_passes_its_check_and_replays_to_the_bit(
    policy: str, knobs: dict[str, Any], tmp_path: Path
) -> None:
    """Every decision is an entry with its inputs, so a replay does not need the controller."""
    run = simulate(
        tmp_path / "run",
        policy,
        knobs,
        run={"versions": 160},
        optimizer={"name": "sgd", "learning_rate": 0.1},
        job={"epochs": 60},
        simulation={"batch_size": 4},
    )
    changes = [change for _, change in run.fold().changes]
    assert changes and all(change.inputs for change in changes)
    found = check_run(run)
    assert found.ok, found.violations[:3]
    replay = replay_of(run)
    replay.run()
    assert prove(run, replay).holds
    assert run.experiment.policy.adapt is not None
    assert run.settings()["policy.adapt.name"] == knobs["adapt"]["name"]


def test_a_file_is_written_as_it_was_read() -> None:
    experiment = Experiment.parse(document(*CASES[0]))
    assert Experiment.parse(read_toml(experiment.to_toml())) == experiment
    assert "adapt" not in Experiment.parse(document("sync")).to_toml()


@pytest.mark.parametrize("adapt", [{}, {"name": ""}, {"name": 3}, "adasync"])
def test_a_table_that_is_none_is_refused(adapt: object) -> None:
    with pytest.raises(ExperimentError):
        Experiment.parse(document("k-sync", {"adapt": adapt}))


@pytest.mark.parametrize(
    ("knobs", "more"),
    [
        ({"adapt": {"name": "adasinc"}}, {}),
        ({"adapt": {"name": "adasync"}, "then": [{"after": "25 %", "name": "async"}]}, {}),
    ],
)
def test_what_cannot_be_controlled_is_refused_at_the_start(
    knobs: dict[str, Any], more: dict[str, Any], sentences: Recorder
) -> None:
    experiment = Experiment.parse(document("k-sync", knobs, **more))
    with pytest.raises(PolicyError) as refusal:
        adapt_of(experiment, build_policy("k-sync", {}, 4))
    sentences.check(str(refusal.value))


def test_a_simulation_of_time_has_nothing_to_decide_by(sentences: Recorder) -> None:
    timing = {"problem": "none", "batches": 10}
    with pytest.raises(SimulationError) as refusal:
        build(Experiment.parse(document(*CASES[0], simulation=timing)))
    sentences.check(str(refusal.value))
