"""The memory of the logs that a server must never lose: promises, newest configurations, and its own incarnation.

Beside it the job's end, for a server that was not there to hear of it.
"""

import fcntl
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from psserver.checkpoint import UnwritableError, files
from psserver.checkpoint.disk import RealDisk
from psserver.replication import Config, StableMemory, SyncMember
from psserver.service.job.log_file import LogError
from pswire.exits import ExitCode

FOLDER: Final = "replication"
ENDED: Final = "ended.json"


class SecondProcessError(LogError):
    """Another process is this server already. It may be about to end, where its node was lost."""

    code = ExitCode.ADDRESS_IN_USE


class SupersededError(LogError):
    """A newer process is this server."""

    code = ExitCode.REFUSED


@dataclass(frozen=True, slots=True)
class Remembered:
    """The contents of a server's file. `generation`: how often all servers began anew, from a checkpoint. `disks`: by
    log."""

    generation: int
    incarnation: int
    disks: tuple[StableMemory, ...]

    def with_promise(self, log: int, disk: StableMemory) -> "Remembered":
        """Return this with another promise in that log."""
        return replace(self, disks=(*self.disks[:log], disk, *self.disks[log + 1 :]))


class Promises:
    """The file of server `server` in the run folder. Each write is on the disk when it returns.

    `hold` makes it this process's, until `close` or the process's end. A file system may give up the lock of a node
    that it does not hear, and another process begin there; so each write looks whether one has.
    """

    def __init__(self, out: Path, server: int) -> None:
        self._path = out / FOLDER / f"server-{server}.json"
        self._disk, self._server = RealDisk(), server
        self._lock: IO[bytes] | None = None
        # What was read last.
        self._former: Remembered | None = None

    def hold(self) -> None:
        """Keep every other process from being this server: two with one file could promise against each other.

        Raises SecondProcessError if one is it already, or was since this one has read, and LogError if there can be no
        lock.
        """
        path = self._path.with_suffix(".lock")
        try:
            self._disk.make_folder(path.parent)
            lock = path.open("ab")
        except (OSError, UnwritableError) as error:
            raise LogError(f"{path}: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise SecondProcessError(
                f"{path}: expected one process for server {self._server} of this run, got a second one: end the first"
            ) from error
        self._lock, former = lock, self._former
        if self.read() != former:
            self.close()
            raise SecondProcessError(
                f"{path}: another process was server {self._server} a moment ago: start this one again"
            )

    def close(self) -> None:
        """Let another process of this server have the file."""
        if self._lock is not None:
            self._lock.close()

    def read(self) -> Remembered | None:
        """Return what was written; None if this server never ran. Raises LogError for a damaged file."""
        try:
            found = json.loads(self._path.read_bytes())
            disks = tuple(map(_promise, found["logs"]))
            self._former = Remembered(int(found["generation"]), int(found["incarnation"]), disks)
        except FileNotFoundError:
            self._former = None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LogError(
                f"{self._path} cannot be read ({error}): it holds what this server has promised the others, so it "
                "takes no part without it; end all servers, remove that folder, and start all of them with --resume "
                "latest, or begin a new run"
            ) from error
        return self._former

    def newest_generation(self) -> int:
        """Return the newest generation of any server that left a promise here; -1 if there is none."""
        found = [-1]
        for path in self._path.parent.glob("server-*.json"):
            # A damaged file is its own server's to complain of.
            with suppress(OSError, ValueError, KeyError, TypeError):
                found.append(int(json.loads(path.read_bytes())["generation"]))
        return max(found)

    def of_all(self, servers: int) -> tuple[Remembered, ...] | None:
        """Return what all servers had written at one moment; None if one never ran, is in another generation, or writes
        just now."""
        found = self._of_all(servers)
        if found is None or len({each.generation for each in found}) > 1:
            return None
        # No file ever becomes what it was before.
        return found if self._of_all(servers) == found else None

    def _of_all(self, servers: int) -> tuple[Remembered, ...] | None:
        found = []
        for server in range(servers):
            # A damaged file is its own server's to complain of.
            with suppress(LogError):
                read = Promises(self._path.parent.parent, server).read()
                found += [] if read is None else [read]
        return tuple(found) if len(found) == servers else None

    def write(self, remembered: Remembered) -> None:
        """Write, and wait for the disk. Raises LogError, and SupersededError if a later process has written."""
        try:
            former = self.read()
        except LogError as error:
            raise LogError(f"{self._path}: a promise cannot be written: {error.__cause__}") from error
        began = remembered.generation, remembered.incarnation
        if former is not None and (former.generation, former.incarnation) > began:
            raise SupersededError(
                f"{self._path}: a newer process is server {self._server}: this one promises nothing more"
            )
        found = {
            "generation": remembered.generation,
            "incarnation": remembered.incarnation,
            "logs": [_written(disk) for disk in remembered.disks],
        }
        try:
            self._disk.make_folder(self._path.parent)
            files.write(self._disk, self._path, [memoryview(json.dumps(found).encode())])
            self._disk.sync_folder(self._path.parent)
        except (OSError, UnwritableError) as error:
            raise LogError(f"{self._path}: a promise cannot be written: {error}") from error

    def write_end(self, generation: int, code: ExitCode, reason: str) -> None:
        """Leave word that the job of that generation is over. Raises LogError."""
        path, found = (
            self._path.with_name(ENDED),
            {"generation": generation, "exit_code": code, "reason": reason},
        )
        try:
            files.write(self._disk, path, [memoryview(json.dumps(found).encode())])
        except UnwritableError as error:
            raise LogError(str(error)) from error

    def read_end(self, generation: int) -> tuple[ExitCode, str] | None:
        """Return with which exit code and why the job of that generation has ended; None if it has not."""
        # Who cannot read it waits, as before the end.
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(self._path.with_name(ENDED).read_bytes())
            if found["generation"] == generation:
                return ExitCode(found["exit_code"]), str(found["reason"])
        return None


def _written(disk: StableMemory) -> dict[str, Any]:
    config = disk.config
    members = [[each.server, each.incarnation] for each in config.members]
    described = {"epoch": config.epoch, "primary": config.primary, "members": members, "base": config.base}
    return {"promised": disk.promised, "config": described}


def _promise(found: Mapping[str, Any]) -> StableMemory:
    config = found["config"]
    members = tuple(SyncMember(*map(int, each)) for each in config["members"])
    made = Config(int(config["epoch"]), int(config["primary"]), members, int(config["base"]))
    return StableMemory(int(found["promised"]), made)
