"""Many light workers in one process and one event loop, steered by the benchmark.

Commands: join {hosts, sessions, nbytes} or echo {port, sessions, nbytes}, which begin; prepared {}, how far that is;
measure {seconds, servers}, a burst during which CPU time of the processes `servers` is read.
"""

import asyncio
import os
import resource
import threading
from collections.abc import Coroutine
from typing import Any

import psutil

from benchmarks.programs.json_commands import serve
from benchmarks.swarm.client import echo, join
from benchmarks.swarm.swarm import Swarm, model_of


class Generator:
    """The commands: main thread; the swarm lives in the thread of its loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="loop", daemon=True).start()
        self._swarm: Swarm | None = None
        self._joining: Any = None

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def join(self, hosts: str, sessions: int, nbytes: int) -> None:
        places = hosts.split(",")
        self._swarm = Swarm(model_of(nbytes, len(places)))
        self._joining = self._submit(join(self._swarm, places, sessions))

    def echo(self, port: int, sessions: int, nbytes: int) -> None:
        self._swarm = Swarm(model_of(nbytes, 1))
        self._joining = self._submit(echo(self._swarm, port, sessions))

    def prepared(self) -> dict[str, Any]:
        swarm = self._swarm
        assert swarm is not None, "join comes first"
        done = self._joining.done()
        if done:
            self._joining.result()
        waiting = sum(not (member.fresh or not member.alive) for member in swarm.members)
        return {
            "joined": swarm.prepared,
            "done": done,
            # Without a ticket and its version yet.
            "waiting": waiting,
            "lost": len(swarm.losses),
            "losses": sorted(set(swarm.losses))[:3],
        }

    def measure(self, seconds: float, servers: list[int]) -> dict[str, Any]:
        assert self._swarm is not None, "join comes first"
        watched = [psutil.Process(pid) for pid in servers]
        result: dict[str, Any] = self._submit(self._swarm.measure(seconds, watched)).result()
        return result


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    steered = Generator()
    serve(
        {
            "join": steered.join,
            "echo": steered.echo,
            "prepared": steered.prepared,
            "measure": steered.measure,
        }
    )
    # Two thousand connections are the system's to close.
    os._exit(0)
