"""``ps-lab verify-policy``"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from pslab.commands.failure import EPILOG, Failure
from pslab.display.progress import print_json
from pslab.verify.guarded import Case
from pslab.verify.search import Finding, Report, verify
from psserver.policies import PolicyError, names
from pswire.command.options import completed_by, number_option
from pswire.config.toml import OverrideError, apply_overrides
from pswire.exits import ExitCode

# Between two lines of progress, in seconds.
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
@number_option("--seed", 0, 0, "Of the first schedule.")
@click.option(
    "--save",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where the trace of a fault is written as well.",
)
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
    save: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Does the policy NAME, built in or module:Class of your own, keep the contract?

    Plays random schedules of joins, commits, repetitions, broken connections, losses, returns and ends
    through the servers' own coordinator and a shard. After every step it must hold that committed =
    applied + dropped + pending, that each ticket is granted once and settled once, that nobody waits
    without a reason; at the end that the job ends. The same events must lead to the same decisions, and a step must
    end. When something does not hold, the shortest schedule that shows it is told step by step, and the
    exit code is 9. The same seed gives the same answer.

    \b
      ps-lab verify-policy my_policies:Buffered --set size=2
      ps-lab verify-policy ssp --set slack=0 --workers 5
    """
    try:
        case = Case(policy, _knobs(knobs), workers)
        report = verify(case, schedules=schedules, seed=seed, watch=None if quiet else _progress(schedules))
    except (PolicyError, OverrideError) as error:
        raise Failure(error) from error
    finding = report.finding
    if save is not None and finding is not None and finding.trace:
        save.write_text(finding.trace, encoding="utf-8")
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
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    last = time.monotonic()

    def show(what: str, number: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_INTERVAL:
            last = now
            said = f"schedule {number} of {schedules}" if what == "schedules" else f"{what}: {number} acts"
            console.print(said, markup=False)

    return show


def _lines(report: Report) -> list[str]:
    case, finding = report.case, report.finding
    if finding is None:
        return [
            f"{case.policy} keeps the contract: {report.schedules} schedules with {case.workers} workers, "
            f"{report.events} events, no fault found"
        ]
    return [
        f"{case.policy} breaks the contract, in schedule {finding.schedule} (seed {finding.seed}):",
        f"  {finding.fault}",
        "",
        *_told(finding),
    ]


def _told(finding: Finding) -> list[str]:
    if not finding.trace:
        return [
            f"Playing its {finding.found} acts again does not show it, so they are as they were:",
            "",
            *finding.case.head,
            "",
            *finding.acts,
        ]
    return [
        f"The shortest schedule found that shows it, {len(finding.acts)} acts of {finding.found}:",
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
        "events": report.events,
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
