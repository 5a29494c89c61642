"""Every snippet of the documents runs, or says why it does not."""

import contextlib
import io
import re
import runpy
import shlex
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

import pslab.cli
import psserver.cli
import psworker.cli
from pslab.experiment import Experiment
from pswire.addresses import Address
from pswire.command.task import cluster_from_tf_config
from tests.docs.markdown import PAGES, README, ROOT, Block, all_blocks, blocks, named

BLOCKS = all_blocks()
COMMANDS: dict[str, click.Command] = {
    "ps-server": psserver.cli.main,
    "ps-worker": psworker.cli.main,
    "ps-lab": pslab.cli.cli,
}
LESSONS = ROOT / "docs" / "lessons"


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_it_is_known_how_each_snippet_is_tried(block: Block) -> None:
    if block.kind == "test":
        tests = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
        assert any(f'"{block.detail}"' in text for text in tests), f"no test asks for {block.detail!r}"
    elif block.kind == "illustrative":
        assert len(block.detail.split()) >= 3, "give the reason"
    elif block.kind == "run":
        assert block.language == "python"
    elif block.kind == "":
        # tests/lessons runs the commands on the pages of lessons; TOML is read below.
        in_lesson = block.language == "sh" and block.page.parent.parent == LESSONS
        assert block.language == "toml" or in_lesson, "mark it; CONTRIBUTING.md says how"
    else:
        assert block.kind == "output"


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(block.kind == "run" for block in blocks(page))],
    ids=lambda page: page.name,
)
def test_python_runs(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "snippet.py"
    names: dict[str, Any] = {}
    printed = ""
    for block in blocks(page):
        if block.kind == "run":
            script.write_text(block.text, encoding="utf-8")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                names |= runpy.run_path(str(script), init_globals=names)
            printed = out.getvalue()
        elif block.kind == "output":
            assert printed == block.text


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "toml"], ids=str)
def test_an_experiment_file_loads(block: Block) -> None:
    Experiment.parse({"cluster": {"workers": 8}} | tomllib.loads(block.text))


def shown_commands() -> list[str]:
    lines = [
        line
        for block in BLOCKS
        if block.language == "sh"
        for line in block.text.replace("\\\n", " ").splitlines()
    ]
    return [line for line in lines if line.startswith("ps-")]


@pytest.mark.parametrize("line", shown_commands())
def test_every_command_has_the_options_that_it_is_shown_with(line: str) -> None:
    words = shlex.split(line, comments=True)
    # What stands behind a pipe is another command's.
    program, *arguments = words[: words.index("|")] if "|" in words else words
    command = COMMANDS[program]
    if isinstance(command, click.Group):
        subcommand, *arguments = arguments
        command = command.commands[subcommand]
    command.make_context(program, arguments)


def test_the_scripts_that_are_shown_are_there() -> None:
    shown = {found for b in BLOCKS if b.language == "sh" for found in re.findall(r"scripts/\w+", b.text)}
    assert len(shown) >= 4
    assert [script for script in sorted(shown) if not (ROOT / script).is_file()] == []


def test_the_experiment_file_shows_defaults(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(named("docs/experiments.md", "experiment.toml"), encoding="utf-8")
    default = Experiment.load(path).model_validate(
        {"job": {"module": "examples/digits.py:Digits"}, "workers": {"0": {}}}
    )
    assert Experiment.load(path) == default
    shown, known = tomllib.loads(path.read_text(encoding="utf-8")), tomllib.loads(default.to_toml())
    for section in ("run", "cluster", "policy", "optimizer", "job"):
        assert set(shown[section]) == set(known[section]), f"keys of [{section}]"


def test_tf_config_as_it_is_shown() -> None:
    cluster = cluster_from_tf_config(named("docs/guides/clusters.md", "TF_CONFIG"))
    assert cluster.ps == (Address("ps0", 7070), Address("ps1", 7070))
    # A chief is worker 0, so the second of the workers is the third.
    assert (cluster.workers, cluster.task_type, cluster.task_index) == (3, "worker", 2)


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= 1000
