"""Run folders: what a run leaves behind, its decision log, its report, and its records as frames (`load`)."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pslab.runs.frames import Frames


def load(folder: str | Path) -> "Frames":
    """Read a run folder, or a folder of run folders, as pandas frames. See `pslab.runs.frames`."""
    from pslab.runs import frames

    return frames.load(folder)
