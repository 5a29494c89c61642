"""Two ways to call a method of a server with raw messages: as gRPC calls its handlers, and over the wire."""

import asyncio
import logging
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol, Self
from unittest import mock

import grpc

from psserver.service import server as server_module
from psserver.service.net.loop import Owner
from tests.service.serving import PATIENCE


class Refusal(Exception):
    """How a call ended that did not end well."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code, self.details = code, details


class Broken(grpc.RpcError):
    """The stream of requests broke off: what gRPC raises in a method that reads it."""


class Door(Protocol):
    """One server's methods."""

    def call(self, path: str, requests: Iterable[bytes], seconds: float) -> Iterator[bytes]:
        """The replies. Raises Refusal. The caller is gone after `seconds`."""
        ...

    def close(self) -> None: ...


class Call:
    """What a method sees of gRPC: a `grpc.aio.ServicerContext` without a wire. Its requests are read on a thread of
    the attacker's."""

    def __init__(self, requests: Iterator[bytes], loop: asyncio.AbstractEventLoop, reading: Executor) -> None:
        self._requests, self._loop, self._reading = requests, loop, reading
        self.replies: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()

    async def read(self) -> object:
        # Those of a Broken stream raise.
        message = await self._loop.run_in_executor(self._reading, next, self._requests, None)
        return grpc.aio.EOF if message is None else message

    async def write(self, message: bytes) -> None:
        self.replies.put(message)

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise Refusal(code, details)

    def peer(self) -> str:
        """Every attacker is on this machine."""
        return "ipv4:127.0.0.1:1"

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Nobody shows a certificate."""
        return {}

    def invocation_metadata(self) -> tuple[tuple[str, bytes], ...]:
        """Nobody proves a secret."""
        return ()

    async def send_initial_metadata(self, metadata: object) -> None:
        """Nobody reads it."""


class HandlerDoor:
    """Calls handlers as gRPC does, without HTTP/2: thousands of messages a second. `owner`: of the server."""

    def __init__(self, methods: Mapping[str, Any], owner: Owner) -> None:
        self._methods, self._owner = methods, owner
        # Read by threads of ours, however many attackers wait in their requests.
        self._reading = ThreadPoolExecutor(64, thread_name_prefix="rpc_attack")

    def close(self) -> None:
        self._reading.shutdown(wait=False)

    def call(self, path: str, requests: Iterable[bytes], seconds: float) -> Iterator[bytes]:
        handler, loop = self._methods[path], self._owner.loop
        call = Call(iter(requests), loop, self._reading)

        async def serve() -> None:
            try:
                async with asyncio.timeout(seconds):
                    await handler.stream_stream(None, call)
            except TimeoutError:
                call.replies.put(Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, "the caller is gone"))
            except BaseException as error:
                call.replies.put(error)
                if isinstance(error, asyncio.CancelledError):
                    raise
            else:
                call.replies.put(None)

        serving = asyncio.run_coroutine_threadsafe(serve(), loop)
        try:
            while (reply := call.replies.get(timeout=PATIENCE)) is not None:
                if isinstance(reply, BaseException):
                    raise self._ended(path, reply)
                yield reply
        finally:
            serving.cancel()

    @staticmethod
    def _ended(path: str, error: BaseException) -> BaseException:
        if isinstance(error, Refusal | Broken):
            return error
        if isinstance(error, asyncio.CancelledError):
            return Refusal(grpc.StatusCode.CANCELLED, "")
        # As gRPC says it: a method is to refuse, never to fail.
        logging.getLogger("grpc._server").error("Exception calling application: %s", path, exc_info=error)
        return Refusal(grpc.StatusCode.UNKNOWN, repr(error))


class WireDoor:
    """Calls a server over gRPC."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    @classmethod
    def to(cls, host: str) -> Self:
        return cls(grpc.insecure_channel(host))

    def close(self) -> None:
        self._channel.close()

    def call(self, path: str, requests: Iterable[bytes], seconds: float) -> Iterator[bytes]:
        # The requests are read on another thread, perhaps before there is a call to cancel.
        called = threading.Event()

        def whole() -> Iterator[bytes]:
            try:
                yield from requests
            except Broken:
                called.wait(seconds)
                replies.cancel()

        replies = self._channel.stream_stream(path, None, None)(whole(), timeout=seconds)
        called.set()
        try:
            yield from replies
        except grpc.RpcError as error:
            raise Refusal(error.code(), error.details() or "") from error
        finally:
            replies.cancel()


@contextmanager
def listing_methods() -> Iterator[list[dict[str, Any]]]:
    """The methods of each server that is started within, by path, in the order of their starts."""
    found: list[dict[str, Any]] = []
    add = server_module.add_services

    def listed(server: Any, services: Mapping[str, Mapping[str, Any]], rpc: Any) -> Any:
        found.append(
            {f"/{s}/{m}": handler for s, methods in services.items() for m, handler in methods.items()}
        )
        return add(server, services, rpc)

    with mock.patch.object(server_module, "add_services", listed):
        yield found
