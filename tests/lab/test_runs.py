"""Run folders: read back, refused with file and line, made without harm to anything else."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pslab.check.checker import check_run
from pslab.commands.failure import Failure
from pslab.commands.live import status
from pslab.runs.folder import Run, RunError, address_of
from pslab.runs.making import free_folder, make_folder, open_folder
from psserver.checkpoint import FolderLock, Store
from tests.checkpoint.written import write
from tests.lab.logs import async_log, bounded_log, sync_log, write_run
from tests.links import connect_link
from tests.sentences import Recorder
from tests.service.serving import granted, serving


def test_a_run_is_read_back(tmp_path: Path) -> None:
    run = Run(write_run(tmp_path / "a", async_log()))
    assert run.summary.versions == 12
    assert run.summary.samples_per_second == 8 * 12 / 2.0
    assert run.summary.histogram.total() == 12
    assert [metric.version for metric in run.metrics()] == list(range(1, 13))
    assert next(run.decisions()).kind == "job"


def test_data_that_was_not_trained_on_is_counted_where_its_length_is_known(tmp_path: Path) -> None:
    summary = Run(write_run(tmp_path / "a", async_log())).summary
    missing = {"batches": {"w0": 3, "w1": None}, "units": 2}
    assert summary.missing_text == ""
    assert replace(summary, missing=missing).missing_text == (
        "3 batches of w0, some batches of w1, 2 units of the work"
    )


def test_a_sound_run_passes_the_check(tmp_path: Path) -> None:
    for name, records in (("s", sync_log()), ("a", async_log()), ("b", bounded_log())):
        verdict = check_run(Run(write_run(tmp_path / name, records)))
        assert verdict.violations == ()


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        ({"versions": 5}, "summary", "summary.json says 5 versions, the log 12"),
        ({"samples": 1}, "summary", "says 1 samples, the log 96"),
        ({"workers": 9}, "summary", "says 9 workers, the log 3"),
        ({"success": False}, "summary", "says success False"),
        ({"job": "other"}, "summary", "is of job other"),
        ({"policy": {"name": "sync"}}, "summary", "names policy sync, not async"),
        (
            {"contributions": {}},
            "summary",
            "w0: summary.json says committed, applied, dropped, pending = 0, 0, 0, 0",
        ),
        ({"staleness": {"w0": {"0": 6}}}, "summary", "w0: summary.json has the staleness histogram {0: 6}"),
    ],
)
def test_a_summary_that_disagrees_is_found(
    tmp_path: Path, change: dict[str, object], check: str, words: str
) -> None:
    verdict = check_run(Run(write_run(tmp_path / "a", async_log(), **change)))
    assert verdict.counts[check] > 0
    assert any(words in violation.message for violation in verdict.violations)
    assert {violation.check for violation in verdict.violations} == {check}


def test_metrics_that_miss_a_version_are_found(tmp_path: Path, sentences: Recorder) -> None:
    folder = write_run(tmp_path / "a", async_log())
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:4] + lines[5:]))
    verdict = check_run(Run(folder))
    sentences.check(*[v.message for v in verdict.violations])


def test_a_missing_summary_is_remarked_and_its_numbers_come_from_the_log(tmp_path: Path) -> None:
    records = async_log()
    whole, cut = write_run(tmp_path / "whole", records), write_run(tmp_path / "cut", records[:20])
    for folder in (whole, cut):
        (folder / "summary.json").unlink()
    assert check_run(Run(whole)).ok and check_run(Run(cut)).ok
    remarked = [any("stops in good order" in n for n in check_run(Run(f)).notes) for f in (whole, cut)]
    assert remarked == [True, False]
    assert Run(cut).summary.versions == sum(record["kind"] == "apply" for record in records[:20])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "summary.json: is not JSON"),
        ("[]", "summary.json: is no summary"),
        ("{}", "summary.json: is no summary: no 'job'"),
    ],
)
def test_an_edited_summary_is_reported_with_its_file(tmp_path: Path, text: str, words: str) -> None:
    folder = write_run(tmp_path / "a", async_log())
    (folder / "summary.json").write_text(text)
    with pytest.raises(RunError, match=words.replace(".", r"\.")):
        _ = Run(folder).summary
    assert any(words in violation.message for violation in check_run(Run(folder)).violations)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("samples", 10**400, "expected a whole number from 0 to"),
        ("workers", -1, "expected a whole number from 0 to"),
        ("policy", {}, "expected an object with a name"),
        ("optimizer", [], "expected an object with a name"),
        ("contributions", {"w0": {"dropped": "many"}}, "expected a whole number from 0 to"),
    ],
)
def test_a_summary_with_a_value_out_of_range_is_refused(
    tmp_path: Path, key: str, value: object, words: str
) -> None:
    folder = write_run(tmp_path / "a", async_log(), **{key: value})
    with pytest.raises(RunError, match=f"is no summary: .*{words}"):
        _ = Run(folder).summary


def test_a_bad_line_is_reported_with_file_and_line(tmp_path: Path, sentences: Recorder) -> None:
    folder = write_run(tmp_path / "a", async_log())
    for name in ("decisions.jsonl", "metrics.jsonl"):
        lines = (folder / name).read_text().splitlines(keepends=True)
        lines[2] = "oops\n"
        (folder / name).write_text("".join(lines))
    with pytest.raises(RunError) as refused:
        list(Run(folder).decisions())
    sentences.check(refused)
    with pytest.raises(RunError) as refused:
        list(Run(folder).metrics())
    sentences.check(refused)


def test_bytes_that_are_no_text_are_a_bad_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", async_log())
    raw = (folder / "decisions.jsonl").read_bytes().splitlines(keepends=True)
    raw[4] = b"\xff\xfe\x00\n"
    (folder / "decisions.jsonl").write_bytes(b"".join(raw))
    verdict = check_run(Run(folder))
    assert verdict.counts["entries"] == 1


def test_what_is_no_run_folder_is_refused(tmp_path: Path, sentences: Recorder) -> None:
    with pytest.raises(RunError) as refused:
        Run(tmp_path / "nowhere")
    sentences.check(refused)
    with pytest.raises(RunError) as refused:
        Run(tmp_path)
    sentences.check(refused)


def test_a_new_folder_never_meets_an_old_one(tmp_path: Path) -> None:
    assert free_folder("a", tmp_path) == tmp_path / "a"
    (tmp_path / "a").mkdir()
    (tmp_path / "a-2").mkdir()
    assert free_folder("a", tmp_path) == tmp_path / "a-3"


def test_force_replaces_a_run_and_nothing_else(tmp_path: Path, sentences: Recorder) -> None:
    folder = write_run(tmp_path / "a", async_log())
    with pytest.raises(RunError) as refused:
        make_folder(folder)
    sentences.check(refused)
    with pytest.raises(RunError) as refused:
        make_folder(folder, force=True)
    sentences.check(refused)
    (folder / "experiment.toml").write_text("")
    (folder / "notes.txt").write_text("mine")
    made = make_folder(folder, force=True)
    assert sorted(path.name for path in made.iterdir()) == ["logs", "notes.txt"]


def test_a_folder_in_which_no_run_has_begun_is_in_nobodys_way(tmp_path: Path, sentences: Recorder) -> None:
    """As a run leaves it that found no place for its processes."""
    folder = make_folder(tmp_path / "a")
    (folder / "experiment.toml").write_text("")
    (folder / "logs" / "worker-0.log").write_text("found no place")
    assert make_folder(folder) == folder
    assert sorted(path.name for path in folder.rglob("*")) == ["logs"]
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(RunError) as refused:
        make_folder(folder)
    sentences.check(refused)
    (tmp_path / "experiment.toml").write_text("")
    with pytest.raises(RunError) as refused:
        make_folder(tmp_path)
    sentences.check(refused)


def test_auto_begins_or_goes_on(tmp_path: Path, sentences: Recorder) -> None:
    """It never replaces anything."""
    new = open_folder(tmp_path / "new", "a", False, "auto")
    assert new == (tmp_path / "new", None) and (tmp_path / "new" / "logs").is_dir()
    old = write_run(tmp_path / "old", async_log())
    assert open_folder(old, "a", False, "auto") == (old, "auto")
    (old / "decisions.jsonl").unlink()
    with pytest.raises(RunError) as refused:
        open_folder(old, "a", False, "auto")
    sentences.check(refused)


def test_force_leaves_no_checkpoint_of_the_former_run(tmp_path: Path) -> None:
    """A server of the new one that is restarted would look for the log that they belong to."""
    folder = write_run(tmp_path / "a", async_log())
    store = Store(folder / "checkpoints")
    write(store, 10)
    kept = write(store, 20)
    (store.root / kept).rename(tmp_path / "kept")
    (store.root / kept).symlink_to(tmp_path / "kept")
    for name in ("experiment.toml", "decisions.void-3.jsonl", "summary-7.json", "weights-7.safetensors"):
        (folder / name).write_text("")
    with FolderLock(store.root), pytest.raises(RunError, match="another coordinator"):
        make_folder(folder, force=True)
    assert len(store.names()) == 2
    made = make_folder(folder, force=True)
    assert sorted(path.name for path in made.iterdir()) == ["checkpoints", "logs"]
    assert store.names() == [] and (tmp_path / "kept" / "manifest.json").is_file()


def test_a_file_in_the_way_is_named(tmp_path: Path, sentences: Recorder) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(RunError) as refused:
        make_folder(tmp_path / "a")
    sentences.check(refused)
    with pytest.raises(RunError) as refused:
        make_folder(tmp_path / "a" / "b")
    sentences.check(refused)


def test_null_metrics_are_no_error(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", async_log(), metrics={"loss": None})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"t": 3.0, "version": 12, "kind": "eval", "metrics": {"loss": None}}) + "\n")
    assert Run(folder).summary.metrics == {"loss": None}
    assert list(Run(folder).metrics())[-1].kind == "eval"


def test_a_run_that_goes_on_is_asked_by_its_folder(tmp_path: Path) -> None:
    """While it goes on; afterwards, and where there is none, a sentence says so."""
    folder = tmp_path / "run"
    with serving(out=folder) as cluster:
        asked = CliRunner().invoke(status, [str(folder), "--json"])
        assert asked.exit_code == 0, asked.output
        assert json.loads(asked.output)["servers"][0]["address"] == cluster.hosts
        with connect_link(cluster.hosts, {"w": np.zeros(2, np.float32)}) as session:
            grant = granted(session)
            session.push(grant, {"w": np.ones(2)})
            session.commit(grant, samples=1)
            session.done()
    for place, words in ((folder, "this run is over; ps-lab compare"), (tmp_path, "file 'address'")):
        asked = CliRunner().invoke(status, [str(place)], standalone_mode=False)
        assert isinstance(asked.exception, Failure) and words in str(asked.exception)


@pytest.mark.parametrize("file", ["decisions.jsonl", "metrics.jsonl", "summary.json"])
def test_half_a_character_in_a_foreign_run_is_a_line_that_cannot_be_read(tmp_path: Path, file: str) -> None:
    """No table, event file or terminal takes it."""
    run = Run(write_run(tmp_path / "a", async_log()))
    text = (run.path / file).read_text().replace('"w0"', '"\\ud800"').replace('"train"', '"\\ud800"')
    assert "ud800" in text
    (run.path / file).write_text(text)
    with pytest.raises(RunError, match=file):
        _ = Run(run.path).summary, list(Run(run.path).decisions()), list(Run(run.path).metrics())


def test_a_number_of_thousands_of_digits_is_a_line_that_cannot_be_read(tmp_path: Path) -> None:
    run = Run(write_run(tmp_path / "a", async_log()))
    with run.log.open("a") as log:
        log.write('{"i":' + "9" * 5000 + "}\n")
    assert any(violation.check == "entries" for violation in check_run(run).violations)


def test_a_run_of_several_jobs_does_not_go_on(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", async_log())
    assert open_folder(run, "a", False, "latest") == (run.resolve(), "latest")
    write_run(run / "job-2", async_log())
    with pytest.raises(RunError, match="job-2"):
        open_folder(run, "a", False, "latest")


def test_a_run_whose_later_job_goes_on_is_asked_by_its_folder(tmp_path: Path, sentences: Recorder) -> None:
    for job, port in ((tmp_path, 1), (tmp_path / "job-2", 2)):
        job.mkdir(exist_ok=True)
        (job / "address").write_text(f"127.0.0.1:{port}\n")
    (tmp_path / "summary.json").write_text("{}")
    assert address_of(tmp_path) == "127.0.0.1:2"
    (tmp_path / "job-2" / "summary.json").write_text("{}")
    with pytest.raises(RunError) as refused:
        address_of(tmp_path)
    sentences.check(refused)
