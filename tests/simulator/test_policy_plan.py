"""[[policy.then]] of an experiment file: read strictly, tried out before anything starts, followed by a simulation."""

from pathlib import Path
from typing import Any

import pytest

from pslab.experiment import Experiment
from pslab.launch.experiments import checked
from psserver.policies import PolicyError, build
from psserver.policy_plan import plan_of
from pswire.config.experiment import ExperimentError
from pswire.config.toml import read_toml
from tests.sentences import Recorder


def document(*changes: dict[str, Any], **policy: Any) -> dict[str, Any]:
    return {"cluster": {"workers": 4}, "policy": {"name": "sync", **policy, "then": list(changes)}}


def test_a_change_without_a_name_keeps_the_other_knobs() -> None:
    experiment = Experiment.parse(
        document(
            {"after": "100 versions", "name": "bounded", "aggregate": 2, "max_staleness": 3},
            {"after": "500 versions", "max_staleness": 1, "why": "near the end"},
        )
    )
    first, second = plan_of(experiment, build("sync", {}, 4), None)
    assert (first.versions, first.name) == (100, "bounded")
    assert (second.versions, second.why) == (500, "near the end")
    assert dict(second.knobs) == {"aggregate": 2, "max_staleness": 1}
    assert Experiment.parse(read_toml(experiment.to_toml())) == experiment


def test_a_file_without_a_plan_is_written_as_before() -> None:
    assert "then" not in Experiment.parse(document()).to_toml()


@pytest.mark.parametrize(
    "after", ["", "25", "25 %", "0 versions", "-1 versions", "five versions", "1e2 versions"]
)
def test_a_place_that_is_none_is_refused(after: str) -> None:
    with pytest.raises(ExperimentError):
        Experiment.parse(document({"after": after, "name": "async"}))


@pytest.mark.parametrize(
    "changes",
    [
        [{"after": "25 versions", "name": "median"}],
        [
            {"after": "25 versions", "name": "async"},
            {"after": "50 versions", "name": "bounded", "max_stale": 1},
        ],
        [{"after": "25 versions", "slack": 1}],
        [{"after": "25 versions", "name": "os:system"}],
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused_at_the_start(
    changes: list[dict[str, Any]], sentences: Recorder
) -> None:
    experiment = Experiment.parse(document(*changes))
    with pytest.raises(PolicyError) as refusal:
        plan_of(experiment, build("sync", {}, 4), None)
    sentences.check(str(refusal.value))
    job = Experiment.parse(
        document(*changes) | {"job": {"module": "tests/replay/dropout_digits.py:DropoutDigits"}}
    )
    with pytest.raises(ExperimentError):
        checked(job, Path("experiment.toml"))
