"""ps-server that is killed at chosen calls of its disk: each once, in order, whichever process comes to it.

python -m tests.cluster.fault_points FOLDER POINTS OPTIONS...

POINTS: SERVER:CALL:FILE,... CALL is a method of the disk (`rename` means the new name). Number N of them is marked by
a file FOLDER/point-N. None happens before there is a file FOLDER/complete, which the first complete checkpoint makes.
"""

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from psserver.checkpoint.disk import RealDisk


@dataclass(frozen=True)
class Point:
    number: int
    server: int
    call: str
    file: str

    @classmethod
    def listed(cls, text: str) -> "list[Point]":
        found = []
        for number, point in enumerate(text.split(",")):
            server, call, file = point.split(":")
            found.append(cls(number, int(server), call, file))
        return found


def marker(folder: Path, number: int) -> Path:
    return folder / f"point-{number}"


class Points:
    """Of one process."""

    def __init__(self, folder: Path, points: list[Point], server: int) -> None:
        self._folder, self._points, self._server = folder, points, server

    def reach(self, call: str, file: str) -> None:
        point = next((each for each in self._points if not marker(self._folder, each.number).exists()), None)
        if point is None or (point.server, point.call, point.file) != (self._server, call, file):
            return
        if not (self._folder / "complete").exists():
            return
        marker(self._folder, point.number).touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        for call in {"rename", *(point.call for point in self._points)}:
            self._before(call, getattr(RealDisk, call))

    def _before(self, call: str, original: Any) -> None:
        def called(disk: RealDisk, *paths: Path) -> Any:
            name = paths[-1].name
            self.reach(call, name)
            done = original(disk, *paths)
            if (call, name) == ("rename", "manifest.json"):
                (self._folder / "complete").touch()
            return done

        mock.patch.object(RealDisk, call, called).start()


def main() -> None:
    folder, points = Path(sys.argv[1]), Point.listed(sys.argv[2])
    server = int(sys.argv[sys.argv.index("--task-index") + 1])
    Points(folder, points, server).install()
    sys.argv[1:] = sys.argv[3:]
    from psserver.__main__ import run

    run()


if __name__ == "__main__":
    main()
