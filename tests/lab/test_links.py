"""Links that somebody has planted in a run folder: nothing is written, emptied or removed where they lead."""

import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pslab.launch.engines.launcher import Output
from pslab.observe.trace import write_trace
from pslab.runs.folder import Run, RunError
from pslab.runs.making import make_folder, open_folder
from psserver.checkpoint.disk import RealDisk, UnwritableError
from psserver.checkpoint.rewind import BEGINNING, LogIndex
from psserver.service.job.log_file import LogError
from psserver.service.job.run_log import FolderError, RunLog
from psserver.service.job.run_log import make_folder as make_server_folder
from pswire.own_files import same_file, write_file
from tests.checkpoint.test_copying import ADAM, start, step
from tests.lab.drive import run_fakes
from tests.lab.logs import async_log, write_run
from tests.sentences import Recorder
from tests.service.serving import serving


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Puts a link to a file outside in a place; at the end each of these files is as it was."""
    outside = tmp_path / "outside"
    outside.mkdir()

    def planted(place: Path) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        file = outside / f"{len(list(outside.iterdir()))}"
        file.write_text("mine")
        place.unlink(missing_ok=True)
        place.symlink_to(file)

    yield planted
    files = list(outside.iterdir())
    assert files and [file.read_text() for file in files] == ["mine"] * len(files)


def test_a_server_writes_into_its_folder_only(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    out = tmp_path / "run"
    names = ("weights.safetensors", "summary.json", "saved")
    for name in (*names, *(f"{name}.part" for name in names)):
        plant(out / name)
    with serving(out=out, overrides=ADAM) as cluster, start(cluster) as session:
        step(session, cluster.servers[0].probe)
        session.done()
        session.close()
        cluster.servers[0].ended()
    written = [out / name for name in names if name != "saved"]
    assert all(file.is_file() and not file.is_symlink() for file in written)


def test_a_log_that_is_a_link_is_refused(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    plant(tmp_path / "metrics" / "metrics.jsonl")
    with pytest.raises(LogError):
        RunLog(tmp_path / "metrics")
    plant(tmp_path / "log" / "decisions.jsonl")
    with pytest.raises(FolderError):
        make_server_folder(tmp_path / "log", RealDisk())


def test_a_resume_cuts_no_file_outside(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    run = write_run(tmp_path / "run", async_log())
    plant(run / "decisions.void-0.jsonl")
    index = LogIndex(run)
    log = run / "decisions.jsonl"
    plant(log)
    with pytest.raises(UnwritableError):
        index.rewind(BEGINNING)


def test_a_run_replaces_links(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    out = tmp_path / "run"
    for name in ("experiment.toml", "logs/server-0.log", "logs/worker-0.log"):
        plant(out / name)
    assert run_fakes(out).result.ok
    assert (out / "experiment.toml").read_text().startswith("[") and not (
        out / "experiment.toml"
    ).is_symlink()


def test_what_goes_on_in_a_folder_replaces_links(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    plant(tmp_path / "logs" / "server-0.log")
    output = Output("server-0", tmp_path / "logs" / "server-0.log", queue.SimpleQueue())
    output.stdout(b"said\n")
    output.close()
    assert (tmp_path / "logs" / "server-0.log").read_bytes() == b"said\n"
    run = Run(write_run(tmp_path / "run", async_log()))
    for name in ("trace.json", "trace.json.part"):
        plant(run.path / name)
    write_trace(run.decisions(), run.path / "trace.json")
    plant(tmp_path / "experiment.toml")
    write_file(tmp_path / "experiment.toml", "text")
    plant(tmp_path / "mirrored")
    with same_file(tmp_path / "mirrored") as file:
        file.write(b"data")
    assert (tmp_path / "mirrored").read_bytes() == b"data"


@pytest.mark.parametrize("name", ["logs", "observer"])
def test_a_folder_that_is_a_link_is_refused(
    tmp_path: Path, plant: Callable[[Path], None], name: str, sentences: Recorder
) -> None:
    """Not even what is called like a log is removed there."""
    plant(tmp_path / "any")
    run = write_run(tmp_path / "run", async_log())
    (run / name).symlink_to(tmp_path / "outside")
    with pytest.raises(RunError) as refused:
        make_folder(run, force=True)
    sentences.check(refused)
    with pytest.raises(RunError) as refused:
        open_folder(run, "run", False, "latest")
    sentences.check(refused)


def test_the_last_words_are_those_of_the_process_and_not_of_one_before(tmp_path: Path) -> None:
    """A log is appended to by each resume."""
    log = tmp_path / "server-0.log"
    for words in ("ps-server: the disk is full", "ps-server: another policy"):
        output = Output("server-0", log, queue.SimpleQueue())
        assert output.tail() == ""
        output.stdout(words.encode() + b"\n")
        output.close()
        assert output.tail() == words
    assert log.read_text().splitlines() == ["ps-server: the disk is full", "ps-server: another policy"]
