"""A disk of the World: files of a real folder, of which a lost process loses what it has not synced."""

import errno
from collections.abc import Callable
from pathlib import Path

from psserver.checkpoint.disk import AppendedFile, RealDisk, RealFile
from tests.world.clockwork import Process

# Says of a step with the file of that name whether it fails.
Fails = Callable[[str], bool]


class Unsynced:
    """What a process has written and not synced: by file, how many bytes are safe."""

    def __init__(self, process: Process, fails: Fails) -> None:
        self.process, self.fails = process, fails
        self.safe: dict[Path, int] = {}
        process.lost.append(self.lose)

    def step(self, what: str, path: Path) -> None:
        """Take a step on the disk. Raises OSError; nothing of a process that is lost is written any more."""
        if not self.process.alive:
            raise OSError(errno.EIO, "the process is lost")
        if self.fails(path.name):
            self.process.world.say(self.process.name, "disk fails", what, path.name.split(".")[0])
            raise OSError(errno.ENOSPC, "No space left on device")

    def lose(self) -> None:
        """Leave of each file what is safe, and a drawn part of the rest, up to any byte."""
        for path, safe in sorted(self.safe.items()):
            if path.is_file() and (size := path.stat().st_size) > safe:
                kept = self.process.world.dice.randint(safe, size)
                self.process.world.say(
                    self.process.name, "loses", size - kept, "bytes of", path.name.split(".")[0]
                )
                with path.open("r+b") as file:
                    file.truncate(kept)


class WorldFile(RealFile):
    def __init__(self, path: Path, mode: int, unsynced: Unsynced) -> None:
        unsynced.step("create", path)
        super().__init__(path, mode)
        self._path, self._unsynced = path, unsynced
        unsynced.safe[path] = 0

    def reserve(self, nbytes: int) -> None:
        """Do nothing: there is room."""

    def write(self, data: memoryview) -> int:
        self._unsynced.step("write", self._path)
        return super().write(data)

    def sync(self) -> None:
        self._unsynced.step("sync", self._path)
        self._unsynced.safe[self._path] = self._written


class WorldLog(AppendedFile):
    def __init__(self, path: Path, mode: int, unsynced: Unsynced, *, anew: bool) -> None:
        unsynced.step("open", path)
        super().__init__(path, mode, anew=anew)
        self._path, self._unsynced = path, unsynced
        # A log that goes on was synced by whoever cut it.
        unsynced.safe[path] = self.size

    def write(self, data: bytes | bytearray) -> int:
        self._unsynced.step("write", self._path)
        return super().write(data)

    def sync(self) -> None:
        self._unsynced.step("sync", self._path)
        self._unsynced.safe[self._path] = self.size


class WorldDisk(RealDisk):
    """The disk as one process has it."""

    def __init__(self, unsynced: Unsynced, mode: int) -> None:
        super().__init__(mode)
        self._unsynced = unsynced

    def create(self, path: Path) -> RealFile:
        return WorldFile(path, self._mode, self._unsynced)

    def append(self, path: Path, *, anew: bool) -> AppendedFile:
        return WorldLog(path, self._mode, self._unsynced, anew=anew)

    def rename(self, old: Path, new: Path) -> None:
        self._unsynced.step("rename", new)
        super().rename(old, new)
        if old in self._unsynced.safe:
            self._unsynced.safe[new] = self._unsynced.safe.pop(old)

    def sync_folder(self, path: Path) -> None:
        """Do nothing: names last at once in the World."""
