"""The experiment files for the simulator in examples/: they run, pass all checks, and show what they say."""

import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

from pslab.experiment import Experiment
from pslab.launch.simulated import run_simulated
from pslab.runs.folder import Run
from tests.lessons.lesson import LESSONS
from tests.replay.command import ps_lab

EXAMPLES = Path(__file__).parents[2] / "examples"


def simulated(name: str, folder: Path, *overrides: str) -> Run:
    experiment = Experiment.load(EXAMPLES / f"simulated-{name}.toml", overrides)
    finished = run_simulated(experiment, out=folder, quiet=True)
    assert finished.result.ok, finished.result
    run = Run(finished.folder)
    assert ps_lab("check", run.path).code == 0
    return run


def test_every_example_is_here_and_named_on_the_page() -> None:
    names = {path.stem for path in EXAMPLES.glob("simulated-*.toml")}
    assert names == {f"simulated-{name}" for name in ("straggler", "links", "crashes", "race")}
    page = (EXAMPLES.parent / "docs" / "experiments.md").read_text(encoding="utf-8")
    assert all(f"{name}.toml" in page for name in names)


def test_a_persistent_straggler(tmp_path: Path) -> None:
    """Nine times in ten that the others commit it does not, and the digits are learnt all the same."""
    run = simulated("straggler", tmp_path / "run")
    slow, fast = (run.summary.contributions[worker].applied for worker in ("w7", "w0"))
    # All have the same number of batches; the others are done when it has had a tenth of its own.
    assert slow == fast
    assert run.summary.metrics["accuracy"] is not None and run.summary.metrics["accuracy"] > 0.93
    evaluated = [metric.version for metric in run.metrics() if metric.kind == "eval"]
    assert evaluated[:3] == [20, 40, 60]


def test_more_servers_help_until_the_workers_set_the_pace(tmp_path: Path) -> None:
    """A version is 100 MB down and 100 MB up: with one card of 1.25 GB/s each way 0.08 s per version at least."""
    seconds = {}
    for servers in (1, 8):
        run = simulated("links", tmp_path / str(servers), f"cluster.servers={servers}")
        seconds[servers] = run.summary.wall_seconds / run.summary.versions
    assert 0.08 < seconds[1] < 0.12
    # Eight cards: a step is 0.1 s of work, and transfers of 0.01 s each way where nobody else is in the way.
    assert 0.12 / 8 < seconds[8] < 0.18 / 8


def test_crashes(tmp_path: Path) -> None:
    run = simulated("crashes", tmp_path / "run")
    kinds = [(entry.kind, getattr(entry.fact, "worker", "")) for entry in run.decisions()]
    for kind, worker in (
        ("lost", "w1"),
        ("leave", "w2"),
        ("leave", "w3"),
        ("join", "w5"),
        ("lost", "w0"),
        ("back", "w0"),
    ):
        assert (kind, worker) in kinds
    assert kinds.count(("join", "w1")) == 2
    assert run.summary.metrics["accuracy"] is not None and run.summary.metrics["accuracy"] > 0.9


def test_the_command_of_the_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands on the page, but for two policies, one learning rate and one seed."""
    page = (LESSONS / "race" / "README.md").read_text(encoding="utf-8")
    block, _ = re.findall(r"```sh\n(ps-lab sweep .*?)```", page, re.DOTALL)
    words = shlex.split(block.replace("\\\n", " "))[1:]
    policies = next(word for word in words if word.startswith("policy="))
    words[words.index(policies)] = 'policy={name = "async"},{name = "k-sync", aggregate = 4}'
    words[words.index("optimizer.learning_rate=0.1,0.2,0.4,0.8")] = "optimizer.learning_rate=0.2"
    words[words.index("--repeat") + 1] = "1"
    words[words.index("examples/simulated-race.toml")] = str(EXAMPLES / "simulated-race.toml")
    monkeypatch.chdir(tmp_path)
    said = ps_lab(*words)
    assert said.code == 0, said.err
    assert "s to accuracy 0.95" in said.out
    for name in ("async", "k-sync,aggregate=4"):
        summary = Run(tmp_path / "runs" / "race-sweep" / f"learning_rate=0.2,{name},seed=1").summary
        assert "wanted was 0.95" in summary.reason and (summary.metrics["accuracy"] or 0) >= 0.95


def test_the_second_command_of_the_race_names_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers with steps of their own, one learning rate and one seed; then both sweeps side by side."""
    page = (LESSONS / "race" / "README.md").read_text(encoding="utf-8")
    _, block = re.findall(r"```sh\n(ps-lab sweep .*?)```", page, re.DOTALL)
    sweep, *_, compare = (shlex.split(line)[1:] for line in block.replace("\\\n", " ").splitlines())
    sweep[sweep.index("policy.learning_rate=0.1,0.2,0.4,0.8")] = "policy.learning_rate=0.4"
    sweep[sweep.index("--repeat") + 1] = "1"
    sweep[sweep.index("examples/simulated-race.toml")] = str(EXAMPLES / "simulated-race.toml")
    monkeypatch.chdir(tmp_path)
    assert ps_lab(*sweep).code == 0
    folders = sorted((tmp_path / "runs" / "race-local").iterdir())
    options = [word for word in compare[1:] if not word.startswith("runs/")]
    said = ps_lab("compare", *folders, *options)
    assert said.code == 0 and "easgd" in said.out and (tmp_path / "race.png").is_file()
