"""docs/guides/policy.md: its example is run, and says what the page says that it says."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pslab.cli import cli
from psserver.policies import decisions, events

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "policy.md"


def blocks() -> dict[str, str]:
    return dict(re.findall(r"<!-- test: (.+?) -->\n```\w*\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S))


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regenerate: bool) -> None:
    (tmp_path / "my_policy.py").write_text(blocks()["my_policy.py"], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "my_policy", raising=False)
    program, *arguments = shlex.split(blocks()["verify"])
    result = CliRunner().invoke(cli, [*arguments, "--quiet"], standalone_mode=False)
    monkeypatch.delitem(sys.modules, "my_policy", raising=False)
    if regenerate:
        text = PAGE.read_text(encoding="utf-8")
        head, marker, rest = text.partition("<!-- test: said -->\n```\n")
        PAGE.write_text(head + marker + result.output + rest[rest.index("```") :], encoding="utf-8")
    assert (program, result.output) == ("ps-lab", blocks()["said"])


@pytest.mark.parametrize("module", [events, decisions])
def test_every_event_and_decision_is_in_a_table(module: object) -> None:
    kinds = getattr(module, "Event" if module is events else "Decision").__args__
    rows = re.findall(r"^\| `(\w+)\(", PAGE.read_text(encoding="utf-8"), re.M)
    assert {kind.__name__ for kind in kinds} <= set(rows)
