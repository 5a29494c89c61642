"""The ps-lab command: exit codes, help, machine-readable output."""

import json
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from click.shell_completion import ShellComplete

from pslab.cli import SECTIONS, cli, main
from pslab.commands import quickstart
from pslab.dashboard import sources
from pslab.launch.events import EventQueue, StatusAnswer, StatusFailure
from pslab.launch.exits import RunResult, Verdict
from pslab.launch.experiments import FinishedRun
from pslab.launch.status_client import StatusClient, StatusError, StatusPoller
from pswire.exits import ExitCode
from pswire.v1 import coordinator_pb2 as pb
from tests.lab.logs import async_log, find, sync_log, write_run
from tests.lab.test_view import a_status
from tests.patience import PATIENCE
from tests.sentences import Recorder
from tests.worker.replies import answering


def ps_lab(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["ps-lab", *(str(argument) for argument in arguments)])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


@pytest.fixture
def coordinator() -> Iterator[str]:
    """The address of a server that answers Status."""
    with answering(a_status()) as address:
        yield address


Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def test_help_lists_every_command_by_what_it_is_for_and_the_exit_codes(
    monkeypatch: Patch, capsys: Capture
) -> None:
    assert ps_lab(monkeypatch, "--help") == 0
    text = capsys.readouterr().out
    assert "9  ps-lab check" in text and "..." not in text.partition("Options:")[2]
    for title, commands in SECTIONS.items():
        listed = text.partition(f"{title}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in listed.splitlines() if line[2] != " "] == [
            c.name for c in commands
        ]
        for command in commands:
            assert ps_lab(monkeypatch, command.name, "--help") == 0
            assert "Exit codes: ps-lab --help lists them." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "begun", "completed"),
    [
        ([], "pol", ["policy"]),
        (["list", "policies"], "ssp", ["ssp"]),
        (["verify-policy"], "k-a", ["k-async"]),
        (["run", "a.toml", "--policy"], "k-s", ["k-sync"]),
        (["list", "optimizers"], "adamw", ["adamw"]),
    ],
)
def test_the_shell_completes(words: list[str], begun: str, completed: list[str]) -> None:
    """What bash, zsh and fish ask for."""
    found = ShellComplete(cli, {}, "ps-lab", "_PS_LAB_COMPLETE").get_completions(words, begun)
    assert [item.value for item in found] == completed


def test_check_passes_a_sound_run(monkeypatch: Patch, capsys: Capture, tmp_path: Path) -> None:
    assert ps_lab(monkeypatch, "check", write_run(tmp_path / "a", async_log())) == 0
    text = capsys.readouterr().out
    assert "all checks passed" in text


def test_check_tells_a_breach_by_line_and_exits_9(
    monkeypatch: Patch, capsys: Capture, tmp_path: Path
) -> None:
    records = sync_log()
    find(records, "apply", 1)["parts"][0]["weight"] = 1.0
    assert ps_lab(monkeypatch, "check", write_run(tmp_path / "a", records)) == ExitCode.VIOLATIONS
    text = capsys.readouterr().out
    assert "FAILED  weights  1 time" in text
    assert "has weight 1.0, but factor 1.0" in text
    assert "1 violation" in text


def test_check_prints_not_more_than_a_screenful_of_one_check(
    monkeypatch: Patch, capsys: Capture, tmp_path: Path
) -> None:
    records = async_log(50)
    for record in records:
        if record["kind"] == "apply":
            record["parts"][0]["weight"] = 9.0
    folder = write_run(tmp_path / "a", records)
    assert ps_lab(monkeypatch, "check", folder) == ExitCode.VIOLATIONS
    assert "and 30 more (--json lists all)" in capsys.readouterr().out
    assert ps_lab(monkeypatch, "check", folder, "--json") == ExitCode.VIOLATIONS
    record = json.loads(capsys.readouterr().out)
    assert len(record["violations"]) == record["checks"]["weights"] == 50
    assert record["staleness_law"]["holds"]


def test_check_and_compare_of_nothing_are_usage_errors(
    monkeypatch: Patch, capsys: Capture, tmp_path: Path
) -> None:
    assert ps_lab(monkeypatch, "check", tmp_path / "no") == ExitCode.USAGE
    assert ps_lab(monkeypatch, "compare", tmp_path / "no") == ExitCode.USAGE
    assert "no such run folder" in capsys.readouterr().err


def test_compare_prints_the_table_and_draws(monkeypatch: Patch, capsys: Capture, tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, log) for name, log in (("s", sync_log()), ("a", async_log()))]
    assert ps_lab(monkeypatch, "compare", *runs, "--chart", f"training_loss={tmp_path / 'x.png'}") == 0
    text = capsys.readouterr().out
    assert "accuracy" in text
    assert f"chart: {tmp_path / 'x.png'}" in text
    assert (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x.badext", "x.badext: expected a name that ends in .svg or .png"),
        ("x", "x: expected a name that ends in"),
        ("file/x.png", "file/x.png: cannot be written: "),
    ],
)
def test_a_picture_that_cannot_be_drawn(
    monkeypatch: Patch, capsys: Capture, tmp_path: Path, name: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    run = write_run(tmp_path / "s", sync_log())
    assert ps_lab(monkeypatch, "compare", run, "--chart", f"training_loss={name}") == ExitCode.USAGE
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nowhere.toml"], "nowhere.toml"),
        (["run", "a.toml", "--set", "policy.nmae=async"], "nmae"),
        (["run", "a.toml", "--set", "policy.name=asynk"], 'did you mean "async"'),
        (["run", "a.toml", "--set", "policy.name=bounded", "--set", "policy.aggregate=5"], "got 5"),
        (["run", "a.toml", "--set", "optimizer.name=adm"], "adam"),
        (["run", "a.toml", "--set", "cluster.workers=0"], "cluster.workers"),
        (["run", "b.toml"], "job.module is missing"),
        (["run", "a.toml", "--out", "full"], "is not empty"),
        (["run", "a.toml", "--engine", "lcoal"], 'did you mean "local"'),
        (
            ["run", "a.toml", "--set", "cluster.place.workers.gpus=1"],
            "cluster.place.workers.gpus: engine local cannot",
        ),
        (
            ["run", "--script", "m.py", "--out", "r", "--resume", "latest"],
            "ps-lab run r/experiment.toml --out r --resume latest",
        ),
        (
            ["run", "a.toml", "--engine", "simulated", "--restarts", "1"],
            "--restarts: expected an engine with",
        ),
        (["run", "a.toml", "--engine", "simulated", "--set", "run.rescue='x'"], "run.rescue: expected none"),
        (["status", "nohost"], "host:port"),
    ],
)
def test_what_cannot_be_run_is_a_usage_error_before_any_process(
    monkeypatch: Patch, capsys: Capture, tmp_path: Path, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text('[cluster]\nworkers = 3\n[job]\nmodule = "m:job"\n')
    Path("m.py").write_text("job = None\n")
    Path("b.toml").write_text("")
    Path("full").mkdir()
    Path("full/file").write_text("")
    assert ps_lab(monkeypatch, *arguments) == ExitCode.USAGE
    assert words in capsys.readouterr().err
    assert not Path("runs").exists()


def test_status_shows_who_waits(monkeypatch: Patch, capsys: Capture, coordinator: str) -> None:
    assert ps_lab(monkeypatch, "status", coordinator) == 0
    assert "w1 has waited 3.2 s for version 8" in capsys.readouterr().out
    assert ps_lab(monkeypatch, "status", coordinator, "--json") == 0
    assert json.loads(capsys.readouterr().out)["version"] == 7


@pytest.mark.parametrize("more", [[], ["--watch"]])
def test_a_folder_stands_for_the_run_that_goes_on_in_it(
    monkeypatch: Patch, capsys: Capture, coordinator: str, tmp_path: Path, more: list[str]
) -> None:
    (tmp_path / "address").write_text(f"{coordinator}\n")
    asked = []
    asking = "pslab.commands.live"
    monkeypatch.setattr(f"{asking}.show", lambda first, ask, display: asked.append(first.version))
    monkeypatch.setattr(f"{asking}.status_view", lambda first: asked.append(first.version) or "")
    assert ps_lab(monkeypatch, "status", tmp_path, *more) == 0
    assert asked == [7]
    (tmp_path / "summary.json").write_text("{}")
    assert ps_lab(monkeypatch, "status", tmp_path, *more) == ExitCode.USAGE
    assert "this run is over" in capsys.readouterr().err


def test_the_page_of_a_run_is_live_while_its_server_answers(coordinator: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", async_log())
    (folder / "summary.json").unlink()
    for address, kind in ((coordinator, "live"), ("127.0.0.1:1", "run")):
        (folder / "address").write_text(address)
        assert sources.find(str(folder)).kind == kind


def test_status_of_nobody_is_unreachable(monkeypatch: Patch, capsys: Capture) -> None:
    assert ps_lab(monkeypatch, "status", "127.0.0.1:1") == ExitCode.UNREACHABLE
    assert "nothing listens on 127.0.0.1:1" in capsys.readouterr().err


def test_a_server_without_a_coordinator_is_reported_as_such(sentences: Recorder) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    client = StatusClient(f"127.0.0.1:{port}")
    with pytest.raises(StatusError) as refused:
        client.ask()
    sentences.check(refused)
    client.close()
    server.stop(0).wait()


def test_the_poller_puts_answers_and_failures_into_the_queue(coordinator: str) -> None:
    events = EventQueue()
    poller = StatusPoller(coordinator, events)
    answer = events.get(timeout=PATIENCE)
    poller.stop()
    assert isinstance(answer, StatusAnswer)
    assert answer.status.version == 7
    poller = StatusPoller("127.0.0.1:1", events := EventQueue())
    failure = events.get(timeout=PATIENCE)
    poller.stop()
    assert isinstance(failure, StatusFailure)


def test_watch_ends_when_the_server_does(monkeypatch: Patch, capsys: Capture) -> None:
    replies = iter([a_status(version=1), a_status(version=2)])

    def ask(self: StatusClient) -> pb.StatusReply:
        for reply in replies:
            return reply
        raise StatusError("gone")

    monkeypatch.setattr(StatusClient, "ask", ask)
    monkeypatch.setattr(sys.modules["pslab.commands.live"], "INTERVAL", 0.0)
    assert ps_lab(monkeypatch, "status", "localhost:1", "--watch", "--json") == 0
    captured = capsys.readouterr()
    assert [json.loads(line)["version"] for line in captured.out.splitlines()] == [1, 2]
    assert "the server is gone" in captured.err


def fake_runs(monkeypatch: Patch, tmp_path: Path, code: int = 0, spoil: str = "") -> list[str]:
    """`run_real` without processes: leaves a run of the wanted policy behind."""
    started = []

    def run_real(
        experiment: object, display: object, launcher: object, *, out: Path, force: bool
    ) -> FinishedRun:
        started.append(out.name)
        assert force
        records = sync_log() if out.name != "async" else async_log()
        if out.name == spoil:
            find(records, "commit")["t"] = 0.0
        write_run(out, records)
        return FinishedRun(out, RunResult(Verdict(code, "because"), ()), "")

    monkeypatch.setattr(quickstart, "run_real", run_real)
    monkeypatch.setattr(quickstart, "load", lambda path, overrides: None)
    monkeypatch.setattr(quickstart, "examples", lambda: tmp_path / "examples")
    return started


def test_quickstart_runs_checks_compares_and_draws(
    monkeypatch: Patch, capsys: Capture, tmp_path: Path
) -> None:
    started = fake_runs(monkeypatch, tmp_path)
    assert ps_lab(monkeypatch, "quickstart", "--out", tmp_path / "q") == 0
    assert started == ["sync", "async", "bounded"]
    text = capsys.readouterr().out
    assert text.count("check: all passed") == 3
    assert "mean staleness" in text
    assert f"run folders: {tmp_path / 'q' / 'sync'}" in text
    assert (tmp_path / "q" / "loss.png").exists()


def test_quickstart_fails_when_a_check_fails_and_still_compares(
    monkeypatch: Patch, capsys: Capture, tmp_path: Path
) -> None:
    fake_runs(monkeypatch, tmp_path, spoil="async")
    assert ps_lab(monkeypatch, "quickstart", "--out", tmp_path / "q") == ExitCode.VIOLATIONS
    text = capsys.readouterr().out
    assert "t goes back" in text
    assert "mean staleness" in text


@pytest.mark.parametrize(("code", "runs"), [(6, 3), (130, 1)])
def test_quickstart_passes_a_failure_on_and_stops_when_interrupted(
    monkeypatch: Patch, tmp_path: Path, code: int, runs: int
) -> None:
    started = fake_runs(monkeypatch, tmp_path, code=code)
    assert ps_lab(monkeypatch, "quickstart", "--out", tmp_path / "q") == code
    assert len(started) == runs
