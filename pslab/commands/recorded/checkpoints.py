"""``ps-lab checkpoints``"""

from pathlib import Path
from typing import Any

import click

from pslab.commands.failure import EPILOG, Failure, trust_option
from pslab.display.progress import print_json
from pslab.runs.checkpoints import Fate, Listed, Shelf
from pslab.runs.folder import later_jobs
from psserver.checkpoint import CheckpointError
from psserver.checkpoint.rewind import RewindError
from pswire.exits import ExitCode

LABELS = {
    Fate.LATEST: "whole",
    Fate.NAMED: "whole",
    Fate.ALONE: "whole",
    Fate.VOID: "VOID",
    Fate.REFUSED: "REFUSED",
    Fate.DAMAGED: "DAMAGED",
}


@click.command(epilog=EPILOG)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per checkpoint.")
@trust_option
@click.pass_context
def checkpoints(context: click.Context, folder: Path, as_json: bool, trust: bool) -> None:
    """List and verify the checkpoints of a run folder, or of a folder of checkpoints, and say what --resume does.

    Of a run of several jobs (job-2, job-3, ...) those of all are listed.

    Every byte is read and held against the digests of the manifest. Each is "whole" (--resume latest takes the newest
    of these, --resume NAME any), VOID (the run's log went another way since, or it is of another run), REFUSED (the
    run's experiment.toml is of another policy, optimizer, number of workers or seed), or DAMAGED: then the exit code
    is 9. What was not written to its end counts as damaged; the file is named.
    """
    shelves = [_shelf(each, trust) for each in (folder, *later_jobs(folder))]
    if not any(names for _, names in shelves):
        raise Failure(f"{shelves[0][0].store.root}: holds no checkpoints")
    intact = True
    for shelf, names in shelves:
        if len(shelves) > 1 and names and not as_json:
            click.echo(f"{shelf.store.root}:")
        intact &= _list(shelf, names, as_json)
    context.exit(int(ExitCode.OK if intact else ExitCode.VIOLATIONS))


def _shelf(folder: Path, trust: bool) -> tuple[Shelf, list[str]]:
    """What is there, by name. Raises Failure."""
    try:
        shelf = Shelf(folder, trusted=trust)
        return shelf, shelf.store.names()
    except (CheckpointError, RewindError) as error:
        raise Failure(error) from error


def _list(shelf: Shelf, names: list[str], as_json: bool) -> bool:
    """Say what becomes of each; whether nothing is damaged. Raises Failure."""
    intact = True
    if shelf.log is not None and shelf.log.damage:
        click.echo(f"DAMAGED  {shelf.log.damage}: it proves nothing, and no checkpoint needs it", err=as_json)
        intact = False
    try:
        for found in shelf.listed(names):
            intact &= found.fate is not Fate.DAMAGED
            if as_json:
                print_json({"folder": str(shelf.store.root), **_record(found)})
            else:
                click.echo(_text(found))
    except CheckpointError as error:
        raise Failure(error) from error
    return intact


def _resume(found: Listed) -> str | None:
    """What to give to --resume; None where nobody goes on from it."""
    return {Fate.LATEST: "latest", Fate.NAMED: found.name}.get(found.fate)


def _record(found: Listed) -> dict[str, Any]:
    record: dict[str, Any] = {
        "checkpoint": found.name,
        "problem": found.reason or None,
        "void": found.fate in (Fate.VOID, Fate.ALONE),
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
        f"         {f'--resume {resume} goes on from it' if resume else found.reason}"
    )
