"""What a server must never forget of the log: its promise, the newest configuration, and its own incarnation."""

import json
from pathlib import Path
from typing import Final

from psserver.checkpoint import UnwritableError, files
from psserver.checkpoint.disk import RealDisk
from psserver.replication import Config, Disk, Member
from psserver.service.job.log_file import LogError

FOLDER: Final = "replication"


class Promises:
    """The file of server `server` in the run folder. Each write is on the disk when it returns."""

    def __init__(self, out: Path, server: int) -> None:
        self._path = out / FOLDER / f"server-{server}.json"
        self._disk = RealDisk()

    def read(self) -> tuple[int, Disk] | None:
        """Return incarnation and promise; None if this server never ran. Raises LogError for a damaged file."""
        try:
            found = json.loads(self._path.read_bytes())
            config = found["config"]
            members = tuple(Member(*map(int, each)) for each in config["members"])
            made = Config(int(config["epoch"]), int(config["primary"]), members, int(config["base"]))
            return int(found["incarnation"]), Disk(int(found["promised"]), made)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LogError(
                f"{self._path} cannot be read ({error}): it holds what this server has promised the others, so it "
                "takes no part without it; begin a new run, or one without --replicas from a checkpoint"
            ) from error

    def write(self, incarnation: int, disk: Disk) -> None:
        """Write, and wait for the disk. Raises LogError."""
        config = disk.config
        found = {
            "incarnation": incarnation,
            "promised": disk.promised,
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
