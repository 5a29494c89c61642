"""What is found of a run with replicas that has lost something, or counts it again."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pslab.runs.folder import Run
from tests.chaos.one_history import problems, voided
from tests.lab.logs import Record, find, inserted, sync_log, text, write_run


def found(
    folder: Path, breaks: Callable[[list[Record]], None] = lambda records: None, **summary: object
) -> list[str]:
    """The problems of a run beside one that was left alone."""
    records = sync_log()
    alone = write_run(folder / "alone", records)
    broken = json.loads(json.dumps(records))
    breaks(broken)
    return list(problems(Run(write_run(folder / "run", broken, **summary)), Run(alone)))


def test_a_run_like_the_one_left_alone_has_kept_everything(tmp_path: Path) -> None:
    assert found(tmp_path) == []


def test_other_weights_are_found(tmp_path: Path) -> None:
    (said,) = found(tmp_path, weights_sha256="0" * 64)
    assert said.startswith(f"the weights' digest is {'0' * 64}, expected ") and "undisturbed run" in said


def test_weights_may_differ_where_a_worker_left_before_its_end(tmp_path: Path) -> None:
    leaves = inserted("commit", 3, kind="leave", worker="w2", reason="lost")
    assert found(tmp_path, leaves, weights_sha256="0" * 64) == []


def test_an_undisturbed_run_that_lost_a_worker_is_no_measure(tmp_path: Path) -> None:
    records = sync_log()
    run = Run(write_run(tmp_path / "run", records, weights_sha256="0" * 64))
    inserted("commit", 3, kind="leave", worker="w2", reason="lost")(records)
    assert list(problems(run, Run(write_run(tmp_path / "alone", records)))) == []


def test_lost_contributions_are_found(tmp_path: Path) -> None:
    def loses(records: list[Record]) -> None:
        records.remove(find(records, "commit", -1))

    assert found(tmp_path, loses) == ["w2 has 2 contributions, expected 3, as in the undisturbed run"]


def test_a_return_to_a_checkpoint_is_found(tmp_path: Path) -> None:
    restore = inserted("stop", kind="restore", job="j.1", version=1, servers=1, rolled_back=0)
    assert "the job went back to a checkpoint" in found(tmp_path, restore)


@pytest.mark.parametrize("last", ["", '{"i": 99, "kind": "com'])
def test_the_log_of_a_replaced_server_is_the_beginning_of_the_runs(tmp_path: Path, last: str) -> None:
    """The last line may not be whole: the server was killed while it wrote that."""
    records = sync_log()
    run = Run(write_run(tmp_path, records))
    (tmp_path / "decisions.before-epoch-4.jsonl").write_text(text(records[:9]) + last)
    assert not voided(tmp_path) and not list(problems(run, None))


def test_what_only_a_replaced_server_has_written_is_void(tmp_path: Path) -> None:
    records = sync_log()
    run = Run(write_run(tmp_path, records))
    other = [*records[:-3], {**find(records, "apply"), "version": 9}, {**records[-1], "worker": "w9"}]
    (tmp_path / "decisions.before-epoch-4.jsonl").write_text(text(other) + "what\n")
    assert voided(tmp_path) == {"apply": 1, "leave": 1, "unreadable": 1}
    (said,) = problems(run, None)
    assert said == "a replaced server wrote what the log does not have: 1 apply, 1 leave, 1 unreadable"
