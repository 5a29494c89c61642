"""Commands that read a run folder: ``ps-lab check`` and ``checkpoints``."""

from pathlib import Path
from typing import Any

import click

from pslab.check.checker import check_run, result_json, result_lines
from pslab.commands.failure import EPILOG, Failure, console, failures
from pslab.display.progress import print_json
from pslab.runs.checkpoints import Fate, Listed, Shelf
from pslab.runs.folder import Run, RunError, later_jobs
from psserver.checkpoint import CheckpointError
from psserver.checkpoint.rewind import RewindError
from pswire.exits import ExitCode
from pswire.logs.lines import escaped_lines


@click.command(epilog=EPILOG)
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--json", "as_json", is_flag=True, help="Print all violations and counts, one JSON object per job."
)
@click.pass_context
def check(context: click.Context, folders: tuple[Path, ...], as_json: bool) -> None:
    """Verify a run's decision log.

    Reads RUN/decisions.jsonl once and reports every violation with its line and a sentence:
    numbering, tickets, accounting, versions, staleness, weights, the policy's own guarantee, and
    the agreement of summary.json, metrics.jsonl and weights.safetensors. Prints the staleness conservation
    law. An unfinished run is checked up to the last complete line of its log; a note says so, which is no
    failure. Later jobs of the run's servers, such as RUN/job-2, are checked too. Exits with 9 when a check
    fails.
    """
    kept = True
    for folder in (job for run in folders for job in (run, *later_jobs(run))):
        with failures(RunError):
            verdict = check_run(Run(folder))
        kept &= verdict.ok
        if as_json:
            print_json(result_json(str(folder), verdict))
        else:
            for line in result_lines(str(folder), verdict):
                console().print(line)
    context.exit(int(ExitCode.OK if kept else ExitCode.VIOLATIONS))


LABELS = {Fate.LATEST: "whole", Fate.NAMED: "whole", Fate.VOID: "VOID", Fate.DAMAGED: "DAMAGED"}


@click.command(epilog=EPILOG)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per checkpoint.")
@click.pass_context
def checkpoints(context: click.Context, folder: Path, as_json: bool) -> None:
    """List and verify the checkpoints of a run folder or of a folder of checkpoints, with their effect on --resume.

    For a run of several jobs (job-2, job-3, ...), the checkpoints of all jobs are listed.

    Every byte is compared with the digests of the manifest. A checkpoint is "whole" (--resume latest takes the newest
    of these, --resume NAME any), VOID (the run's log has diverged from it, it belongs to another run, or no log lies
    beside the folder of checkpoints, as with a copy of that alone), or DAMAGED, which also means incomplete and names
    the file; then the exit code is 9. Whether a changed experiment can go on from it, --resume says.
    """
    shelves = [_shelf(each) for each in (folder, *later_jobs(folder))]
    if not any(names for _, names in shelves):
        raise Failure(f"{shelves[0][0].store.root}: contains no checkpoints")
    intact = True
    for shelf, names in shelves:
        if len(shelves) > 1 and names and not as_json:
            click.echo(f"{shelf.store.root}:")
        intact &= _list_checkpoints(shelf, names, as_json)
    context.exit(int(ExitCode.OK if intact else ExitCode.VIOLATIONS))


def _shelf(folder: Path) -> tuple[Shelf, list[str]]:
    """Return the checkpoints of a folder and their names. Raises Failure."""
    with failures(CheckpointError, RewindError):
        shelf = Shelf(folder)
        return shelf, shelf.store.names()


def _list_checkpoints(shelf: Shelf, names: list[str], as_json: bool) -> bool:
    """Print each checkpoint; return whether none is damaged. Raises Failure."""
    intact = True
    if shelf.log is not None and shelf.log.damage:
        click.echo(f"DAMAGED  {shelf.log.damage}: it proves nothing, and no checkpoint needs it", err=as_json)
        intact = False
    with failures(CheckpointError):
        for found in shelf.listed(names):
            intact &= found.fate is not Fate.DAMAGED
            if as_json:
                print_json({"folder": str(shelf.store.root), **_record(found)})
            else:
                click.echo(escaped_lines(_text(found)))
    return intact


def _resume(found: Listed) -> str | None:
    """Return the value of --resume that takes this checkpoint; None if none does."""
    return {Fate.LATEST: "latest", Fate.NAMED: found.name}.get(found.fate)


def _record(found: Listed) -> dict[str, Any]:
    record: dict[str, Any] = {
        "checkpoint": found.name,
        "problem": found.reason or None,
        "void": found.fate is Fate.VOID,
        "resume": _resume(found),
        "fate": str(found.fate),
    }
    about = found.about
    if about is None or found.fate is Fate.DAMAGED:
        return record
    return record | {
        "version": about.version,
        "entry": about.entry,
        "t": about.t,
        "servers": about.servers,
        "bytes": about.nbytes,
        "policy": about.policy.get("name"),
        "optimizer": about.optimizer.get("name"),
    }


def _text(found: Listed) -> str:
    label, about = f"{LABELS[found.fate]:<7}", found.about
    if about is None or found.fate is Fate.DAMAGED:
        return f"{label}  {found.reason}"
    resume = _resume(found)
    return (
        f"{label}  {found.name}: version {about.version}, {about.t:.1f} s, {about.servers} servers, "
        f"{about.nbytes / (1 << 20):.1f} MiB, {about.policy.get('name')}, {about.optimizer.get('name')}\n"
        f"         {f'--resume {resume} resumes from it' if resume else found.reason}"
    )
