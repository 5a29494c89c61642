"""Two ways to call a method of a server with raw messages: as gRPC calls its handlers, and over the wire."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol, Self
from unittest import mock

import grpc

from psserver.service import server as server_module


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
    """What a method sees of gRPC: a `grpc.ServicerContext` without a wire."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._cancelled = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    def is_active(self) -> bool:
        return not self._cancelled.is_set() and time.monotonic() < self._end

    def time_remaining(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def cancel(self) -> None:
        self._cancelled.set()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self._callbacks.append(callback)
        return True

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise Refusal(code, details)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def set_trailing_metadata(self, metadata: object) -> None:
        """Nobody reads it."""


class HandlerDoor:
    """Calls handlers as gRPC does, without threads and HTTP/2: thousands of messages a second."""

    def __init__(self, methods: Mapping[str, Any]) -> None:
        self._methods = methods

    def close(self) -> None:
        """Nothing is open."""

    def call(self, path: str, requests: Iterable[bytes], seconds: float) -> Iterator[bytes]:
        handler, call = self._methods[path], Call(seconds)
        # Whoever reads the requests on a thread of its own finds them ended when the call is over.
        given: Iterator[Any] = map(handler.request_deserializer or bytes, requests)
        try:
            for reply in self._replies(handler, given, call):
                yield reply if handler.response_serializer is None else handler.response_serializer(reply)
        except (Refusal, Broken, GeneratorExit):
            raise
        except Exception as error:
            # As gRPC says it: a method is to refuse, never to fail.
            logging.getLogger("grpc._server").exception("Exception calling application: %s", path)
            raise Refusal(grpc.StatusCode.UNKNOWN, repr(error)) from error
        finally:
            call.cancel()

    @staticmethod
    def _replies(handler: Any, given: Iterator[Any], call: Call) -> Iterator[Any]:
        if handler.request_streaming and handler.response_streaming:
            yield from handler.stream_stream(given, call)
        elif handler.request_streaming:
            yield handler.stream_unary(given, call)
        elif handler.response_streaming:
            yield from handler.unary_stream(next(given), call)
        else:
            yield handler.unary_unary(next(given), call)


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

    def listed(server: Any, services: Mapping[str, Mapping[str, Any]]) -> Any:
        found.append(
            {f"/{s}/{m}": handler for s, methods in services.items() for m, handler in methods.items()}
        )
        return add(server, services)

    with mock.patch.object(server_module, "add_services", listed):
        yield found
