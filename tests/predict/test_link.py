"""An experiment before it is run: bytes are the codecs' own, and its floors are what the simulator takes."""

from pathlib import Path
from typing import Any

import pytest

from pslab.experiment import Experiment
from pslab.launch.simulated import model_plan, run_simulated
from pslab.predict.link import BATCH, DOWN, UP, link_laws
from pslab.predict.prediction import forecast
from pslab.runs.folder import Run
from pslab.theory.measured import LawClaim
from psserver.policies import PolicyError
from pswire.transport.wire import wire_named
from tests.promises import promise
from tests.replay.command import ps_lab
from tests.sentences import Recorder

MODEL, RATE = 4_096_000, 1e6
NESTEROV = {"name": "nesterov", "learning_rate": 0.7}
CODECS = ("float32", "bfloat16", "int8/bfloat16", "int8/int8", "int4/int4", "top-k/bfloat16", "top-k/top-k")


def made(policy: dict[str, Any], optimizer: dict[str, Any] | None = None, **cluster: object) -> Experiment:
    document = {
        "run": {"name": "forecast", "versions": 40},
        "cluster": {"workers": 4, **cluster},
        "policy": policy,
        "simulation": {"compute": "constant(0.5)", "payload_bytes": MODEL},
        "links": {"bandwidth": RATE},
    }
    return Experiment.parse(document | ({"optimizer": optimizer} if optimizer else {}), "test")


def laws(experiment: Experiment) -> dict[str, LawClaim]:
    return {claim.what: claim for claim in link_laws(experiment, model_plan(experiment))}


def ran(experiment: Experiment, folder: Path) -> Run:
    return Run(run_simulated(experiment, out=folder / "run", quiet=True).folder)


@promise("What a link and a codec give before a run is what the simulated cluster takes.")
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("policy", ["sync", "async"])
def test_a_simulated_run_takes_what_is_said(policy: str, servers: int, tmp_path: Path) -> None:
    experiment = made({"name": policy}, servers=servers)
    floor, run = laws(experiment)[BATCH], ran(experiment, tmp_path)
    batches = sum(counts.applied for counts in run.summary.contributions.values()) / 4
    measured = run.summary.wall_seconds / batches
    # A run begins with a pull and ends with a push. Under async, workers in step use one direction at a time, too.
    assert floor.relation == ">=" and floor.expected <= measured * 1.05
    if policy == "sync":
        assert floor.expected == pytest.approx(measured, rel=0.08)
    assert ("compute + n (up + down)" in floor.formula) == (policy == "sync") and "link" in floor.source


@pytest.mark.parametrize("fragments", [2, 4])
def test_groups_that_take_turns_take_what_is_said(fragments: int, tmp_path: Path) -> None:
    policy = {"name": "diloco", "steps": 2, "fragments": fragments}
    experiment = made(policy, NESTEROV)
    found, run = laws(experiment), ran(experiment, tmp_path)
    assert found[UP].expected == found[DOWN].expected == MODEL / fragments / 1e6
    # The first version travels whole, and rounds have two batches.
    assert found[BATCH].expected == pytest.approx(
        run.summary.wall_seconds / (2 * run.summary.versions), rel=0.08
    )
    with pytest.raises(PolicyError):
        laws(made(policy, NESTEROV, wire_dtype="top-k"))


@pytest.mark.parametrize(("steps", "overlap", "bound"), [(40, 10, "link"), (100, 80, "computation")])
def test_steps_that_need_no_version_hide_the_link(
    steps: int, overlap: int, bound: str, tmp_path: Path
) -> None:
    """The model takes 32 s a round, and a batch 0.5 s."""
    experiment = made({"name": "diloco", "steps": steps, "overlap": overlap}, NESTEROV)
    floor, run = laws(experiment)[BATCH], ran(experiment, tmp_path)
    assert floor.expected == pytest.approx((steps / 2 + max(0, 32.768 - overlap / 2)) / steps, rel=0.07)
    assert floor.expected == pytest.approx(run.summary.wall_seconds / (40 * steps), rel=0.08)
    assert bound in floor.source


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_and_simulated_times_are_those_of_the_codec(codec: str) -> None:
    experiment = made({"name": "sync"}, servers=2, wire_dtype=codec)
    plan, wire, found = model_plan(experiment), wire_named(codec), laws(experiment)
    assert found[UP].expected == sum(wire.up.size(shard) for shard in plan.shards) / 1e6
    assert found[DOWN].expected == sum((wire.deltas or wire.down).size(shard) for shard in plan.shards) / 1e6
    (row,) = (row for row in forecast(experiment, "it", None, 1).rows if row.what == BATCH)
    # The first version travels whole.
    whole = 4 * MODEL / 2 / RATE / experiment.run.versions
    assert found[BATCH].expected <= row.simulated[0] * 1.001 <= found[BATCH].expected * 1.05 + whole


def test_under_async_a_version_travels_whole_where_changes_would_be_longer() -> None:
    down = {codec: laws(made({"name": "async"}, wire_dtype=codec))[DOWN].expected for codec in CODECS}
    assert down["int8/int8"] == MODEL / 1e6 > down["top-k/top-k"]


def test_local_steps_share_a_contribution() -> None:
    floor = laws(made({"name": "diloco", "steps": 50}))[BATCH].expected
    assert floor == pytest.approx(0.5 + 4 * 2 * MODEL / RATE / 50)


def test_without_a_link_only_bytes_are_known() -> None:
    experiment = made({"name": "sync"})
    free = experiment.model_copy(update={"links": experiment.links.model_copy(update={"bandwidth": 0.0})})
    assert set(laws(free)) == {UP, DOWN}


def test_the_command(tmp_path: Path, sentences: Recorder) -> None:
    path = tmp_path / "median.toml"
    path.write_text(
        'run.name = "median"\ncluster.workers = 3\npolicy.name = "median"\nsimulation.problem = "mlp"\n'
    )
    codecs = ("--vary", "cluster.wire_dtype=float32,int8/int8,top-k/top-k")
    said = ps_lab("predict", path, "--set", "links.bandwidth=1e5", *codecs)
    assert said.code == 0
    sentences.check(said.out)
    *fit, refused = ps_lab("predict", path, "--json", *codecs).lines
    assert [each["label"] for each in fit] == ["wire_dtype=float32", "wire_dtype=int8/int8"]
    assert all(each["runs"] == [] and each["rows"][UP]["theory"]["value"] > 0 for each in fit)
    assert refused["rows"] == {} and "top-k" in refused["not_simulated"]
    path.write_text('run.name = "nothing"\nrun.versions = 3\n')
    without = ps_lab("predict", path)
    assert without.code == 2
    sentences.check(without.err)
