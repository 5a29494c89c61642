"""Overlap: workers of `diloco` go on while a payload travels, then mix: the bits of a dumb twin, and the time."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from pslab.check.checker import check_run
from pslab.compare.groups import grouped
from pslab.experiment import Experiment
from pslab.launch.simulated import run_simulated
from pslab.predict.prediction import predict
from pslab.predict.steps import step_times_of
from pslab.replay.execution import Replay
from pslab.replay.records import read_records
from pslab.replay.run_folder import prove, replay_of
from pslab.runs.folder import Run
from pslab.simulator.problems import NumpyTrainer
from pslab.simulator.problems.digits import Mlp
from tests.exchange.streaming_twin import WORKERS, simulated, trained, twin
from tests.exchange.test_fragments import ROUGH
from tests.promises import promise
from tests.repetitions import usually
from tests.replay.simulated import document, edit_log, simulate
from tests.sentences import Recorder

ALPHA = 0.5
# Steps that a worker goes on, of three; with what it keeps of its own weights.
OVERLAPS = [(0, ALPHA), (1, ALPHA), (2, 0.0), (2, ALPHA)]
ALL = list(product(("float32", "int4", "int4/int4"), (1, 2), OVERLAPS, (1, 2, 3)))
# Each pair of values of two of these at least once.
FEW = [
    (wire, 1 + (row + column) % 2, overlap, 1 + (2 * row + column) % 3)
    for row, wire in enumerate(("float32", "int4", "int4/int4"))
    for column, overlap in enumerate(OVERLAPS)
]


@promise(
    "A worker goes on for a fixed number of steps while its payload travels, then mixes: the bits of a twin in"
    " one process, live and replayed."
)
@pytest.mark.parametrize(("wire", "fragments", "overlap", "servers"), usually(FEW, soak=ALL))
def test_runs_that_overlap_have_the_bits_of_a_twin_in_one_process(
    tmp_path: Path, wire: str, fragments: int, overlap: tuple[int, float], servers: int
) -> None:
    run = simulated(tmp_path, wire, fragments, servers, *overlap)
    found = load_file(run.path / "weights.safetensors")
    for name, values in twin(wire, fragments, *overlap).items():
        np.testing.assert_array_equal(found[name], values)
    replay = replay_of(run)
    assert replay.run().first is None and prove(run, replay).holds and check_run(run).ok


LIVE = [
    ("float32", 1, 3, "shared-memory", 1),
    ("int4", 2, 1, "socket", 2),
    ("float32", 2, 2, "grpc", 1),
    ("int4/int4", 1, 1, "grpc", 1),
    ("int4/int4", 2, 2, "grpc", 2),
]


@pytest.mark.parametrize(("wire", "fragments", "servers", "transport", "overlap"), LIVE)
def test_live_runs_that_overlap_have_them_too(
    tmp_path: Path, wire: str, fragments: int, servers: int, transport: str, overlap: int
) -> None:
    run = trained(tmp_path, wire, fragments, servers, transport, overlap, ALPHA)
    found = load_file(run.path / "weights.safetensors")
    for name, values in twin(wire, fragments, overlap, ALPHA).items():
        np.testing.assert_array_equal(found[name], values)
    replayed(run, wire)


def replayed(run: Run, wire: str) -> None:
    replay = Replay(list(read_records(run)), NumpyTrainer(Mlp()), 1, wire)
    assert replay.run().first is None and replay.result.finished
    assert replay.store.sha256() == run.summary.weights_sha256 and check_run(run).ok


@pytest.mark.parametrize(("fragments", "wire"), [(1, "int4/int4"), (1, "top-k"), (3, "int4")])
def test_a_rough_run_is_replayed_to_the_bit(tmp_path: Path, fragments: int, wire: str) -> None:
    """Workers are lost while they go on, come back without memory, and end in the middle of a ticket."""
    run = simulate(
        tmp_path,
        "diloco",
        {"steps": 4, "fragments": fragments, "overlap": 3, "mixing": ALPHA, "learning_rate": 0.01},
        cluster={"wire_dtype": wire},
        optimizer={"name": "sgd", "learning_rate": 1.0},
        job={"module": "none:none", "epochs": 3},
        **ROUGH,
        simulation={"problem": "mlp"},
    )
    replay = replay_of(run)
    result = replay.run()
    assert result.first is None, str(result.first)
    assert prove(run, replay).holds and result.skipped == 0 and check_run(run).ok
    assert run.summary.versions > 10


# Time


def timed(out: Path, overlap: int, bandwidth: float) -> Run:
    """Four batches of a second a round; the payload of four workers takes 4 s up and down at a bandwidth of 1."""
    given = document(
        "diloco",
        {"steps": 4, "overlap": overlap, "mixing": ALPHA},
        run={"versions": 20},
        cluster={"servers": 1, "worker_timeout": 60.0},
        optimizer={"name": "nesterov", "learning_rate": 0.7},
        simulation={"problem": "none", "compute": "constant(1)", "payload_bytes": 1_000_000},
        links={"bandwidth": 2_000_000 * bandwidth},
    )
    return Run(run_simulated(Experiment.parse(given, "test"), out=out, quiet=True).folder)


@pytest.mark.parametrize(
    ("overlap", "bandwidth", "seconds"),
    [(0, 1.0, 8.0), (1, 1.0, 7.0), (3, 1.0, 5.0), (3, 2.0, 4.0), (3, 8.0, 4.0)],
)
def test_the_link_works_beside_the_steps_that_need_no_version(
    tmp_path: Path, overlap: int, bandwidth: float, seconds: float
) -> None:
    run = timed(tmp_path, overlap, bandwidth)
    applied = [read.t for read in run.decisions() if read.fact.kind == "apply"]
    assert applied[-1] - applied[-2] == pytest.approx(seconds)


@pytest.mark.parametrize(("overlap", "bandwidth", "each"), [(1, 1.0, 1.75), (3, 1.0, 1.25), (3, 8.0, 1.0)])
def test_steps_are_measured_whether_the_version_comes_late_or_early(
    tmp_path: Path, overlap: int, bandwidth: float, each: float
) -> None:
    """What they do not hide of the link counts as theirs, as sending always does."""
    run = timed(tmp_path, overlap, bandwidth)
    pace = step_times_of(run)
    assert pace.by_worker[0][4:] == pytest.approx((each,) * 76)
    (group,) = grouped([run])
    found = {row.what: row for row in predict(group, pace, 2).rows}
    assert abs(found["seconds per version"].error) < 0.05


# The log


@pytest.mark.parametrize("knob", ["overlap", "mixing"])
def test_the_log_says_how_far_workers_go_on_and_what_they_keep(
    tmp_path: Path, knob: str, sentences: Recorder
) -> None:
    run = simulated(tmp_path, "float32", 1, 1, 1, ALPHA)
    job = next(iter(run.decisions())).fact
    assert job.policy[knob] == job.local[knob]

    def change(records: list[dict[str, Any]]) -> None:
        records[0]["local"][knob] = 0

    edit_log(run, change)
    found = check_run(run)
    assert not found.ok
    sentences.check("\n".join(map(str, found.violations)))


REFUSED: list[dict[str, Any]] = [
    {"knobs": {"steps": 3, "overlap": 3}},
    {"knobs": {"mixing": 1.0}},
    {"simulation": {"problem": "none", "units": 8, "batches": 4}},
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_cannot_be_right_is_refused_before_anything_is_trained(
    tmp_path: Path, number: int, sentences: Recorder
) -> None:
    with pytest.raises(ValueError) as refused:
        simulate(tmp_path, "diloco", **{"knobs": {"steps": 3, "overlap": 1}, **REFUSED[number]})
    sentences.check(refused)


def test_workers_are_told_apart_by_what_they_keep(tmp_path: Path) -> None:
    """What is mixed decides the bits, so none of these is another by accident."""
    made = {
        simulated(tmp_path / f"{overlap}-{mixing}", "float32", 1, 1, overlap, mixing).summary.weights_sha256
        for overlap, mixing in [(0, 0.0), (1, 0.0), (0, ALPHA), (1, ALPHA), (2, ALPHA)]
    }
    assert len(made) == 5 and WORKERS == 2
