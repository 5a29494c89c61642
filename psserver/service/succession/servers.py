"""A ps-server through all its jobs: one after another where the servers stay, each by a `Server` of its own."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

from psserver.service.server import Server
from psserver.service.server_settings import ServerSettings
from psserver.service.succession.successor import Successor, numbered
from pswire.exits import ExitCode

Announce = Callable[[str, Mapping[str, Any]], None]


class Servers:
    """`first` is what the first job is started with, `again` makes that of each other one: policies have a state, and
    jobs a name, of their own. `announce` is called as by `Server`.
    """

    def __init__(
        self, first: ServerSettings, again: Callable[[], ServerSettings], announce: Announce
    ) -> None:
        """Raises what `Server` raises."""
        self._again, self._announce = again, announce
        self._out = first.out
        self._interrupted = False
        self._present = Server(first, announce)

    def run(self) -> ExitCode:
        """Serve until no job follows. Raises as `Server.run`."""
        while True:
            code = self._present.run()
            successor = self._present.successor
            if successor is None or self._interrupted:
                return code
            self._present = self._following(successor)
            if self._interrupted:
                return code

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """A signal handler, as `Server.interrupt`."""
        self._interrupted = True
        self._present.interrupt(number, frame)

    def _following(self, successor: Successor) -> Server:
        """At the same addresses, with a folder of its own, or going on in one."""
        before = self._present
        out = None if self._out is None else numbered(self._out, successor.folder)
        settings = replace(
            self._again(),
            hosts=before.hosts,
            metrics_port=before.metrics_port,
            out=out,
            resume="latest" if successor.goes_on else None,
        )
        return Server(settings, self._announce, self._out, successor.folder)
