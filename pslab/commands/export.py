"""The command ``ps-lab export``."""

from pathlib import Path

import click

from pslab.commands.failure import EPILOG, Failure, failures, say_unfinished, writing
from pslab.display.progress import print_json
from pslab.export import (
    OtherWeightsError,
    check_target,
    exported,
    exported_checkpoint,
    is_checkpoint,
    needs_model,
)
from pslab.observe.tensorboard import write_events
from pslab.observe.trace import write_trace
from pslab.replay.execution import Replayed
from pslab.replay.worker_replica import DataError
from pslab.runs import load
from pslab.runs.folder import Run, RunError
from psserver.weights_file import named
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode
from psworker.job.errors import JobError

# Versions between two lines of progress.
EVERY = 500


@click.command(epilog=EPILOG)
@click.argument("folder", metavar="RUN|CHECKPOINT", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="model.keras, weights.safetensors, weights.npz; a name without an ending is the folder of a SavedModel.",
)
@click.option(
    "--tables",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the run's records there instead: runs, contributions, versions, waits, evaluations.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "parquet"]),
    help="Format of the files of --tables.  [default: csv]",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a timeline of the run there instead: when each worker computed, communicated and waited.",
)
@click.option(
    "--tensorboard",
    "events",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write TensorBoard event files there instead.",
)
@click.option(
    "--follow", is_flag=True, help="With --tensorboard: go on writing until the run is over, or Ctrl-C."
)
@click.option(
    "--version",
    type=click.IntRange(min=0),
    metavar="VERSION",
    help="Version to export [default: the last one].",
)
@click.option(
    "--job",
    metavar="FILE:CLASS",
    help="Job that defines the model [default: the one in experiment.toml; runs started by hand have none].",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a sentence.")
def export(
    folder: Path,
    path: Path | None,
    tables: Path | None,
    form: str | None,
    trace: Path | None,
    events: Path | None,
    follow: bool,
    version: int | None,
    job: str | None,
    as_json: bool,
) -> None:
    """Write a run's model for Keras or TensorFlow, its weights for any program, or its records for other tools.

    The files load without this project: keras.models.load_model, tf.saved_model.load, safetensors,
    numpy.load. A Keras model is compiled with the job's Keras loss and metrics, so that evaluate works. A
    .keras file is compiled with the run's optimizer. It also has the optimizer's state, so that fit
    continues where the run ended, if that is known: for a version that a checkpoint has (run.checkpoint_every;
    ps-lab checkpoints lists them) or that is computed again. Model formats need
    TensorFlow and the job's module (at the path in experiment.toml, or --job); the others need neither.
    They run that module: export only folders whose author you trust.

    The last version comes from the run's weights.safetensors. Any other version, and any version of a
    killed run, comes from a checkpoint that has it, else it is computed again from the decision log (see
    ps-lab replay); the exit code is 9 if a contribution differs from the logged one. The folder of a checkpoint,
    which may be a copy, gives the weights of its version. Nothing is overwritten.

    --tables writes the records of the decision log and the metrics, one file for each kind, of one run or of
    all runs in a sweep's folder. In Python, pslab.runs.load(FOLDER) returns the same as pandas frames. Both
    need the extra "frames".

    --trace writes the Trace Event Format (JSON). Open it at https://ui.perfetto.dev, which reads it in your browser
    without sending it anywhere. Every worker has a lane with a slice per ticket, which contains pull, compute and push;
    an arrow leads from each contribution to the update that applied it. Click a slice for its staleness, weight and
    fate. Drops, cancelled tickets, lost and returning workers are marks in the lane.

    --tensorboard writes scalars over the version (loss, evaluation/NAME, staleness/mean, staleness/max,
    samples_per_second, accepted_share) and a histogram of staleness for every 100 versions. Event files of an earlier
    call are replaced. Give each run a folder of its own below the one that TensorBoard shows.

    \b
      ps-lab export runs/digits-sync --to digits.keras
      ps-lab export runs/digits-sweep --tables tables --format parquet
      ps-lab export runs/digits --trace trace.json
      ps-lab export runs/digits --tensorboard runs/events/digits --follow
      ps-lab export runs/digits-async --version 100 --to weights.safetensors
      ps-lab export runs/by-hand --to model.keras --job my_job.py:MyJob
    """
    targets = {"--to": path, "--tables": tables, "--trace": trace, "--tensorboard": events}
    given = [name for name, target in targets.items() if target is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        raise click.UsageError(
            "expected one of --to FILE (a model or weights), --tables DIR (records), --trace FILE and "
            f"--tensorboard DIR, got {got}"
        )
    if path is None and (version is not None or job is not None):
        raise click.UsageError(f"{given[0]}: expected no --version or --job beside it")
    if follow and events is None:
        raise click.UsageError(f"--follow: expected --tensorboard DIR, got {given[0]}")
    if form is not None and tables is None:
        raise click.UsageError(f"--format: expected --tables DIR, got {given[0]}")
    if tables is not None:
        _write_tables(folder, tables, form or "csv", as_json)
        return
    if trace is not None:
        _write_trace(folder, trace, as_json)
        return
    if events is not None:
        _write_events(folder, events, follow, as_json)
        return
    assert path is not None
    _write_model(folder, path, version, job, as_json)


def _write_model(folder: Path, path: Path, version: int | None, job: str | None, as_json: bool) -> None:
    try:
        check_target(path)
        if job is not None and not needs_model(path):
            raise RunError(
                f"--job {job}: expected --to a .keras file or a SavedModel, got {path}, which holds weights only"
            )
        if is_checkpoint(folder):
            if version is not None:
                raise RunError(
                    f"--version {version}: expected a run, got a checkpoint, which has a single version"
                )
            found, optimizer = exported_checkpoint(folder, path)
        else:
            run = Run(folder)
            say_unfinished([run])
            found, optimizer = exported(run, path, version, None if as_json else _progress, job)
    except JobError as error:
        raise Failure(f"{error}\n{error.details}".rstrip(), ExitCode.JOB_FAILED) from error
    except OtherWeightsError as error:
        raise Failure(error, ExitCode.VIOLATIONS) from error
    except (DataError, ExperimentError, RunError) as error:
        raise Failure(f"{folder}: {error}" if isinstance(error, DataError) else error) from error
    size = sum(values.nbytes for values in named(found.arrays, found.tables).values())
    if as_json:
        print_json(
            {"event": "export", "folder": str(folder), "written": str(path)}
            | {
                "version": found.version,
                "origin": found.origin,
                "variables": len(found.arrays),
                "rows": {name: len(ids) for name, (ids, _) in found.tables.items()},
                "bytes": size,
                "optimizer": optimizer,
            }
        )
    else:
        rows = "".join(f", {len(ids)} rows of {name}" for name, (ids, _) in found.tables.items())
        line = f"version {found.version}, {found.origin}: {len(found.arrays)} variables{rows} in {path}"
        click.echo(f"{line}, {optimizer}" if needs_model(path) else line)


def _write_tables(folder: Path, tables: Path, form: str, as_json: bool) -> None:
    with failures(ImportError, RunError), writing(tables):
        frames = load(folder)
        paths = frames.write(tables, form)
    if as_json:
        print_json({"event": "tables", "folder": str(folder), "written": [str(path) for path in paths]})
    else:
        click.echo(
            f"{len(frames.runs)} runs, {len(frames.contributions)} contributions, {len(frames.versions)} versions: "
            f"{', '.join(path.name for path in paths)} in {tables}"
        )


def _write_trace(folder: Path, target: Path, as_json: bool) -> None:
    with failures(RunError), writing(target):
        run = Run(folder)
        say_unfinished([run])
        count = write_trace(run.decisions(), target)
    if as_json:
        print_json({"event": "trace", "folder": str(folder), "written": str(target), "events": count})
    else:
        click.echo(f"trace: {target} ({count} events)")


def _write_events(folder: Path, target: Path, follow: bool, as_json: bool) -> None:
    with failures(RunError):
        if not follow:
            say_unfinished([Run(folder)])
        elif not as_json:
            click.echo(
                f"writing until {folder} is over or Ctrl-C; view it with: tensorboard --logdir {target}",
                err=True,
            )
        points = write_events(folder, target, follow=follow)
    if as_json:
        print_json({"event": "tensorboard", "folder": str(folder), "written": str(target), "points": points})
    else:
        click.echo(f"{folder}: {points} points in {target}; view them with: tensorboard --logdir {target}")


def _progress(replayed: Replayed) -> None:
    if replayed.version and replayed.version % EVERY == 0:
        click.echo(f"version {replayed.version}", err=True)
