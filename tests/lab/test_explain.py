"""`ps-lab explain`: bytes are the codecs' own, and its floors are what the simulator takes."""

import json
from pathlib import Path

import pytest

from pslab.explain import PAYLOAD, bytes_per_second, explain
from pslab.launch.simulated import model_plan, run_simulated
from pslab.runs.folder import Run
from pswire.config.experiment import parse_experiment
from pswire.transport.wire import wire_named
from tests.promises import promise
from tests.replay.command import ps_lab
from tests.sentences import Recorder

MODEL, RATE = 4_096_000, 1e6


def document(policy: str, **cluster: object) -> dict:
    return {
        "run": {"name": "explained", "versions": 40},
        "cluster": {"workers": 4, **cluster},
        "policy": {"name": policy},
        "simulation": {"compute": "constant(0.5)", "payload_bytes": MODEL},
        "links": {"bandwidth": RATE},
    }


@promise("What a link and a codec give before a run is what the simulated cluster takes.")
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("policy", ["sync", "async"])
def test_a_simulated_run_takes_what_is_said(policy: str, servers: int, tmp_path: Path) -> None:
    experiment = parse_experiment(document(policy, servers=servers), "test")
    found = explain(experiment, model_plan(experiment), RATE, 0.5)
    run = Run(run_simulated(experiment, out=tmp_path / "run", quiet=True).folder)
    batches = sum(run.summary.contributions[worker].applied for worker in run.summary.contributions) / 4
    measured = run.summary.wall_seconds / batches
    # A run begins with a pull and ends with a push. Under async, workers in step use one direction at a time, too.
    assert found.chosen.seconds is not None and found.chosen.seconds <= measured * 1.05
    if policy == "sync":
        assert found.chosen.seconds == pytest.approx(measured, rel=0.08)
    assert found.barrier == (policy == "sync") and found.chosen.bound == "link"


@pytest.mark.parametrize("fragments", [2, 4])
def test_groups_that_take_turns_take_what_is_said(fragments: int, tmp_path: Path) -> None:
    knobs = {"name": "diloco", "steps": 2, "fragments": fragments}
    given = {**document("diloco"), "policy": knobs, "optimizer": {"name": "nesterov", "learning_rate": 0.7}}
    experiment = parse_experiment(given, "test")
    found = explain(experiment, model_plan(experiment), RATE, 0.5)
    assert found.chosen.up == found.chosen.down == MODEL // fragments
    run = Run(run_simulated(experiment, out=tmp_path / "run", quiet=True).folder)
    # The first version travels whole, and rounds have two batches.
    batches = 2 * run.summary.versions
    assert found.chosen.seconds == pytest.approx(run.summary.wall_seconds / batches, rel=0.08)
    refused = {row.name for row in found.rows if row.refusal}
    assert refused == {"top-k/int8", "top-k/top-k", "top-k/bfloat16"}


@pytest.mark.parametrize(("steps", "overlap", "bound"), [(40, 10, "link"), (100, 80, "computation")])
def test_steps_that_need_no_version_hide_the_link(
    steps: int, overlap: int, bound: str, tmp_path: Path
) -> None:
    """The model takes 32 s a round, and a batch 0.5 s."""
    knobs = {"name": "diloco", "steps": steps, "overlap": overlap}
    given = {**document("diloco"), "policy": knobs, "optimizer": {"name": "nesterov", "learning_rate": 0.7}}
    experiment = parse_experiment(given, "test")
    found = explain(experiment, model_plan(experiment), RATE, 0.5)
    assert found.chosen.seconds == pytest.approx((steps / 2 + max(0, 32.768 - overlap / 2)) / steps, rel=0.07)
    run = Run(run_simulated(experiment, out=tmp_path / "run", quiet=True).folder)
    assert found.chosen.seconds == pytest.approx(run.summary.wall_seconds / (40 * steps), rel=0.08)
    assert found.chosen.bound == bound


def test_bytes_are_those_of_the_codecs() -> None:
    experiment = parse_experiment(document("sync", servers=2), "test")
    plan = model_plan(experiment)
    found = explain(experiment, plan, None, 0.0)
    assert found.whole == MODEL and found.chosen.name == "float32" and found.chosen.seconds is None
    for row in found.rows:
        wire = wire_named(row.name)
        assert row.up == sum(wire.up.size(shard) for shard in plan.shards)
        assert row.down == sum((wire.deltas or wire.down).size(shard) for shard in plan.shards)


def test_under_async_a_version_travels_whole_where_changes_would_be_longer() -> None:
    experiment = parse_experiment(document("async"), "test")
    rows = {row.name: row for row in explain(experiment, model_plan(experiment), None, 0.0).rows}
    assert rows["int8/int8"].down == MODEL > rows["top-k/top-k"].down


def test_local_steps_share_a_contribution() -> None:
    plain = document("diloco")
    plain["policy"]["steps"] = 50
    experiment = parse_experiment(plain, "test")
    found = explain(experiment, model_plan(experiment), RATE, 0.5)
    assert found.batches == 50
    assert found.chosen.seconds == pytest.approx(0.5 + 4 * 2 * MODEL / RATE / 50)


def test_rates() -> None:
    assert bytes_per_second("1Gbit/s") == pytest.approx(1e9 / 8 * PAYLOAD)
    assert bytes_per_second("100 Mbit") == bytes_per_second("0.1Gbit/s")
    for text in ("1Gbps", "0Mbit", "-1Mbit", "fast"):
        with pytest.raises(ValueError, match="Gbit/s"):
            bytes_per_second(text)


def test_the_command(tmp_path: Path, sentences: Recorder) -> None:
    path = tmp_path / "median.toml"
    path.write_text(
        'run.name = "median"\ncluster.workers = 3\npolicy.name = "median"\nsimulation.problem = "mlp"\n'
    )
    said = ps_lab("explain", str(path), "--link", "1Mbit/s")
    assert said.code == 0
    sentences.check(said.out)
    found = json.loads(ps_lab("explain", str(path), "--json").out)
    assert {"wire_dtype": "float32", "seconds": None}.items() <= found["codecs"][0].items()
    assert [each["wire_dtype"] for each in found["codecs"] if "refusal" in each] == [
        "top-k/bfloat16",
        "top-k/int8",
        "top-k/top-k",
    ]
    path.write_text('run.name = "nothing"\nrun.versions = 3\n')
    refused = ps_lab("explain", str(path))
    assert refused.code == 2
    sentences.check(refused.err)
