"""The checkpoints of a run, and which of them `--resume` could take."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from pslab.runs.folder import CHECKPOINTS, DECISIONS
from psserver.checkpoint import CheckpointError, Manifest, Store, look
from psserver.checkpoint.rewind import LogIndex


class Fate(StrEnum):
    """What `--resume` could do with a checkpoint.

    LATEST: `latest` and `auto` take it. NAMED: it must be named. VOID: it does not belong to the log, or there is no
    log to go on with. DAMAGED: it is unreadable or incomplete.
    """

    LATEST = "latest"
    NAMED = "named"
    VOID = "void"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint and its fate. `reason`: why a resume does not take it. `about`: None if it is unreadable."""

    name: str
    fate: Fate
    about: Manifest | None
    reason: str = ""


def _no_part(_: Manifest) -> tuple[int, ...]:
    """Keep no arrays of the servers' parts: only their digests are verified."""
    return ()


class Shelf:
    """The checkpoints of a run folder, or of a folder of checkpoints, in a run folder or elsewhere.

    `log`: of their run; None if there is none. Raises RewindError if there is a log that cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        of_run = (folder / CHECKPOINTS).is_dir()
        self.store = Store(folder / CHECKPOINTS if of_run else folder)
        above = folder if of_run else folder.resolve().parent
        lies_in_run = of_run or folder.resolve().name == CHECKPOINTS
        self.log = LogIndex(above) if lies_in_run and (above / DECISIONS).is_file() else None

    def listed(self, names: list[str]) -> Iterator[Listed]:
        """Yield each named checkpoint, in this order, with every byte verified. Skip one that is removed meanwhile."""
        found = [self._listed(name) for name in names]
        latest = next((each for each in reversed(found) if each.fate is Fate.NAMED), None)
        for each in found:
            if each.fate is Fate.DAMAGED and each.name not in self.store.names():
                continue
            yield replace(each, fate=Fate.LATEST) if each is latest else each

    def _listed(self, name: str) -> Listed:
        looked = look(self.store, name, self.lacks, _no_part)
        if looked.checkpoint is not None:
            return Listed(name, Fate.NAMED, looked.about)
        if looked.about is None or not looked.other:
            return Listed(name, Fate.DAMAGED, looked.about, looked.reason)
        try:
            self.store.verify(name)
        except CheckpointError as error:
            return Listed(name, Fate.DAMAGED, looked.about, str(error))
        return Listed(name, Fate.VOID, looked.about, looked.reason)

    def lacks(self, about: Manifest) -> str | None:
        """Say why a checkpoint does not belong to the log; None if it does."""
        if self.log is None:
            return f"there is no {DECISIONS} beside it, which a resume needs"
        return self.log.lacks(about.entry, about.job, about.version)
