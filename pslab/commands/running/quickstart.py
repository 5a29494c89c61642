"""``ps-lab quickstart``"""

from pathlib import Path

import click
from rich.console import Console

from pslab.check.render import result_lines
from pslab.commands.failure import EPILOG, Failure, console
from pslab.display.progress import Display, choose
from pslab.launch.outcome import outcome_text
from pslab.launch.quickstart import POLICIES, Stop, finished_runs, picture, tour
from pslab.runs.folder import RunError
from pslab.runs.table import rich_table, rows
from pswire.config.experiment import ExperimentError


@click.command(epilog=EPILOG)
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key in all three experiments."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs/quickstart"),
    show_default=True,
    help="Where the run folders and the picture go; former ones are replaced.",
)
@click.pass_context
def quickstart(context: click.Context, overrides: tuple[str, ...], out: Path) -> None:
    """Train on handwritten digits under sync, async and bounded, and compare them.

    Three runs of 2 servers and 3 workers each, every one checked, with a table and a picture
    at the end. Fails when a run or the check of its decision log fails.
    """
    screen = console()

    def display(policy: str) -> Display:
        screen.rule(f"{policy} ({POLICIES.index(policy) + 1} of {len(POLICIES)})", align="left")
        return choose()

    try:
        code = tour(out, overrides, display, lambda stop: _print(screen, stop))
        screen.rule()
        screen.print(rich_table(rows(finished_runs(out))))
        drawn = picture(out)
    except (ExperimentError, RunError) as error:
        raise Failure(error) from error
    screen.print(f"run folders: {', '.join(str(out / policy) for policy in POLICIES)}")
    if drawn is not None:
        screen.print(f"picture: {drawn}")
    context.exit(int(code))


def _print(screen: Console, stop: Stop) -> None:
    screen.print(outcome_text(stop.finished))
    if stop.verdict is None:
        screen.print("check: there is no decision log")
    elif stop.verdict.ok:
        screen.print(
            f"check: {stop.verdict.entries} log entries, all checks passed; {stop.verdict.conservation}"
        )
    else:
        for line in result_lines(stop.policy, stop.verdict):
            screen.print(line)
