"""Numbers and texts from files and other processes: in range, or refused in a sentence; never a traceback."""

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pslab.runs.log import Line, Malformed, read_log
from pslab.runs.summary import Summary
from pslab.verify.harness import CoordinatorHarness
from psserver.checkpoint import manifest
from psserver.checkpoint.disk import CheckpointError
from psserver.checkpoint.manifest import Manifest, digest_of, parse
from psserver.coordinator import JobState
from psserver.decisions.records import MOST_SECONDS, FieldError, number, seconds, whole
from psserver.policies import PolicyError
from psserver.records import StateError, from_plain
from psserver.service.job.job import ServedJob
from psserver.weights_file import WeightsFileError, load
from pswire.domains import in_range
from pswire.model.tables import TableSpec
from pswire.model.variables import PlanError
from pswire.security.settings import SecurityError, job_secret

HUGE = 10**400
# What JSON, TOML and Python can say in the place of a number.
WRONG: list[Any] = [HUGE, -HUGE, math.nan, math.inf, -math.inf, True, "1", None, [], {}]
ids = [str(value)[:12] for value in WRONG]
wrong = pytest.mark.parametrize("value", WRONG, ids=ids)


@wrong
def test_what_is_no_number_is_in_no_range(value: Any) -> None:
    assert not in_range(value)
    for read in (number, whole, seconds):
        with pytest.raises(FieldError):
            read(value)


@pytest.mark.parametrize("value", [0, 1, 2**62, 1.5, 1e300, -1e300])
def test_numbers_are_in_range(value: float) -> None:
    assert in_range(value) and number(value) == value


@wrong
@pytest.mark.parametrize("field", ["dim", "seed", "admit", "evict_age", "evict_every"])
def test_numbers_of_a_table(field: str, value: Any) -> None:
    if value is None and field.startswith("evict") and field != "evict_every":
        return
    with pytest.raises(PlanError):
        TableSpec.from_json({"name": "t", "dim": 2, field: value})


@wrong
@pytest.mark.parametrize("initializer", ["uniform", "normal"])
def test_numbers_of_an_initializer(initializer: str, value: Any) -> None:
    name = "high" if initializer == "uniform" else "stddev"
    with pytest.raises(PlanError):
        TableSpec.from_json({"name": "t", "dim": 2, "initializer": {"name": initializer, name: value}})


def test_times_of_a_log_are_those_of_a_job() -> None:
    entry = {"i": 0, "t": 0.5, "kind": "note", "text": "x", "by": "x"}
    for t in (1e300, -1.0, HUGE, 2 * MOST_SECONDS):
        [found] = read_log([json.dumps({**entry, "t": t})])
        assert isinstance(found, Malformed) and "seconds" in found.problem
    [found] = read_log([json.dumps(entry)])
    assert isinstance(found, Line | Malformed)


@pytest.mark.parametrize("t", [1e308, -1.0, 2 * MOST_SECONDS])
def test_the_time_of_a_checkpoint(t: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "from_plain", lambda *_: SimpleNamespace(t=t))
    plain = {"format": manifest.FORMAT}
    text = json.dumps({"manifest": plain, "sha256": digest_of(plain)}).encode()
    with pytest.raises(CheckpointError, match="seconds"):
        parse(tmp_path / "manifest.json", text)
    saved = CoordinatorHarness().starts().coordinator.saved()
    with pytest.raises(StateError, match="seconds"):
        JobState.read({**saved, "now": t})


def test_a_float_of_saved_state_is_one() -> None:
    with pytest.raises(StateError):
        from_plain(Manifest, {"t": HUGE}, "state")


@pytest.mark.parametrize("value", ["text", HUGE, True, [], {}], ids=str)
def test_metrics_of_a_summary_are_numbers(value: Any) -> None:
    record = {
        "job": "j",
        "policy": {"name": "sync"},
        "optimizer": {"name": "sgd"},
        **dict.fromkeys(("servers", "workers", "versions", "samples", "wall_seconds"), 1),
        "metrics": {"loss": value},
        "contributions": {},
        "staleness": {},
        "success": True,
        "reason": "over",
    }
    with pytest.raises(ValueError, match="summary"):
        Summary.read(record)
    assert Summary.read({**record, "metrics": {"loss": None}}).metrics == {"loss": None}


@pytest.mark.parametrize("shape", [[0, 2**62], [2**62, 0], [0] * 80], ids=str)
def test_weights_of_impossible_shapes(shape: list[int], tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    file = tmp_path / "weights.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(WeightsFileError):
        load(file)


@pytest.mark.parametrize("knobs", ["[" * 100_000, '{"a":' * 100_000, "1" * 5000, "[1]", "nonsense"])
def test_knobs_of_a_change_that_are_no_object(knobs: str) -> None:
    with pytest.raises(PolicyError, match="JSON object"):
        ServedJob.change_policy(None, "async", knobs, "you", "", None)  # type: ignore[arg-type]


def test_a_secret_is_text() -> None:
    assert job_secret({}) == "" and job_secret({"PS_JOB_SECRET": "x"}) == "x"
    for secret in ("", os.fsdecode(b"\xff\xfe")):
        with pytest.raises(SecurityError, match="PS_JOB_SECRET"):
            job_secret({"PS_JOB_SECRET": secret})
