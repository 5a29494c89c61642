"""``ps-lab policies`` and ``ps-lab optimizers``"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pslab.commands.failure import EPILOG, Failure, console
from pslab.display.progress import print_json
from psserver import optimizers as optimizer
from psserver.policies import PolicyError, PolicySpec, names
from psserver.policies.loading import spec_of
from pswire.command.options import completed_by
from pswire.knobs import Knob, knobs_of, toml


@click.command(epilog=EPILOG)
@click.argument("name", required=False, shell_complete=completed_by(names))
@click.option("--json", "as_json", is_flag=True, help="All that is known, one JSON object per policy.")
def policies(name: str | None, as_json: bool) -> None:
    """The built-in policies; with NAME, one of them explained.

    Without NAME: each policy's rule in one line, and when to use it. With NAME: rule, guarantee,
    every knob with its default, range and meaning, the paper, and what it costs. A knob is set by
    `--set policy.KNOB=VALUE`, or stands under [policy] in an experiment file.
    """
    try:
        chosen = {each: spec_of(each) for each in ((name,) if name else names())}
    except PolicyError as error:
        raise Failure(error) from error
    if as_json:
        for each, spec in chosen.items():
            print_json(_policy_facts(each, spec))
    elif name:
        console().print(_policy_explained(name, chosen[name]), soft_wrap=False)
    else:
        rows = [(each, rule_of(spec)[0], spec.use_when) for each, spec in chosen.items()]
        console().print(_table(("policy", "rule", "use it when"), rows), soft_wrap=False)


@click.command(epilog=EPILOG)
@click.argument(
    "name",
    required=False,
    shell_complete=completed_by(lambda: (*optimizer.names(), *optimizer.schedule_names())),
)
@click.option("--json", "as_json", is_flag=True, help="All that is known, one JSON object per entry.")
def optimizers(name: str | None, as_json: bool) -> None:
    """The servers' optimizers and learning-rate schedules; with NAME, one of them explained.

    A knob of an optimizer stands under [optimizer] in an experiment file, or is set by
    `--set optimizer.KNOB=VALUE`; a schedule is a table in the place of the learning rate.
    """
    try:
        every = {**{each: optimizer.describe(each) for each in optimizer.names()}, **_schedules()}
        chosen = {name: every.get(name) or optimizer.describe(name)} if name else every
    except optimizer.OptimizerError as error:
        raise Failure(error) from error
    if as_json:
        for entry in chosen.values():
            print_json({"name": entry.name, "rule": entry.summary, "knobs": _knobs_json(entry.knobs)})
    elif name:
        (entry,) = chosen.values()
        title = Text.assemble((f"{name}: ", "bold"), entry.summary)
        console().print(Group(title, "", _knob_table(entry.knobs), ""), soft_wrap=False)
    else:
        rows = [(each, entry.summary, _in_brief(entry.knobs)) for each, entry in chosen.items()]
        console().print(_table(("name", "rule", "knobs"), rows), soft_wrap=False)


def _schedules() -> dict[str, optimizer.Description]:
    return {each: optimizer.describe_schedule(each) for each in optimizer.schedule_names()}


def _in_brief(knobs: Iterable[Knob]) -> str:
    return ", ".join(knob.name if knob.required else f"{knob.name} = {toml(knob.default)}" for knob in knobs)


def rule_of(spec: type[PolicySpec]) -> tuple[str, str]:
    """The rule in one sentence, and the rest of the documentation."""
    first, _, rest = (inspect.getdoc(spec) or "").partition("\n")
    return first, rest.strip()


def _table(titles: tuple[str, str, str], rows: Iterable[tuple[str, str, str]]) -> Table:
    table = Table(header_style="bold", show_lines=True)
    table.add_column(titles[0], style="bold", no_wrap=True)
    table.add_column(titles[1], ratio=3)
    table.add_column(titles[2], ratio=2)
    for name, *texts in rows:
        table.add_row(name, *map(Text, texts))
    return table


def _policy_explained(name: str, spec: type[PolicySpec]) -> Group:
    first, rest = rule_of(spec)
    paragraphs = [Text.assemble((f"{name}: ", "bold"), first)]
    # A paragraph of a docstring is wrapped for the source; a terminal wraps it for itself.
    paragraphs += [Text(" ".join(part.split())) for part in rest.split("\n\n") if part]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    for title, text in (
        ("use it when", spec.use_when),
        ("guarantee", spec.guarantee),
        ("source", spec.source),
        ("servers keep", spec.cost.stores),
        ("per push", spec.cost.work),
        ("lost", spec.cost.waste),
        ("[optimizer]", ", ".join(f"{key} = {toml(value)}" for key, value in spec.optimizer.items())),
    ):
        if text:
            facts.add_row(title, Text(text))
    parts: list[RenderableType] = [*paragraphs, facts, _knob_table(knobs_of(spec))]
    return Group(*(line for part in parts for line in (part, "")))


def _knob_table(knobs: tuple[Knob, ...]) -> Table | Text:
    if not knobs:
        return Text("It has no knobs.")
    table = Table(header_style="bold")
    for title in ("knob", "default", "range"):
        table.add_column(title, no_wrap=title != "range")
    table.add_column("meaning", ratio=1)
    for knob in knobs:
        default = "required" if knob.required else toml(knob.default)
        table.add_row(knob.name, default, Text(knob.domain.describe()), Text(knob.meaning))
    return table


def _policy_facts(name: str, spec: type[PolicySpec]) -> dict[str, Any]:
    first, rest = rule_of(spec)
    return {
        "name": name,
        "rule": " ".join(f"{first} {rest}".split()),
        "use_when": spec.use_when,
        "guarantee": spec.guarantee,
        "source": spec.source,
        "cost": {"stores": spec.cost.stores, "work": spec.cost.work, "waste": spec.cost.waste},
        "optimizer": dict(spec.optimizer),
        "knobs": _knobs_json(knobs_of(spec)),
    }


def _knobs_json(knobs: Iterable[Knob]) -> Mapping[str, object]:
    return {knob.name: knob.to_json() for knob in knobs}
