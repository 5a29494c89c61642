"""Whatever kind of call is under way when a server ends, or its connection breaks, gRPC's word for it is one of those
after which a caller tries again."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import grpc
import pytest

from psserver.service.guard.calls import Watch
from psserver.service.net.registration import Call, Registration
from pswire.bounds import LARGEST
from pswire.transport.channels import CHANNEL_OPTIONS, SERVER_OPTIONS
from pswire.transport.failures import CallEnding, may_pass
from tests.patience import PATIENCE
from tests.relay import Relay
from tests.repetitions import FIRST_SEED

OPTIONS = CHANNEL_OPTIONS(10.0)
# Of messages; the larger ones travel in many frames.
SIZES = (10, 10_000, 2_000_000)


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods of these tests take the largest of their messages."""
    for method in ("Echo", "Answer"):
        monkeypatch.setitem(LARGEST, f"/t.S/{method}", SIZES[-1])


class Server:
    """In a thread of its own. `answered`: released with every answer."""

    def __init__(self) -> None:
        self.answered = threading.Semaphore(0)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._start(), self.loop).result(PATIENCE)

    async def _start(self) -> int:
        self._server = grpc.aio.server(options=SERVER_OPTIONS(10.0))
        rpc = Registration(Watch(), lambda nbytes: 3600.0)
        methods = {
            "Echo": rpc.method("/t.S/Echo", self._echo),
            "Answer": rpc.method("/t.S/Answer", self._answer),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.S", methods),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return port

    async def _echo(self, call: Call) -> None:
        while (message := await call.receive()) is not None:
            await call.send((message,))
            self.answered.release()

    async def _answer(self, call: Call) -> None:
        message = await call.receive() or b""
        for _ in range(10):
            await call.send((message,))
            self.answered.release()

    def stop(self, grace: float | None) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(grace), self.loop).result(PATIENCE)

    def close(self) -> None:
        self.stop(None)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()


def unary(address: str, chance: Random) -> None:
    with grpc.insecure_channel(address, OPTIONS) as channel:
        while True:
            channel.unary_unary("/t.S/Echo", None, None)(bytes(chance.choice(SIZES)))


def stream(address: str, chance: Random) -> None:
    def requests() -> Iterator[bytes]:
        while True:
            yield bytes(chance.choice(SIZES))

    with grpc.insecure_channel(address, OPTIONS) as channel:
        for _ in channel.stream_stream("/t.S/Echo", None, None)(requests()):
            pass


async def aio_unary(channel: grpc.aio.Channel, chance: Random) -> None:
    while True:
        await channel.unary_unary("/t.S/Echo", None, None)(bytes(chance.choice(SIZES)))


async def aio_answers(channel: grpc.aio.Channel, chance: Random) -> None:
    while True:
        async for _ in channel.unary_stream("/t.S/Answer", None, None)(bytes(chance.choice(SIZES))):
            pass


async def aio_stream(channel: grpc.aio.Channel, chance: Random) -> None:
    call: Any = channel.stream_stream("/t.S/Echo", None, None)()
    ending = CallEnding(call)

    async def write() -> None:
        while True:
            await call.write(bytes(chance.choice(SIZES)))

    writing = asyncio.create_task(write())
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.RpcError as error:
        raise await ending.explained(error) from error
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


def in_loop(call: Callable[[grpc.aio.Channel, Random], Any]) -> Callable[[str, Random], None]:
    async def play(address: str, chance: Random) -> None:
        async with grpc.aio.insecure_channel(address, OPTIONS) as channel:
            await call(channel, chance)

    return lambda address, chance: asyncio.run(play(address, chance))


CALLS = (unary, stream, in_loop(aio_unary), in_loop(aio_answers), in_loop(aio_stream))


@contextmanager
def all_calls(address: str, chance: Random) -> Iterator[None]:
    """Under way in the block; behind it each must end as one whose server has gone."""
    found: list[object] = []

    def until_it_fails(call: Callable[[str, Random], None], own: Random) -> None:
        try:
            call(address, own)
        except BaseException as error:
            found.append(error)
        else:
            found.append("it ended")

    threads = [
        threading.Thread(target=until_it_fails, args=(call, Random(chance.random())), daemon=True)
        for call in CALLS
    ]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(PATIENCE)
    assert len(found) == len(CALLS)
    assert all(isinstance(error, grpc.RpcError) and may_pass(error) for error in found), found


@pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
def test_a_connection_that_breaks_anywhere(reset: bool) -> None:
    chance = Random(FIRST_SEED)
    server = Server()
    try:
        for most in (60, 3000, 300_000, 5_000_000):
            ways = {chance.choice(("up", "down")): chance.randrange(1, most)}
            relay = Relay(("127.0.0.1", server.port), reset=reset, **ways)
            with all_calls(f"127.0.0.1:{relay.port}", chance):
                pass
            relay.close()
    finally:
        server.close()


@pytest.mark.parametrize("grace", [None, 0, 0.05])
def test_a_server_that_ends(grace: float | None) -> None:
    chance = Random(FIRST_SEED)
    for _ in range(3):
        server = Server()
        with all_calls(f"127.0.0.1:{server.port}", chance):
            for _ in range(chance.randrange(1, 100)):
                assert server.answered.acquire(timeout=PATIENCE)
            server.stop(grace)
        server.close()
