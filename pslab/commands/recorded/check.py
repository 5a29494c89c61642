"""``ps-lab check``"""

from pathlib import Path

import click

from pslab.check.checker import check_run
from pslab.check.render import result_json, result_lines
from pslab.commands.failure import EPILOG, Failure, console
from pslab.display.progress import print_json
from pslab.runs.folder import Run, RunError, later_jobs
from pswire.exits import ExitCode


@click.command(epilog=EPILOG)
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="All violations and counts, one JSON object per job.")
@click.pass_context
def check(context: click.Context, folders: tuple[Path, ...], as_json: bool) -> None:
    """Verify a run's decision log.

    Reads RUN/decisions.jsonl once and reports every violation with its line and a sentence:
    numbering, tickets, accounting, versions, staleness, weights, the policy's own guarantee,
    and that summary.json, metrics.jsonl and weights.safetensors agree. Prints the staleness conservation law.
    A run that was killed, or still goes on, is checked up to the last whole line of its log; a note
    says so, and is no failure. Later jobs of the run's servers, such as RUN/job-2, are checked, too.
    Exits with 9 when a check fails.
    """
    kept = True
    for folder in (job for run in folders for job in (run, *later_jobs(run))):
        try:
            verdict = check_run(Run(folder))
        except RunError as error:
            raise Failure(error) from error
        kept &= verdict.ok
        if as_json:
            print_json(result_json(str(folder), verdict))
        else:
            for line in result_lines(str(folder), verdict):
                console().print(line)
    context.exit(int(ExitCode.OK if kept else ExitCode.VIOLATIONS))
