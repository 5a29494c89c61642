"""Options that a section's fields declare: what the command gets, what --help says, and that no text is missing."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner
from pydantic import Field

from pslab.commands.run import run
from pslab.experiment import Experiment
from psserver.cli import main as server
from psserver.options import Options
from psserver.settings import decided_by_server_0
from pswire.command.options import key_options, section_options
from pswire.config.flags import CONNECTING, LISTENING, RUN, SERVER, WORKER, Flag, meanings_of
from pswire.config.sections import Section
from pswire.config.toml import apply_overrides, overrides_of
from pswire.environment import VARIABLES, warn_of_misspelt
from pswire.exits import ExitCode
from psworker.cli import main as worker
from psworker.running import WorkerOptions

ROOT, PACKAGES = Path(__file__).parents[2], ("pswire", "psserver", "psworker", "pslab")


class Own(Section):
    size: Annotated[int, Field(ge=2, le=9), Flag((SERVER,))] = 3
    """pieces of `cake`"""

    pause: Annotated[Literal["auto"] | float, Flag((SERVER,), metavar="SECONDS")] = "auto"
    """seconds"""

    folder: Annotated[Path | None, Flag((SERVER,))] = None
    """where"""

    guests: Annotated[list[str], Flag((SERVER,), name="guest")] = Field(default_factory=list)
    """who comes"""

    late: Annotated[bool, Flag((WORKER,))] = False
    """another command's"""

    secret: str = ""


def given(arguments: list[str]) -> dict[str, Any]:
    @click.command()
    @section_options(SERVER, Own)
    def command(**given: Any) -> None:
        found.update({name: value for name, value in given.items() if value not in (None, ())})

    found: dict[str, Any] = {}
    said = CliRunner().invoke(command, arguments)
    assert said.exit_code == 0, said.output
    return found | {"output": said.output}


def test_a_field_is_an_option_of_its_commands_only() -> None:
    said = given(["--help"])["output"]
    assert "Pieces of cake.  [default: 3; >= 2, <= 9]" in said
    assert "--pause SECONDS" in said and "[default: auto]" in said
    assert "Who comes. Repeatable." in said
    assert "--late" not in said and "--secret" not in said


def test_what_is_not_given_is_left_to_the_section() -> None:
    assert given([]) == {"output": ""}
    chosen = ["--size", "4", "--pause", "0.5", "--folder", "x", "--guest", "a", "--guest", "b"]
    assert given(chosen) == {
        "output": "",
        "size": 4,
        "pause": 0.5,
        "folder": Path("x"),
        "guests": ("a", "b"),
    }
    assert given(["--pause", "auto"])["pause"] == "auto"


def test_a_key_of_an_experiment_file_goes_from_the_command_line_into_the_experiment() -> None:
    @click.command()
    @key_options(SERVER)
    def command(**keys: Any) -> None:
        apply_overrides(document, overrides_of(keys))

    document: dict[str, Any] = {}
    chosen = ["--workers", "2", "--allow-worker", "w0", "--allow-worker", "w1", "--ticket-timeout", "3"]
    said = CliRunner().invoke(command, [*chosen, "--allow-missing", "--policy", "async"])
    assert said.exit_code == 0, said.output
    found = Experiment.parse(document)
    assert found.cluster.allowed_workers == ["w0", "w1"] and found.cluster.ticket_timeout == 3.0
    assert found.cluster.allow_missing and found.policy.name == "async"
    assert found.model_fields_set == {"cluster", "policy"}


def test_one_field_is_an_option_of_several_commands() -> None:
    for name, command in (("ps-worker", worker), ("ps-lab run", run)):
        (option,) = [each for each in command.params if each.name == "job.epochs"]
        assert option.opts == ["--epochs"], name


def test_every_option_has_a_meaning() -> None:
    sections = [field.annotation for field in Experiment.model_fields.values()]
    flagged, commands = 0, {SERVER, WORKER, RUN, CONNECTING, LISTENING}
    for model in (Options, WorkerOptions, *sections):
        if isinstance(model, type) and issubclass(model, Section):
            for name, field in model.model_fields.items():
                flags = [each for each in field.metadata if isinstance(each, Flag)]
                assert not flags or meanings_of(model).get(name), (model, name)
                assert all(set(each.commands) <= commands for each in flags)
                flagged += len(flags)
    assert flagged > 30


def test_help_shows_examples_by_their_files() -> None:
    """An example imports its neighbours, which a module name from elsewhere would not find."""
    shown = [CliRunner().invoke(command, ["--help"]).output for command in (server, worker, run)]
    files = re.findall(r"\bexamples[./]([\w./-]+)", "".join(shown))
    assert files and all((ROOT / "examples" / file).is_file() for file in files), files


def test_a_server_says_which_of_its_options_server_0_decides() -> None:
    given = ("policy.name=async", "cluster.workers=2", "run.checkpoint_every=9 versions", "run.seed=1")
    typed = {
        "policy.name": "--policy",
        "cluster.workers": "--workers",
        "run.checkpoint_every": "--checkpoint-every",
    }
    options = Options(overrides=given, typed=typed, resume="auto")
    assert decided_by_server_0(options) == ["--policy", "--workers", "--set run.seed", "--resume"]


def test_a_variable_that_looks_misspelt_is_named(caplog: pytest.LogCaptureFixture) -> None:
    names = ("PS_HOSTS", "PS_HOST", "PS_WIRE_TYPE", "PS_PORT", "PS_SERVICE_HOST", "PATH", "PS_FORMAT")
    warn_of_misspelt(dict.fromkeys(names, "x"))
    said = [record.getMessage() for record in caplog.records]
    assert [text.rpartition("you mean ")[2] for text in said] == ["PS_HOSTS?", "PS_WIRE_DTYPE?"]


def test_every_variable_of_ours_is_known() -> None:
    """Or the warning would name one that is read."""
    sources = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    found = {
        name for path in sources for name in re.findall(r"\bPS_[A-Z_]+\b", path.read_text(encoding="utf-8"))
    }
    assert found - {"PS_PORT"} == set(VARIABLES)


def test_an_error_names_the_option_that_was_typed_and_the_key_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text("[cluster]\nservers = 1\nworkers = 0\n")
    hosts = ["--ps-hosts", "127.0.0.1:0"]
    for command, arguments, named in (
        (server, ["--workers", "0"], "--workers: "),
        (server, ["--set", "cluster.workers=0"], "--set cluster.workers: "),
        (server, ["--config", str(file)], f"{file}: cluster.workers: "),
        (server, ["--data-port", "70000"], "--data-port: "),
        (worker, ["--job", "a:b", "--epochs", "0"], "--epochs: "),
        (
            server,
            ["--workers", "2", "--set", "cluster.workers=3"],
            "--set cluster.workers: --workers says it, too",
        ),
        (
            server,
            ["--set", "policy.slack=1", "--set", "policy.slack=2"],
            "--set policy.slack: another --set says it",
        ),
        (server, ["--set", "cluster.servers=3"], "--set cluster.servers: ps-server does not read it"),
        (
            server,
            ["--set", "job.epochs=3"],
            "--set job.epochs: ps-server does not read it; expected it for ps-worker",
        ),
        (server, ["--set", "faults.loss=0.1"], "--set faults.loss: ps-server does not read it"),
        (server, ["--keep", "5"], "--keep: needs run.checkpoint_every"),
        (server, ["--recover-timeout", "5"], "--recover-timeout: needs run.checkpoint_every"),
        (
            worker,
            ["--job", "a:b", "--set", "policy.name=async"],
            "--set policy.name: ps-worker does not read it",
        ),
        (worker, ["--job", "a:b", "--server-timeout", "-1"], "--server-timeout: "),
    ):
        ended = CliRunner().invoke(command, [*hosts, *arguments])
        assert ended.exit_code == ExitCode.USAGE and f": {named}" in ended.stderr, ended.stderr
