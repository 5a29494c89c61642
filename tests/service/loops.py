"""An event loop on a thread of its own, for parts of a server that need no more than that."""

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from psserver.service.errors import denied
from psserver.service.guard.authorization import Authorizer
from psserver.service.guard.calls import Watch
from psserver.service.net.connection import SocketConnection
from psserver.service.net.sockets import Guest, Serve, SocketListener
from psserver.service.runtime import RunningLoop, Runtime
from tests.asking import ask
from tests.service.serving import PATIENCE

Result = TypeVar("Result")
# How the first frame of a member begins.
CLAIM = b"member"


def run(live: Coroutine[Any, Any, Result]) -> Result:
    """Run it to its end on a loop as a server has."""
    with asyncio.Runner(loop_factory=RunningLoop) as runner:
        return runner.run(live)


def begun() -> Runtime:
    """Return what a server has of its machine, within the loop of `run`."""
    made = Runtime()
    made.begin()
    return made


@contextmanager
def running() -> Iterator[Runtime]:
    """Owns whatever is made in its loop (`ask`)."""
    runtime, begun, loop = Runtime(), threading.Event(), RunningLoop()

    async def live() -> None:
        runtime.begin()
        begun.set()
        await over.wait()
        # Connections that were cut end in turns of their own.
        for _ in range(3):
            await asyncio.sleep(0)

    def run() -> None:
        loop.run_until_complete(live())
        loop.close()

    over = asyncio.Event()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert begun.wait(PATIENCE)
    try:
        yield runtime
    finally:
        runtime.tell(over.set)
        thread.join(PATIENCE)
        assert not thread.is_alive()


class Opened:
    """A listener, asked by the thread that owns it."""

    def __init__(
        self,
        runtime: Runtime,
        serve: Serve,
        bind: str = "127.0.0.1",
        contexts: Callable[[], ssl.SSLContext] | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        self._runtime, watch = runtime, Watch()
        self.watch = watch
        authorizer = authorizer or Authorizer()
        self.refused = authorizer.refused
        # First frames whose membership has ended.
        self._ended: set[bytes] = set()

        async def admit(first: bytes, connection: SocketConnection) -> Guest:
            if not first.startswith(CLAIM):
                raise denied("expected a member")
            return Guest(accepted, lambda: first in self._ended)

        async def accepted(connection: SocketConnection) -> None:
            await connection.send((b"",))
            await serve(connection)

        self._listener = SocketListener(
            admit, runtime, bind, watch=watch, contexts=contexts, authorizer=authorizer
        )
        self._listener.begin()
        ask(runtime, lambda: watch.start(runtime.loop))

    @property
    def name(self) -> str:
        return ask(self._runtime, lambda: self._listener.name)

    @property
    def port(self) -> int:
        return ask(self._runtime, lambda: self._listener.port)

    @property
    def connections(self) -> int:
        return ask(self._runtime, lambda: len(self._listener.connections))

    @property
    def unauthenticated(self) -> int:
        return ask(self._runtime, lambda: self._listener.unauthenticated)

    def end_membership(self, claim: bytes) -> None:
        """Of whoever has begun with that frame."""
        ask(self._runtime, lambda: self._ended.add(claim))

    def close(self) -> None:
        ask(self._runtime, self._listener.close)

    def end(self) -> None:
        """After the loop."""
        self._listener.end()


@contextmanager
def opened(
    serve: Serve,
    bind: str = "127.0.0.1",
    contexts: Callable[[], ssl.SSLContext] | None = None,
    authorizer: Authorizer | None = None,
) -> Iterator[Opened]:
    with running() as runtime:
        made = Opened(runtime, serve, bind, contexts, authorizer)
        try:
            yield made
        finally:
            made.close()
    made.end()
