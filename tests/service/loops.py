"""An event loop on a thread of its own, for parts of a server that need no more than that."""

import asyncio
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from psserver.service.guard.calls import Watch
from psserver.service.net.loop import Owner, RunningLoop
from psserver.service.net.sockets import Serve, SocketListener, SocketToken
from tests.service.serving import PATIENCE

Result = TypeVar("Result")


def run(live: Coroutine[Any, Any, Result]) -> Result:
    """Run it to its end on a loop as a server has."""
    with asyncio.Runner(loop_factory=RunningLoop) as runner:
        return runner.run(live)


@contextmanager
def running() -> Iterator[Owner]:
    """Owns whatever is made by its `ask`."""
    owner, begun, loop = Owner(), threading.Event(), RunningLoop()

    async def live() -> None:
        owner.begin()
        begun.set()
        await over.wait()
        # Connections that were cut end in turns of their own.
        for _ in range(3):
            await asyncio.sleep(0)

    def run() -> None:
        loop.run_until_complete(live())
        owner.end()
        loop.close()

    over = asyncio.Event()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert begun.wait(PATIENCE)
    try:
        yield owner
    finally:
        owner.tell(over.set)
        thread.join(PATIENCE)
        assert not thread.is_alive()


class Opened:
    """A listener, asked by the thread that owns it."""

    def __init__(
        self,
        owner: Owner,
        serve: Serve,
        bind: str = "127.0.0.1",
        contexts: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._ask, watch = owner.ask, Watch()
        self.refused: Counter[str] = Counter()
        self._listener = SocketListener(
            serve, owner, bind, watch=watch, contexts=contexts, refused=self.refused
        )
        self._listener.begin()
        owner.ask(lambda: watch.start(owner.loop))

    @property
    def name(self) -> str:
        return self._ask(lambda: self._listener.name)

    @property
    def port(self) -> int:
        return self._ask(lambda: self._listener.port)

    @property
    def connections(self) -> int:
        return self._ask(lambda: len(self._listener.connections))

    @property
    def tokens(self) -> int:
        return self._ask(lambda: self._listener.tokens)

    @property
    def unauthenticated(self) -> int:
        return self._ask(lambda: self._listener.unauthenticated)

    def issue_token(self, fingerprint: bytes = b"") -> SocketToken:
        return self._ask(lambda: self._listener.issue_token(fingerprint))

    def withdraw(self, token: SocketToken) -> None:
        self._ask(token.withdraw)

    def close(self) -> None:
        self._ask(self._listener.close)

    def end(self) -> None:
        """After the loop."""
        self._listener.end()


@contextmanager
def opened(
    serve: Serve, bind: str = "127.0.0.1", contexts: Callable[[], ssl.SSLContext] | None = None
) -> Iterator[Opened]:
    with running() as owner:
        made = Opened(owner, serve, bind, contexts)
        try:
            yield made
        finally:
            made.close()
    made.end()
