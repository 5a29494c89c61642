"""ps-server that dies of SIGKILL once, at a moment of the job's end.

python -m tests.cluster.dying_server MOMENT MARKER OPTIONS...

The one process that creates the file MARKER dies; those that are started later, by the same command, do not.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from psserver.checkpoint.disk import RealDisk
from psserver.service.job import run_log
from psserver.service.job.follower import Follower
from psserver.service.life import results
from psserver.service.net import pulls
from psserver.service.net.follow import FollowRpc
from psserver.service.store import checkpoints, shard_part

# Server 0: what it is about to do.
COORDINATOR = {
    "end": "the log has its stop, if it is written",
    "last checkpoint": "complete the last checkpoint, of which all parts are there",
    "final pull": "ask the others for the final weights",
    "weights": "rename the weights, which are written aside",
    "summary": "write the summary; the weights are there",
    "farewell": "tell the others that they may end; all is written",
}
# Server 1.
SHARD = {
    "its part": "write its part of the last checkpoint",
    "its weights": "give its final weights",
    "its end": "end, as it is told",
}


class Death:
    """At `moment`, once."""

    def __init__(self, moment: str, marker: Path) -> None:
        self._moment, self._marker = moment, marker

    def reach(self, moment: str) -> None:
        if moment != self._moment:
            return
        try:
            os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        self._die()

    def _die(self) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("SIGKILL was survived")

    def before(self, owner: Any, name: str, moment: str, when: Any = lambda *_: True) -> None:
        """When `owner.name` is called with such arguments."""
        original = getattr(owner, name)

        def called(*arguments: Any, **named: Any) -> Any:
            if when(*arguments):
                self.reach(moment)
            return original(*arguments, **named)

        mock.patch.object(owner, name, called).start()

    def install(self, versions: int) -> None:
        """`versions`: that the job makes."""
        self.before(results.Results, "begin", "end")
        self.before(
            checkpoints.Checkpoints, "_complete", "last checkpoint", lambda _, m, *__: m.version == versions
        )
        self.before(results, "_final_weights", "final pull")
        self.before(run_log.RunLog, "write_summary", "summary")
        self.before(Follower, "shutdown", "farewell")
        self.before(
            shard_part, "save_shard", "its part", lambda _, __, state: state.facts.version == versions
        )
        self.before(FollowRpc, "_end", "its end")
        begin, rename = pulls.Outgoing.begin, RealDisk.rename

        async def giving(host: Any, request: Any, caller: Any) -> Any:
            if host.server and not request.worker:
                self.reach("its weights")
            return await begin(host, request, caller)

        def renaming(disk: RealDisk, old: Path, new: Path) -> None:
            if new.name.startswith("weights"):
                self.reach("weights")
            rename(disk, old, new)

        mock.patch.object(pulls.Outgoing, "begin", giving).start()
        mock.patch.object(RealDisk, "rename", renaming).start()


def main() -> None:
    moment, marker, versions = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    own = SHARD if moment in SHARD else COORDINATOR
    index = sys.argv[sys.argv.index("--task-index") + 1]
    if index == ("1" if own is SHARD else "0"):
        Death(moment, marker).install(versions)
    sys.argv[1:] = sys.argv[4:]
    from psserver.__main__ import run

    run()


if __name__ == "__main__":
    main()
