"""Commands about what a run can choose: ``ps-lab list policies``, ``list optimizers`` and ``verify-policy``."""

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pslab.commands.failure import EPILOG, Failure, console, failures
from pslab.display.progress import print_json
from pslab.verify.guarded import Case
from pslab.verify.search import Finding, Report, verify
from psserver import optimizers as optimizer
from psserver.policies import PolicyError, PolicySpec, names
from psserver.policies.loading import spec_of
from pswire.command.options import completed_by, number_option
from pswire.config.toml import OverrideError, apply_overrides
from pswire.exits import ExitCode
from pswire.knobs import Knob, knobs_of, toml


@click.group("list", epilog=EPILOG)
def list_command() -> None:
    """List what a run can choose: policies, or optimizers with their schedules."""


@list_command.command(epilog=EPILOG)
@click.argument("name", required=False, shell_complete=completed_by(names))
@click.option("--json", "as_json", is_flag=True, help="Print everything known, one JSON object per policy.")
def policies(name: str | None, as_json: bool) -> None:
    """List the built-in policies, or explain NAME.

    The list has each policy's rule in one line, and when to use it. The explanation has the rule, the
    guarantee, every knob with its default, range and meaning, the paper, and the cost. Set a knob with
    `--set policy.KNOB=VALUE`, or under [policy] in an experiment file.
    """
    with failures(PolicyError):
        chosen = {each: spec_of(each) for each in ((name,) if name else names())}
    if as_json:
        for each, spec in chosen.items():
            print_json(_policy_facts(each, spec))
    elif name:
        console().print(_policy_explained(name, chosen[name]), soft_wrap=False)
    else:
        rows = [(each, rule_of(spec)[0], spec.use_when) for each, spec in chosen.items()]
        console().print(_table(("policy", "rule", "use it when"), rows), soft_wrap=False)


@list_command.command(epilog=EPILOG)
@click.argument(
    "name",
    required=False,
    shell_complete=completed_by(lambda: (*optimizer.names(), *optimizer.schedule_names())),
)
@click.option("--json", "as_json", is_flag=True, help="Print everything known, one JSON object per entry.")
def optimizers(name: str | None, as_json: bool) -> None:
    """List the servers' optimizers and learning-rate schedules, or explain NAME.

    Set a knob of an optimizer under [optimizer] in an experiment file, or with
    `--set optimizer.KNOB=VALUE`. A schedule is a table in place of the learning rate.
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
    """Return the rule in one sentence, and the rest of the documentation."""
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
    optimizer = ", ".join(f"{key} = {toml(value)}" for key, value in spec.optimizer.items())
    facts = (
        ("use it when", spec.use_when),
        ("guarantee", spec.guarantee),
        ("source", spec.source),
        ("servers keep", spec.cost.stores),
        ("per push", spec.cost.work),
        ("lost", spec.cost.waste),
        ("[optimizer]", optimizer),
    )
    return _explained(name, first, rest, facts, knobs_of(spec))


def _explained(
    name: str, first: str, rest: str, sections: Iterable[tuple[str, str]], knobs: tuple[Knob, ...]
) -> Group:
    paragraphs = [Text.assemble((f"{name}: ", "bold"), first)]
    # Docstrings are wrapped for the source; the terminal wraps them anew.
    paragraphs += [Text(" ".join(part.split())) for part in rest.split("\n\n") if part]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    for title, text in sections:
        if text:
            facts.add_row(title, Text(text))
    parts: list[RenderableType] = [*paragraphs, facts, _knob_table(knobs)]
    return Group(*(line for part in parts for line in (part, "")))


def _knob_table(knobs: tuple[Knob, ...]) -> Table | Text:
    if not knobs:
        return Text("no knobs")
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


# Seconds between two lines of progress.
LINE_INTERVAL = 2.0


@click.command("verify-policy", epilog=EPILOG)
@click.argument("policy", metavar="NAME", shell_complete=completed_by(names))
@click.option(
    "--set", "knobs", multiple=True, metavar="KNOB=VALUE", help="A knob: max_staleness=2. Repeatable."
)
@click.option(
    "--workers", type=click.IntRange(1, 64), default=3, show_default=True, help="Workers of the job."
)
@number_option("--schedules", 1, 1000, "Random schedules to play.")
@number_option("--seed", 0, 0, "Seed of the first schedule.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of sentences.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.pass_context
def verify_policy(
    context: click.Context,
    policy: str,
    knobs: tuple[str, ...],
    workers: int,
    schedules: int,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Check that policy NAME, built in or your own module:Class, keeps the contract of policies.

    Plays random schedules of joins, commits, repetitions, broken connections, losses, returns and ends
    through the servers' own coordinator and a shard. After every step, committed = applied + dropped +
    pending must hold, each ticket must be granted once and settled once, and no worker may wait without a
    reason; in the end the job must end. Equal events must lead to equal decisions, and every step must
    end. If something does not hold, the shortest schedule that shows it is printed step by step, and the
    exit code is 9. The same seed gives the same answer.

    \b
      ps-lab verify-policy my_policies:Buffered --set size=2
      ps-lab verify-policy ssp --set slack=0 --workers 5
    """
    with failures(PolicyError, OverrideError):
        case = Case(policy, _knobs(knobs), workers)
        report = verify(case, schedules=schedules, seed=seed, watch=None if quiet else _progress(schedules))
    finding = report.finding
    if as_json:
        print_json(_facts(report))
    else:
        click.echo("\n".join(_lines(report)))
    context.exit(int(ExitCode.OK if finding is None else ExitCode.VIOLATIONS))


def _knobs(given: tuple[str, ...]) -> dict[str, object]:
    document: dict[str, Any] = {"policy": {}}
    apply_overrides(document, [knob if knob.startswith("policy.") else f"policy.{knob}" for knob in given])
    knobs: dict[str, object] = document["policy"]
    return knobs


def _progress(schedules: int) -> Callable[[str, int], None]:
    screen = Console(stderr=True, highlight=False, soft_wrap=True)
    last = time.monotonic()

    def show(what: str, number: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_INTERVAL:
            last = now
            line = f"schedule {number} of {schedules}" if what == "schedules" else f"{what}: {number} acts"
            screen.print(line, markup=False)

    return show


def _lines(report: Report) -> list[str]:
    case, finding = report.case, report.finding
    if finding is None:
        return [
            f"{case.policy} keeps the contract: {report.schedules} schedules with {case.workers} workers, "
            f"{report.acts} acts, no fault found"
        ]
    return [
        f"{case.policy} breaks the contract, in schedule {finding.schedule} (seed {finding.seed}):",
        f"  {finding.fault}",
        "",
        *_shortest(finding),
    ]


def _shortest(finding: Finding) -> list[str]:
    if not finding.trace:
        return [
            f"Playing its {finding.found} acts again does not reproduce the fault; the original acts were:",
            "",
            *finding.case.head,
            "",
            *finding.acts,
        ]
    return [
        f"The shortest schedule found that shows it has {len(finding.acts)} of {finding.found} acts:",
        "",
        finding.trace.rstrip(),
    ]


def _facts(report: Report) -> dict[str, Any]:
    case, finding = report.case, report.finding
    facts: dict[str, Any] = {
        "policy": case.policy,
        "knobs": dict(case.knobs),
        "workers": case.workers,
        "schedules": report.schedules,
        "acts_played": report.acts,
        "holds": finding is None,
    }
    if finding is not None:
        facts |= {
            "fault": finding.fault,
            "schedule": finding.schedule,
            "seed": finding.seed,
            "fewest_workers": finding.case.workers,
            "acts": list(finding.acts),
            "trace": finding.trace,
        }
    return facts
