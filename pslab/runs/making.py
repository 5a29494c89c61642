"""The folder of a run that begins (a free name, or an empty folder) or goes on (the folder of a former run)."""

import shutil
from contextlib import suppress
from pathlib import Path

from pslab.runs.folder import (
    ADDRESS,
    CHECKPOINTS,
    DECISIONS,
    EXPERIMENT,
    LOGS,
    METRICS,
    OBSERVER_FILES,
    PROMETHEUS,
    SAVED,
    SECRET,
    SUMMARY,
    WEIGHTS,
    Run,
    RunError,
    later_jobs,
)
from psserver.checkpoint import CheckpointError, FolderLock, Store
from psserver.checkpoint.resumption import AUTO


def open_folder(out: Path | None, name: str, force: bool, going_on: str | None) -> tuple[Path, str | None]:
    """Return the folder of the run `name` as an absolute path, and the checkpoint from which it goes on, or None.

    Raises RunError as `make_folder` and `Run` do.
    """
    if going_on is None:
        return make_folder(out or free_folder(name), force), None
    assert out is not None
    if later := later_jobs(out):
        raise RunError(
            f"{out}: its servers have begun more jobs after the first one, the last is {later[-1]}, and no script can "
            "go on in the middle of several jobs: expected a new run (another --out, or --force)"
        )
    if going_on == AUTO and not (out / DECISIONS).is_file():
        return make_folder(out), None
    run = Run(out)
    _refuse_links(run.path)
    return run.path.resolve(), going_on


def free_folder(name: str, root: Path = Path("runs")) -> Path:
    """Return the first of ``runs/name``, ``runs/name-2``, ... that does not exist."""
    path, number = root / name, 1
    while path.exists():
        number += 1
        path = root / f"{name}-{number}"
    return path


def make_folder(path: Path, force: bool = False) -> Path:
    """Make an empty run folder at `path`, and return its absolute path.

    A folder with content is refused, unless its run never began. With `force` a former run's files, and only those, are
    removed from it. Raises RunError.
    """
    if path.exists() and not path.is_dir():
        raise RunError(f"{path}: is a file; choose another folder with --out")
    _refuse_links(path)
    if path.is_dir() and any(path.iterdir()):
        if not force and not _never_began(path):
            raise RunError(
                f"{path}: is not empty; choose another with --out, or replace the run with --force"
            )
        if force and not (path / EXPERIMENT).is_file() and not _never_began(path):
            raise RunError(f"{path}: is not empty and holds no former run; --force replaces runs only")
        try:
            _clear(path)
        except (CheckpointError, OSError) as error:
            raise RunError(f"{path}: cannot be replaced: {error}") from error
    try:
        (path / LOGS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path}: cannot be made: {error.strerror}") from error
    return path.resolve()


def _refuse_links(path: Path) -> None:
    """Raise RunError if a folder that is written to and cleared is a link."""
    for name in (LOGS, OBSERVER_FILES):
        if (path / name).is_symlink():
            raise RunError(f"{path / name}: expected a folder of the run itself, got a link: remove it")


def _never_began(path: Path) -> bool:
    """Return True if the folder has only files made before a run's first process starts."""
    return (path / LOGS).is_dir() and {each.name for each in path.iterdir()} <= {
        EXPERIMENT,
        LOGS,
        OBSERVER_FILES,
    }


def _clear(path: Path) -> None:
    """Remove a run's files. Raises CheckpointError, with nothing changed, if a coordinator uses the folder."""
    if (path / CHECKPOINTS).is_dir():
        with FolderLock(path / CHECKPOINTS):
            Store(path / CHECKPOINTS).clear()
    for job in later_jobs(path):
        _clear(job)
        with suppress(OSError):
            # Fails if it has other files.
            job.rmdir()
    for name in (EXPERIMENT, DECISIONS, METRICS, SUMMARY, WEIGHTS, ADDRESS, SECRET, SAVED, PROMETHEUS):
        (path / name).unlink(missing_ok=True)
    for pattern in ("decisions.void-*.jsonl", "summary-*.json", "weights-*.safetensors", "*.part"):
        # Files that former resumes have set aside, and files that a kill has left incomplete.
        for aside in path.glob(pattern):
            aside.unlink()
    # Of a run that was killed.
    shutil.rmtree(path / OBSERVER_FILES, ignore_errors=True)
    for log in (path / LOGS).glob("*.log"):
        log.unlink()
