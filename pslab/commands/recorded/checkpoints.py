"""``ps-lab checkpoints``"""

from pathlib import Path
from typing import Any

import click

from pslab.commands.failure import EPILOG, Failure
from pslab.display.progress import print_json
from psserver.checkpoint import CheckpointError, Store
from psserver.checkpoint.rewind import LogIndex, RewindError
from pswire.exits import ExitCode

FOLDER = "checkpoints"


@click.command(epilog=EPILOG)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per checkpoint.")
@click.pass_context
def checkpoints(context: click.Context, folder: Path, as_json: bool) -> None:
    """List and verify the checkpoints of a run folder, or of a folder of checkpoints.

    Every byte is read and held against the digests of the manifest; a run's log says which of them its
    --resume could go on from. What was not written to its end, or was damaged, is said with the file's
    name; then the exit code is 9.
    """
    of_run = (folder / FOLDER).is_dir()
    store = Store(folder / FOLDER if of_run else folder)
    try:
        names = store.names()
        log = LogIndex(folder) if of_run and (folder / "decisions.jsonl").is_file() else None
    except (CheckpointError, RewindError) as error:
        raise Failure(error) from error
    if not names:
        raise Failure(f"{store.root}: holds no checkpoints")
    intact = True
    if log is not None and log.damage:
        click.echo(f"DAMAGED  {log.damage}: the log counts up to the entry before", err=as_json)
        intact = False
    for name in names:
        found = _verified(store, name, log)
        intact &= found["problem"] is None or found["void"]
        if as_json:
            print_json(found)
        else:
            click.echo(_line(found))
    context.exit(int(ExitCode.OK if intact else ExitCode.VIOLATIONS))


def _verified(store: Store, name: str, log: LogIndex | None) -> dict[str, Any]:
    found: dict[str, Any] = {"checkpoint": name, "problem": None, "void": False}
    try:
        about = store.verify(name)
    except CheckpointError as error:
        return found | {"problem": str(error)}
    found |= {"version": about.version, "entry": about.entry, "t": about.t, "servers": about.servers}
    found |= {
        "bytes": about.nbytes,
        "policy": about.policy.get("name"),
        "optimizer": about.optimizer.get("name"),
    }
    lack = log.lacks(about.entry, about.job, about.version) if log is not None else None
    return found | {"problem": lack, "void": lack is not None}


def _line(found: dict[str, Any]) -> str:
    if found["problem"] is not None and not found["void"]:
        return f"DAMAGED  {found['problem']}"
    size = found["bytes"] / (1 << 20)
    state = "VOID   " if found["void"] else "whole  "
    line = (
        f"{state}  {found['checkpoint']}: version {found['version']}, {found['t']:.1f} s, "
        f"{found['servers']} servers, {size:.1f} MiB, {found['policy']}, {found['optimizer']}"
    )
    return f"{line}\n         {found['problem']}" if found["void"] else line
