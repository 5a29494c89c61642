"""A run executed again from its log: equal to the bit, or the first difference is named."""

from pathlib import Path
from typing import Any

import pytest

from pslab.replay.execution import Replay
from pslab.replay.run_folder import prove, replay_of
from pslab.replay.worker_replica import DataError
from pslab.runs.folder import Run, RunError
from tests.replay.simulated import Record, edit_log, simulate

CRASH = {"crashes": [{"worker": 1, "at": 6.0, "restart": 3.0}, {"worker": 2, "at": 8.0}]}

RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sync": ("sync", {}, {}),
    "sync with backup": ("sync", {"backup": 1}, {}),
    "async": ("async", {}, {}),
    "bounded drop": ("bounded", {"aggregate": 2, "max_staleness": 1}, {}),
    "bounded compensate": ("bounded", {"max_staleness": 1, "on_stale": "compensate"}, {}),
    "ssp": ("ssp", {"slack": 2}, {}),
    "k-sync": ("k-sync", {"aggregate": 2}, {}),
    "dc-asgd-a": ("dc-asgd-a", {}, {}),
    "gap-aware": ("gap-aware", {}, {}),
    "gap-aware without velocity": ("gap-aware", {}, {"optimizer": {"name": "sgd"}}),
    "median": ("median", {}, {}),
    "trimmed-mean at a loss": ("trimmed-mean", {"trim": 1}, {"faults": CRASH}),
    "krum": ("krum", {"select": 2}, {"cluster": {"servers": 1}}),
    "delayed-nesterov": ("async", {}, {"optimizer": {"name": "delayed-nesterov", "period": 4}}),
    "narrow wire": ("async", {}, {"cluster": {"wire_dtype": "bfloat16"}}),
    "crashes": ("async", {}, {"faults": CRASH}),
    "crashes at a barrier": ("sync", {}, {"faults": CRASH}),
    "lost messages": ("async", {}, {"faults": {"loss": 0.1, "duplicate": 0.1}, "links": {"latency": 0.1}}),
}


def replayed(run: Run) -> Replay:
    replay = replay_of(run)
    replay.run()
    return replay


@pytest.mark.parametrize("name", RUNS)
def test_weights_are_equal_to_the_bit(tmp_path: Path, name: str) -> None:
    policy, knobs, sections = RUNS[name]
    run = simulate(tmp_path / "run", policy, knobs, **sections)
    replay = replayed(run)
    result = replay.result
    assert prove(run, replay).holds
    assert result.finished and result.first is None
    assert result.version == run.summary.versions
    applied = sum(counts.applied for counts in run.summary.contributions.values())
    assert result.computed == result.agreed >= applied
    committed = sum(counts.committed for counts in run.summary.contributions.values())
    assert result.computed + result.skipped == committed


def test_a_changed_update_is_found_where_it_was(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")

    def change(records: list[Record]) -> None:
        apply = next(r for r in records if r["kind"] == "apply" and r["version"] == 12)
        apply["lr_scale"] = 0.5

    edit_log(run, change)
    replay = replayed(run)
    first = replay.result.first
    assert first is not None and first.what in ("loss", "gradient's norm")
    assert first.base >= 12 > replay.result.proven
    assert "from version" in str(first) and first.worker in str(first)
    proof = prove(run, replay)
    assert not proof.holds and proof.differing and max(proof.differing.values()) > 0


def test_a_changed_last_update_is_told_to_come_after_every_contribution(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")

    def change(records: list[Record]) -> None:
        [r for r in records if r["kind"] == "apply"][-1]["lr_scale"] = 0.5

    edit_log(run, change)
    replay = replayed(run)
    assert replay.result.first is None
    assert not prove(run, replay).holds


def test_a_changed_loss_is_found_although_the_weights_are_equal(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")

    def change(records: list[Record]) -> None:
        [r for r in records if r["kind"] == "commit"][20]["loss"] += 1e-12

    edit_log(run, change)
    replay = replayed(run)
    assert replay.result.first is not None and replay.result.first.what == "loss"
    assert replay.result.agreed == replay.result.computed - 1
    assert prove(run, replay).holds


def test_contributions_that_nothing_depends_on_are_left_out(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "bounded", {"max_staleness": 0})
    replay = replayed(run)
    dropped = sum(counts.dropped for counts in run.summary.contributions.values())
    assert replay.result.skipped == dropped > 0
    assert not replay.draws


# Bad input


def refused(run: Run) -> str:
    with pytest.raises(RunError) as caught:
        replay_of(run)
    return str(caught.value)


def test_a_log_that_was_cut_off(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    edit_log(run, lambda records: records.__delitem__(slice(30, None)))
    assert "no stop entry" in refused(run)


def test_a_log_that_settles_no_model(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")

    def cut(records: list[Record]) -> None:
        settled = next(each["i"] for each in records if each["kind"] == "model")
        stop = next(each for each in records if each["kind"] == "stop")
        records[settled:] = [stop | {"i": settled}]

    edit_log(run, cut)
    assert "the job ended before its initial values came" in refused(run)


def test_a_log_with_a_missing_line(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    edit_log(run, lambda records: records.__delitem__(30))
    assert "decisions.jsonl:31: expected entry 30, got 31" in refused(run)


def test_a_line_that_is_no_json(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    path = run.path / "decisions.jsonl"
    path.write_text(path.read_text().replace('"kind":"stop"', '"kind":stop'))
    assert "is not a JSON object" in refused(run)


def test_an_empty_log(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    edit_log(run, lambda records: records.clear())
    assert "expected a job entry first" in refused(run)


def test_an_experiment_that_was_edited(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    path = run.path / "experiment.toml"
    path.write_text(path.read_text().replace("seed = 3", "seed = 4"))
    assert "run.seed is 4, but the decision log was made with 3" in refused(Run(run.path))


def test_a_run_that_looked_at_time_only(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation={"problem": "none", "batches": 5})
    assert "there are no weights to replay" in refused(run)


def test_a_worker_that_never_joined(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")

    def change(records: list[Record]) -> None:
        next(r for r in records if r["kind"] == "grant")["worker"] = "w9"

    edit_log(run, change)
    assert "grant of w9, who has not joined" in refused(run)


@pytest.mark.parametrize("kind", ["grant", "apply"])
def test_an_entry_that_cannot_be_executed_is_named(tmp_path: Path, kind: str) -> None:
    run = simulate(tmp_path / "run", "async")
    changed: list[int] = []

    def change(records: list[Record]) -> None:
        record = [r for r in records if r["kind"] == kind][8]
        record["version"] += 1
        changed.append(record["i"])

    edit_log(run, change)
    with pytest.raises(DataError, match=f"entry {changed[0]}, {kind}, cannot be executed"):
        replayed(run)


def test_a_commit_of_a_ticket_that_nobody_holds(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")

    def change(records: list[Record]) -> None:
        [r for r in records if r["kind"] == "commit"][8]["ticket"] = 4000

    edit_log(run, change)
    with pytest.raises(DataError, match="ticket 4000 is not open"):
        replayed(run)
