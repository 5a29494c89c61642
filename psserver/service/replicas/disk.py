"""What a server must never forget of the log: its promise, the newest configuration, and its own incarnation."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from psserver.checkpoint import UnwritableError, files
from psserver.checkpoint.disk import RealDisk
from psserver.replication import Config, Disk, Member
from psserver.service.job.log_file import LogError

FOLDER: Final = "replication"


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the file of a server holds. `generation`: how often all servers began anew, from a checkpoint."""

    generation: int
    incarnation: int
    disk: Disk


class Promises:
    """The file of server `server` in the run folder. Each write is on the disk when it returns."""

    def __init__(self, out: Path, server: int) -> None:
        self._path = out / FOLDER / f"server-{server}.json"
        self._disk = RealDisk()

    def read(self) -> Remembered | None:
        """Return what was written; None if this server never ran. Raises LogError for a damaged file."""
        try:
            found = json.loads(self._path.read_bytes())
            config = found["config"]
            members = tuple(Member(*map(int, each)) for each in config["members"])
            made = Config(int(config["epoch"]), int(config["primary"]), members, int(config["base"]))
            disk = Disk(int(found["promised"]), made)
            return Remembered(int(found.get("generation", 0)), int(found["incarnation"]), disk)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LogError(
                f"{self._path} cannot be read ({error}): it holds what this server has promised the others, so it "
                "takes no part without it; end all servers, remove that folder, and start all of them with --resume "
                "latest, or begin a new run"
            ) from error

    def write(self, remembered: Remembered) -> None:
        """Write, and wait for the disk. Raises LogError."""
        config = remembered.disk.config
        found = {
            "generation": remembered.generation,
            "incarnation": remembered.incarnation,
            "promised": remembered.disk.promised,
            "config": {
                "epoch": config.epoch,
                "primary": config.primary,
                "members": [[each.server, each.incarnation] for each in config.members],
                "base": config.base,
            },
        }
        try:
            self._disk.make_folder(self._path.parent)
            files.write(self._disk, self._path, [memoryview(json.dumps(found).encode())])
            self._disk.sync_folder(self._path.parent)
        except (OSError, UnwritableError) as error:
            raise LogError(f"{self._path}: a promise cannot be written: {error}") from error
