"""Run folders: what a run leaves behind, its decision log, its report, its records as frames (`load`), its `rows`."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pswire.extras import how_to_install

if TYPE_CHECKING:
    from pslab.runs.frames import RunFrames
    from pslab.runs.saved_rows import Reader


def load(folder: str | Path) -> "RunFrames":
    """Read a run folder, or a folder of run folders, as pandas frames. See `pslab.runs.frames`.

    Raises ImportError without pandas.
    """
    if find_spec("pandas") is None:
        raise ImportError(f"frames need pandas: {how_to_install('frames')}")
    from pslab.runs import frames

    return frames.load(folder)


def rows(folder: str | Path) -> "Reader":
    """Return what reads rows of sparse tables in a run's newest checkpoint, or in one of its checkpoints' folders.

    For `psworker.keras.read_rows(model, pslab.runs.rows(FOLDER))`. See `pslab.runs.saved_rows`. Raises RunError.
    """
    from pslab.runs import saved_rows

    return saved_rows.reader(Path(folder))
