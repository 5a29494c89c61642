"""What the README shows runs as it is shown, and its tables say what the code says.

A block to be run has a comment ``<!-- test: name -->`` above it.
"""

import re
import shlex
import subprocess
import sys
import threading
import tomllib
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import click
import pytest

import pslab.cli
import psserver.cli
import psworker.cli
from psserver import policies
from psserver.optimizers import names as optimizer_names
from psserver.optimizers import schedule_names
from psserver.policies import Apply, Commit, Grant, Join, Ready
from psserver.policies.builtin import BUILTIN
from pswire.config.experiment import load_experiment
from pswire.exits import ExitCode

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/design.md",
    "docs/experiments.md",
    "docs/papers.md",
    "docs/performance.md",
    "docs/policies.md",
    "CHANGELOG.md",
)
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = {"ps-server": psserver.cli.main, "ps-worker": psworker.cli.main, "ps-lab": pslab.cli.cli}
# The address that the page names; tests let the system choose a port.
ADDRESS = "127.0.0.1:7070"
# How long a command may take, in seconds.
PATIENCE = 100.0


@dataclass(frozen=True)
class Block:
    name: str
    language: str
    text: str


BLOCKS = [
    Block(*found) for found in re.findall(r"(?:<!-- test: (.+?) -->\n)?```(\w*)\n(.*?)```", README, re.S)
]


def block(name: str) -> str:
    return next(block.text for block in BLOCKS if block.name == name)


def table(heading: str) -> list[list[str]]:
    """The rows of the table whose first column has this heading, backticks taken off."""
    lines = iter(README.splitlines())
    for line in lines:
        if line.startswith(f"| {heading} |"):
            next(lines)
            break
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split(" | ")])
    return rows


def shown_commands() -> list[str]:
    in_blocks = [line for b in BLOCKS if b.language == "sh" for line in b.text.splitlines()]
    return [line for line in [*in_blocks, *(row[0] for row in table("command"))] if line.startswith("ps-")]


# What is shown


@pytest.mark.parametrize("line", shown_commands())
def test_every_command_has_the_options_that_it_is_shown_with(line: str) -> None:
    program, *arguments = shlex.split(line)
    command: click.Command = COMMANDS[program]
    if isinstance(command, click.Group):
        subcommand, *arguments = arguments
        command = command.commands[subcommand]
    command.make_context(program, arguments)


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}, which is not there"


def test_every_top_level_folder_is_on_the_map() -> None:
    made = ("runs", "build", "dist")  # by using the checkout
    folders = [
        folder.name
        for folder in sorted(ROOT.iterdir())
        if folder.is_dir() and not folder.name.startswith(".") and not folder.name.endswith(".egg-info")
        if folder.name not in made and any(path.suffix != ".pyc" for path in folder.rglob("*.*"))
    ]
    mapped = "\n".join(" ".join(row) for row in table("path"))
    assert [folder for folder in folders if f"]({folder}" not in mapped] == []


def test_the_picture_is_a_picture() -> None:
    root = xml.parse(ROOT / "docs" / "picture.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"


# What the tables say


def test_exit_codes() -> None:
    assert table("code") == [[str(int(code)), code.meaning] for code in ExitCode]


def test_policies() -> None:
    rows = {row[0]: row[3] for row in table("policy")}
    assert sorted(rows) == sorted(policies.names())
    for name, knobs in rows.items():
        for knob in fields(BUILTIN[name]):
            shown = f"`{knob.name}` ({knob.default!r})".replace("'", '"')
            assert shown in f"`{knobs}", f"{name}: expected {shown} among {knobs}"


def test_optimizers_and_schedules() -> None:
    for name in (*optimizer_names(), *schedule_names()):
        assert re.search(rf"`{name}`|{name}", README.split("Optimizers run on the servers")[1][:400]), name


def test_the_experiment_file_shows_defaults(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(block("experiment.toml"), encoding="utf-8")
    default = load_experiment(path).model_validate(
        {"job": {"module": "examples/digits.py:Digits"}, "workers": {"0": {}}}
    )
    assert load_experiment(path) == default
    shown, known = tomllib.loads(block("experiment.toml")), tomllib.loads(default.to_toml())
    for section in ("run", "cluster", "policy", "optimizer", "job"):
        assert set(shown[section]) == set(known[section]), f"keys of [{section}]"


# What is run


def test_a_policy_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fresh gradients make an update; one that is a version old then weighs 1/sqrt(2) of a half."""
    (tmp_path / "my_policies.py").write_text(block("my_policies.py"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    policy = policies.build("my_policies:Buffered", {"size": 2}, workers=3)
    for rank in range(3):
        policy.step(Join(f"w{rank}", rank))
        assert policy.step(Ready(f"w{rank}", rank)) == [Grant(f"w{rank}", rank)]

    def commit(worker: int, ticket: int) -> list[Apply]:
        decisions = policy.step(Commit(f"w{worker}", ticket, samples=1, loss=0.0, norm=0.0))
        return [decision for decision in decisions if isinstance(decision, Apply)]

    assert commit(0, 0) == []
    [first] = commit(1, 1)
    assert ([part.factor for part in first.parts], first.scale) == ([1.0, 1.0], 0.5)
    policy.step(Ready("w0", 3))
    assert commit(2, 2) == []
    [second] = commit(0, 3)
    assert [part.factor for part in second.parts] == [2**-0.5, 1.0]


@pytest.mark.tensorflow
def test_a_job_of_your_own(tmp_path: Path) -> None:
    from pswire.plan import make_plan
    from psworker.job import load_job
    from psworker.tensorflow import Trainer

    path = tmp_path / "my_job.py"
    path.write_text(block("my_job.py"), encoding="utf-8")
    trainer = Trainer(load_job(f"{path}:MyJob", {"batch_size": 64}), device="cpu", deterministic=False)
    plan = make_plan([spec for spec, _ in trainer.specs], 2)
    trainer.attach(plan)
    flats = plan.scatter([values for _, values in trainer.specs])
    batches = list(trainer.batches(1, 3, 0, epochs=1))
    result = trainer.step(flats, batches[0][1])
    assert (len(batches), result.samples) == (10, 64)  # 1,797 / 3 workers = 599 images
    assert 1.5 < result.loss < 3.5  # about ln 10


@contextmanager
def started(command: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A command of the page as a process in `folder`, killed if it is still there at the end."""
    program, *arguments = shlex.split(command)
    binary = Path(sys.executable).parent / program
    process = subprocess.Popen(
        [binary if binary.exists() else program, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@contextmanager
def serving(command: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A ps-server of the page on a free port: the process, its address, and what it says, line by line."""
    with started(command.replace(ADDRESS, "127.0.0.1:0"), folder) as server:
        assert server.stdout is not None
        said = [server.stdout.readline()]
        found = re.search(r"is ready at (\S+)", said[0])
        assert found, said[0] + server.stdout.read()
        # Its output is read all the time: a full pipe would stop it.
        reader = threading.Thread(target=lambda: said.extend(server.stdout or ()), daemon=True)
        reader.start()
        try:
            yield server, found[1], said
            server.wait(PATIENCE)
            reader.join(PATIENCE)
        except BaseException:
            print("the server said:", *said, sep="\n")
            raise


def finished(process: subprocess.Popen[str]) -> str:
    try:
        said, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        pytest.fail(f"{process.args!r} goes on after {PATIENCE:g} s; it said:\n{said}")
    assert process.returncode == ExitCode.OK, said
    return said


@pytest.mark.cluster
@pytest.mark.tensorflow
@pytest.mark.timeout(300)
def test_three_terminals_by_hand(tmp_path: Path) -> None:
    runs = str(tmp_path / "by-hand")
    with serving(block("by hand, server").replace("runs/by-hand", runs), ROOT) as (server, address, said):
        worker = block("by hand, worker").replace(ADDRESS, address)
        with started(worker, ROOT) as second, started(worker, ROOT) as third:
            ends = [finished(second), finished(third)]
    assert server.returncode == ExitCode.OK, "".join(said)
    assert sum("accuracy 0.9" in end for end in ends) == 1, ends
    assert all("finished after 690 steps, version 690: all workers are done" in end for end in ends), ends
    with started(block("by hand, check").replace("runs/by-hand", runs), ROOT) as check:
        assert "all checks passed" in finished(check)


@pytest.mark.cluster
def test_a_loop_of_your_own_under_a_policy_of_your_own(tmp_path: Path) -> None:
    (tmp_path / "my_policies.py").write_text(block("my_policies.py"), encoding="utf-8")
    with serving(block("my policy"), tmp_path) as (server, address, said):
        (tmp_path / "my_loop.py").write_text(block("my_loop.py").replace(ADDRESS, address), encoding="utf-8")
        with started(f"{sys.executable} my_loop.py", tmp_path) as loop:
            end = finished(loop)
    assert server.returncode == ExitCode.OK, "".join(said)
    assert "all workers are done 200 Disposition(ticket=" in end and "fate='applied'" in end, end
