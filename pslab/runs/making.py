"""A new run folder: a free name for it, and an empty one, in place of a former run's where that is wanted."""

from pathlib import Path

from pslab.runs.folder import (
    ADDRESS,
    CHECKPOINTS,
    DECISIONS,
    EXPERIMENT,
    LOGS,
    METRICS,
    PROMETHEUS,
    SUMMARY,
    TENSORBOARD,
    TRACE,
    WEIGHTS,
    RunError,
)
from psserver.checkpoint import CheckpointError, FolderLock, Store


def free_folder(name: str, root: Path = Path("runs")) -> Path:
    """The first of ``runs/name``, ``runs/name-2``, ... that does not exist."""
    path, number = root / name, 1
    while path.exists():
        number += 1
        path = root / f"{name}-{number}"
    return path


def make_folder(path: Path, force: bool = False) -> Path:
    """An empty run folder at `path`, as an absolute path.

    A folder that holds something is refused; with `force` a former run's files are removed
    from it, and only those. RunError says what is in the way.
    """
    if path.exists() and not path.is_dir():
        raise RunError(f"{path}: is a file; choose another folder with --out")
    if path.is_dir() and any(path.iterdir()):
        if not force:
            raise RunError(
                f"{path}: is not empty; choose another with --out, or replace the run with --force"
            )
        if not (path / EXPERIMENT).is_file():
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


def _clear(path: Path) -> None:
    """Raises CheckpointError, with nothing changed, where a coordinator still works in it."""
    if (path / CHECKPOINTS).is_dir():
        with FolderLock(path / CHECKPOINTS):
            Store(path / CHECKPOINTS).clear()
    for name in (EXPERIMENT, DECISIONS, METRICS, SUMMARY, WEIGHTS, ADDRESS, TRACE, PROMETHEUS):
        (path / name).unlink(missing_ok=True)
    for pattern in ("decisions.void-*.jsonl", "summary-*.json", "weights-*.safetensors"):
        # What former resumes have put aside.
        for aside in path.glob(pattern):
            aside.unlink()
    for log in (path / LOGS).glob("*.log"):
        log.unlink()
    for events in (path / TENSORBOARD).glob("events.out.tfevents.*"):
        events.unlink()
