"""What a server has of its machine: a clock, an event loop, threads, a disk, and connections.

Everything in `psserver.service` takes them from the one `Runtime` that it is given, so that a test can give it others.
"""

import asyncio
import errno
import gc
import selectors
import socket
from collections.abc import Callable
from typing import Final, TypeVar

import grpc

from psserver.checkpoint.disk import RealDisk
from psserver.service.guard.machine import check_threads
from psserver.service.pools import Pool
from pswire import running
from pswire.addresses import Address
from pswire.security.credentials import Credentials
from pswire.transport import socket_handshake as handshake
from pswire.transport.channels import Options
from pswire.transport.connecting import add_port, nobody_listens, open_aio_channel

Made = TypeVar("Made")
# Threads of a server, whatever the number of its workers: for passes over large arrays, and for what waits for the
# disk or for a name.
PASS_THREADS: Final = 2
WAIT_THREADS: Final = 8


class BindError(OSError):
    """An address that cannot be listened on."""


class TurnSelector(selectors.DefaultSelector):
    """A selector that first calls what waits for the end of the loop's turn: the loop selects once per turn."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[], object]] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.waiting:
            waiting, self.waiting = self.waiting, []
            for act in waiting:
                act()
            # The calls may have made tasks ready.
            timeout = 0.0
        return super().select(timeout)


class RunningLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers count the time in which this process ran, so that no pause ends a wait at once."""

    def __init__(self) -> None:
        self._turns = TurnSelector()
        super().__init__(self._turns)

    def time(self) -> float:
        return running.now()

    def at_end_of_turn(self, act: Callable[[], object]) -> None:
        """Call `act`, which raises nothing, once all callbacks of this turn have run. What it makes ready runs next."""
        self._turns.waiting.append(act)


class Runtime:
    """What a server has of its machine. The thread that runs the event loop owns it; nothing of it has a lock.

    `passes`: threads for passes over large arrays.
    """

    def __init__(self) -> None:
        self._loop: RunningLoop | None = None
        self.passes = self.pool(PASS_THREADS, "heavy")
        self._waits = self.pool(WAIT_THREADS, "waits")

    # Time, and the loop

    def start(self) -> None:
        """Start the threads of passes now; later the system may refuse. Raises RuntimeError, OSError."""
        check_threads()
        self.passes.begin()

    def new_loop(self) -> RunningLoop:
        """Return an event loop, for `begin` to be called in."""
        return RunningLoop()

    def now(self) -> float:
        """Return the time of the loop: the seconds that this process has run."""
        return self.loop.time()

    def working(self) -> float:
        """Return the seconds by which work is measured, which may keep the interpreter and so looks like a pause."""
        return running.system()

    @property
    def loop(self) -> RunningLoop:
        assert self._loop is not None, "the server does not run yet"
        return self._loop

    def begin(self) -> None:
        """Use the running loop from now on."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, RunningLoop)
        self._loop = loop

    @property
    def runs(self) -> bool:
        """Whether the loop runs. Before and after that nothing changes. From any thread."""
        return self._loop is not None and self._loop.is_running()

    def tell(self, act: Callable[[], object]) -> None:
        """Call `act` on the loop soon. From any thread or signal handler; does nothing once the loop has ended."""
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:
            # The loop is closed.
            return

    # Threads

    def pool(self, threads: int, name: str) -> "Pool":
        """Return so many threads for one kind of work. Close them at the end."""
        return Pool(lambda: self.loop, threads, name)

    async def beside(self, work: Callable[[], Made]) -> Made:
        """Return or raise what `work` does, which may wait for a disk or a name and touches nothing of the loop's."""
        return await self._waits.aside(work)

    def close(self) -> None:
        """Stop the threads. Call it behind the last task."""
        self.passes.close()
        # A name or a disk may take its time, and nobody needs it any more.
        self._waits.close(wait=False)

    # The disk, and connections

    def disk(self, mode: int = 0o600) -> RealDisk:
        """Return the disk of run folders and checkpoints. `mode`: the permissions of new files."""
        return RealDisk(mode)

    def serve(self, options: Options, most: int) -> grpc.aio.Server:
        """Return a server of gRPC with no port yet. `most`: calls at once."""
        return grpc.aio.server(options=options, maximum_concurrent_rpcs=most)

    def listen(self, server: grpc.aio.Server, bind: Address, credentials: Credentials) -> int:
        """Let the server listen; return the port, which the system chooses if that of `bind` is 0. Raises BindError."""
        return _listen(server, bind, credentials)

    def dial(self, address: Address, options: Options, credentials: Credentials) -> grpc.aio.Channel:
        """Open a channel to another server."""
        return open_aio_channel(str(address), options, credentials)

    async def nobody_listens(self, address: Address) -> bool:
        """Return whether the system at the address refuses connections. False for silence."""
        return await self.beside(lambda: nobody_listens(address))

    def listen_tcp(self, bind: str, port: int) -> socket.socket:
        """Listen for payloads of other machines. Raises SocketError."""
        return handshake.listen_tcp(bind, port)

    def listen_unix(self) -> tuple[socket.socket, str]:
        """Listen for payloads of this machine, at the name that is returned. Raises SocketError."""
        return handshake.listen_unix()


def _listen(server: grpc.aio.Server, bind: Address, credentials: Credentials) -> int:
    """Let `server` listen on `bind`; return the port, which the system chooses if that of `bind` is 0.

    Raises BindError if none of the addresses that `bind` stands for is free. gRPC would listen on any that is, so
    they are checked first. Another process may still be faster between this check and gRPC's attempt.
    """
    _check_free(bind)
    try:
        port = add_port(server, str(bind), credentials)
    except RuntimeError as error:
        raise _bind_error(bind) from error
    if port == 0:
        raise _bind_error(bind)
    return port


def _bind_error(bind: Address, reason: str = "is another process using it?") -> BindError:
    return BindError(f"cannot listen on {bind}: {reason}")


def _check_free(bind: Address) -> None:
    try:
        found = socket.getaddrinfo(bind.host, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise _bind_error(bind, f"{error.strerror}; is the name right?") from error
    failures = [_failure(family, place) for family, *_, place in found]
    if None in failures:
        return
    taken = next((failure for failure in failures if failure and failure.errno == errno.EADDRINUSE), None)
    if taken is not None:
        raise _bind_error(bind) from taken
    raise _bind_error(bind, f"{failures[0].strerror}" if failures[0] else "it has no address") from failures[
        0
    ]


def _failure(family: int, place: tuple[object, ...]) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            # As gRPC does: a port is free again as soon as its process has ended.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(place)
    except OSError as error:
        return error
    return None


def freeze_gc() -> None:
    """Exclude all present objects from garbage collection. From any thread.

    Modules and compiled loops are some 180,000 objects; a collection of them would stop the loop for 130 ms.
    Members and their connections, a tenth of that, come later and stay included.
    """
    gc.freeze()
