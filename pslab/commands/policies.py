"""``ps-lab policies``"""

import inspect
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pslab.commands.failure import EPILOG, Failure, console
from pslab.display.progress import print_json
from psserver.policies.builtin import PolicySpec, knobs_of
from psserver.policies.loading import entry_of, names
from psserver.policies.policy import PolicyError


@click.command(epilog=EPILOG)
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="All that is known, one JSON object per policy.")
def policies(name: str | None, as_json: bool) -> None:
    """The named policies; with NAME, one of them explained.

    Without NAME: each policy's rule in one line, and what it guarantees. With NAME: rule, guarantee,
    every knob with its default, range and meaning, the paper, and what it costs. A knob is set by
    `--set policy.KNOB=VALUE`, or stands under [policy] in an experiment file.
    """
    try:
        chosen = {name: entry_of(name)} if name else {each: entry_of(each) for each in names()}
    except PolicyError as error:
        raise Failure(error) from error
    if as_json:
        for each, entry in chosen.items():
            print_json(_facts(each, entry))
    elif name:
        console().print(_explained(name, chosen[name]), soft_wrap=False)
    else:
        console().print(_listed(chosen), soft_wrap=False)


def _rule(entry: type[PolicySpec]) -> tuple[str, str]:
    """The rule in one sentence, and the rest of the documentation."""
    first, _, rest = (inspect.getdoc(entry) or "").partition("\n")
    return first, rest.strip()


def _listed(entries: dict[str, type[PolicySpec]]) -> Table:
    table = Table(header_style="bold", show_lines=True)
    table.add_column("policy", style="bold", no_wrap=True)
    table.add_column("rule", ratio=3)
    table.add_column("guarantee", ratio=2)
    for name, entry in entries.items():
        table.add_row(name, Text(_rule(entry)[0]), Text(entry.guarantee))
    return table


def _explained(name: str, entry: type[PolicySpec]) -> Group:
    first, rest = _rule(entry)
    paragraphs = [Text.assemble((f"{name}: ", "bold"), first)]
    # A paragraph of a docstring is wrapped for the source; a terminal wraps it for itself.
    paragraphs += [Text(" ".join(part.split())) for part in rest.split("\n\n") if part]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    for title, text in (
        ("guarantee", entry.guarantee),
        ("source", entry.source),
        ("servers keep", entry.cost.stores),
        ("per push", entry.cost.work),
        ("lost", entry.cost.waste),
        ("[optimizer]", ", ".join(f"{key} = {_toml(value)}" for key, value in entry.optimizer.items())),
    ):
        if text:
            facts.add_row(title, Text(text))
    parts: list[RenderableType] = [*paragraphs, facts, _knobs(entry)]
    return Group(*(line for part in parts for line in (part, "")))


def _knobs(entry: type[PolicySpec]) -> Table | Text:
    knobs = knobs_of(entry)
    if not knobs:
        return Text("It has no knobs.")
    table = Table(header_style="bold")
    for title in ("knob", "default", "range"):
        table.add_column(title, no_wrap=title != "range")
    table.add_column("meaning", ratio=1)
    for knob in knobs:
        table.add_row(knob.name, _toml(knob.default), Text(knob.range), Text(knob.meaning))
    return table


def _toml(value: object) -> str:
    """As it stands in an experiment file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _facts(name: str, entry: type[PolicySpec]) -> dict[str, Any]:
    first, rest = _rule(entry)
    return {
        "name": name,
        "rule": " ".join(f"{first} {rest}".split()),
        "guarantee": entry.guarantee,
        "source": entry.source,
        "cost": {"stores": entry.cost.stores, "work": entry.cost.work, "waste": entry.cost.waste},
        "optimizer": dict(entry.optimizer),
        "knobs": {
            knob.name: {"default": knob.default, "range": knob.range, "meaning": knob.meaning}
            for knob in knobs_of(entry)
        },
    }
