"""A run's records as pandas frames, held against the log that they come from."""

from pathlib import Path

import pytest

pd = pytest.importorskip("pandas", reason="no pandas here (scripts/install frames)")

import pslab.runs  # noqa: E402
from pslab.runs.folder import Run, RunError  # noqa: E402
from pslab.runs.frames import runs_in  # noqa: E402
from psserver.decisions import entries as e  # noqa: E402
from pswire.exits import ExitCode  # noqa: E402
from tests.lab.logs import FakeLog, async_log, bounded_log, sync_log, write_run  # noqa: E402
from tests.replay.command import ps_lab  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, log in (("a", async_log()), ("b", bounded_log()), ("s", sync_log())):
        write_run(tmp_path / "runs" / name, log)
    return tmp_path / "runs"


def test_every_granted_ticket_is_a_row_with_its_fate(folder):
    frames = pslab.runs.load(folder)
    assert list(frames.runs.run) == ["a", "b", "s"]
    for run in runs_in(folder):
        facts = [line.fact for line in run.decisions()]
        mine = frames.contributions[frames.contributions.run == run.name].set_index("ticket")
        assert set(mine.index) == {fact.ticket for fact in facts if isinstance(fact, e.Grant)}
        for fact in facts:
            if isinstance(fact, e.Apply):
                for part in fact.parts:
                    row = mine.loc[part.ticket]
                    assert (row.fate, row.version, row.staleness) == ("applied", fact.version, part.staleness)
            if isinstance(fact, e.Drop):
                assert (mine.loc[fact.ticket].fate, mine.loc[fact.ticket].reason) == ("dropped", fact.reason)


def test_a_contribution_has_the_loss_and_the_norm_of_its_commit(folder):
    frames = pslab.runs.load(folder / "a")
    mine = frames.contributions.set_index("ticket")
    for line in Run(folder / "a").decisions():
        if isinstance(line.fact, e.Commit) and line.fact.ticket in mine.index:
            assert (mine.loc[line.fact.ticket].loss, mine.loc[line.fact.ticket].norm) == (0.5, 1.0)


def test_a_ticket_of_a_worker_that_left_is_lost_unless_it_was_committed(tmp_path):
    log = FakeLog("async")
    open_one, sent = log.grant("w1"), log.grant("w2")
    log.commit(sent)
    for worker in ("w1", "w2"):
        log.say("leave", worker=worker, reason="lost")
    log.apply(sent)
    rows = pslab.runs.load(write_run(tmp_path / "run", log.end())).contributions.set_index("ticket")
    assert (rows.loc[open_one].fate, rows.loc[sent].fate) == ("lost", "applied")


def test_versions_and_counts_are_those_of_the_summary(folder):
    frames = pslab.runs.load(folder)
    for run in runs_in(folder):
        summary = run.summary
        versions = frames.versions[frames.versions.run == run.name]
        assert list(versions.version) == list(range(1, summary.versions + 1))
        applied = sum(counts.applied for counts in summary.contributions.values())
        assert versions.contributions.sum() == applied
        assert versions.mean_staleness.mul(versions.contributions).sum() == pytest.approx(
            sum(tau * count for tau, count in summary.histogram.items())
        )


def test_settings_are_columns_by_dotted_key(folder):
    runs = pslab.runs.load(folder).runs.set_index("run")
    assert runs.loc["a"]["policy.name"] == "async"
    assert runs.loc["s"]["policy.name"] == "sync"


def test_waits_fill_each_ticket_from_its_worker_s_last_one_without_gaps(folder):
    waits = pslab.runs.load(folder / "a").waits
    assert (waits.seconds > 0).all()
    for _, mine in waits.groupby("worker"):
        ordered = mine.sort_values("begin")
        assert (ordered.begin.iloc[1:].to_numpy() >= ordered.end.iloc[:-1].to_numpy() - 1e-9).all()


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunError):
        pslab.runs.load(tmp_path)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_are_read_back_as_they_were(folder, tmp_path, form):
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="no pyarrow here (scripts/install frames)")
    frames, out = pslab.runs.load(folder), tmp_path / "tables"
    frames.write(out, form)
    read = pd.read_csv if form == "csv" else pd.read_parquet
    for name in ("contributions", "versions", "waits", "evaluations"):
        again = read(out / f"{name}.{form}")
        assert list(again.columns) == list(getattr(frames, name).columns)
        assert len(again) == len(getattr(frames, name))
    with pytest.raises(RunError):
        frames.write(out, form)


def test_the_command_writes_them(folder, tmp_path):
    done = ps_lab("export", str(folder), "--tables", str(tmp_path / "t"), "--format", "csv")
    assert done.code == ExitCode.OK, done.err
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == [
        "contributions.csv",
        "evaluations.csv",
        "runs.csv",
        "versions.csv",
        "waits.csv",
    ]


def test_tables_and_a_model_are_two_commands(folder, tmp_path):
    for extra in (("--tables", "t", "--to", "w.npz"), ()):
        assert ps_lab("export", str(folder / "a"), *extra).code == ExitCode.USAGE


def test_a_format_without_tables_is_refused(folder, tmp_path):
    said = ps_lab("export", folder / "a", "--to", tmp_path / "w.npz", "--format", "parquet")
    assert said.code == ExitCode.USAGE and "--format: expected --tables" in said.err


@pytest.mark.parametrize("option", ["--tables", "--trace"])
def test_a_folder_that_cannot_be_made_is_named(folder, tmp_path, option):
    (tmp_path / "file").touch()
    said = ps_lab("export", folder / "a", option, tmp_path / "file" / "t")
    assert said.code == ExitCode.USAGE and f"{tmp_path / 'file' / 't'}" in said.err
    assert "cannot be written: Not a directory" in said.err


def test_a_run_is_found_by_itself(folder):
    assert [run.name for run in runs_in(folder / "a")] == [Run(folder / "a").name]
