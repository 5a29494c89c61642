"""docs/experiments.md names every distribution and every problem with the defaults that the code has."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pslab.simulator.problems import PROBLEMS
from pswire.config.distributions import DISTRIBUTIONS, parse
from tests.docs.markdown import named

PAGE = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text(encoding="utf-8")


def chapter(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text: str, first: str) -> list[list[str]]:
    """Of the table whose heading begins with `first`; a cell's backticks stay."""
    table = text.partition(f"\n| {first} |")[2].partition("\n\n")[0]
    lines = table.splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def said(cell: str) -> Any:
    """A default as it stands on the page: a TOML value in backticks."""
    assert re.fullmatch(r"`.+`", cell), cell
    return tomllib.loads(f"value = {cell.strip('`')}")["value"]


def test_every_option_of_a_problem_is_named_with_its_default() -> None:
    found: dict[str, dict[str, Any]] = {}
    problem = ""
    for name, option, default, _ in rows(chapter("Problems"), "problem"):
        problem = name.strip("`") or problem
        found.setdefault(problem, {})[option.strip("`")] = said(default)
    known = {
        name: {
            option.name: list(option.default) if isinstance(option.default, tuple) else option.default
            for option in fields(kind)
        }
        for name, kind in PROBLEMS.items()
    }
    assert found == known


def test_every_distribution_is_shown_with_its_parameters() -> None:
    shown = [row[0].strip("`") for row in rows(chapter("Distributions"), "text")]
    known = [f"{name}({', '.join(knob.name for knob in d.parameters)})" for name, d in DISTRIBUTIONS.items()]
    assert shown == [*known, "trace(file)"]
    assert parse("2.5 * gamma(100, 0.01)").mean == pytest.approx(2.5)


def test_a_trace_file_as_it_is_shown(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text(named("docs/experiments.md", "trace"), encoding="utf-8")
    assert parse(f"trace({tmp_path / 'steps.csv'})").mean == pytest.approx((0.0131 + 0.0127) / 2)
