"""docs/experiments.md names every key of the sections that it is about, with the default that the code has."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from pslab.simulator.problems import PROBLEMS
from pswire.config.distributions import DISTRIBUTIONS, parse
from pswire.config.experiment import WorkerSection, parse_experiment
from pswire.config.sections import (
    Crash,
    Disconnect,
    FaultsSection,
    Join,
    Leave,
    LinksSection,
    SimulationSection,
)

PAGE = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text(encoding="utf-8")
SECTIONS: dict[str, type[BaseModel]] = {
    "[workers.N]": WorkerSection,
    "[links]": LinksSection,
    "[faults]": FaultsSection,
    "[simulation]": SimulationSection,
}


def chapter(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text: str, first: str) -> list[list[str]]:
    """Of the table whose heading begins with `first`; a cell's backticks stay."""
    table = text.partition(f"\n| {first} |")[2].partition("\n\n")[0]
    lines = table.splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def default_of(section: type[BaseModel], key: str) -> Any:
    field = section.model_fields[key]
    return field.default_factory() if field.default_factory else field.default  # type: ignore[call-arg]


def said(cell: str) -> Any:
    """A default as it stands on the page: a TOML value in backticks."""
    assert re.fullmatch(r"`.+`", cell), cell
    return tomllib.loads(f"value = {cell.strip('`')}")["value"]


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_key_is_named_with_its_default(heading: str) -> None:
    section, table = SECTIONS[heading], rows(chapter(heading), "key")
    found = {key.strip("`"): default for key, _, default, *_ in table}
    assert list(found) == list(section.model_fields)
    for key, default in found.items():
        assert said(default) == default_of(section, key), key
    assert all(meaning for *_, meaning in table)


def test_entries_of_faults_are_complete() -> None:
    text = chapter("[faults]").partition("Each entry of a list has")[2]
    kinds: dict[str, type[BaseModel]] = {
        "crashes": Crash,
        "leaves": Leave,
        "joins": Join,
        "disconnects": Disconnect,
    }
    table = {key.strip("`"): (where.strip("`"), default) for key, where, _, default, _ in rows(text, "key")}
    for name, kind in kinds.items():
        own = {key for key, (where, _) in table.items() if where in ("all", name)}
        assert own == set(kind.model_fields), name
        for key in own:
            default = table[key][1]
            expected = default_of(kind, key)
            assert (not default and expected is PydanticUndefined) or said(default) == expected


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
    known = [f"{name}({', '.join(d.parameters)})" for name, d in DISTRIBUTIONS.items()]
    assert shown == [*known, "trace(file)"]
    assert parse("2.5 * gamma(100, 0.01)").mean == pytest.approx(2.5)


def test_a_trace_file_as_it_is_shown(tmp_path: Path) -> None:
    (text,) = re.findall(r"```\n(rank,seconds\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "steps.csv").write_text(text, encoding="utf-8")
    assert parse(f"trace({tmp_path / 'steps.csv'})").mean == pytest.approx((0.0131 + 0.0127) / 2)


@pytest.mark.parametrize("block", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_every_example_is_a_valid_experiment(block: str) -> None:
    parse_experiment({"cluster": {"workers": 8}} | tomllib.loads(block))
