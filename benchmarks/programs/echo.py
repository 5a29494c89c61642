"""The other end of the raw limits: swallows a socket's bytes, echoes gRPC messages.

Says {"grpc": port, "socket": port, "unix": name, "port": port, "tokens": [hex]},
then serves until its input ends; the tokens are for one connection each, on the Unix
socket "unix" or the TCP port "port". A socket connection carries 8 bytes with the number of bytes that follow,
again and again; each batch is answered with one byte. Carry, and a connection with a token, keep
messages until one begins with the byte 1, and then send them all back.
"""

import asyncio
import json
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc

from psserver.service.net.loop import Owner
from psserver.service.net.sockets import SocketListener
from psserver.service.net.streams import Stream
from pswire.command.process import keep_large_blocks
from pswire.transport.channels import SERVER_OPTIONS

BUFFER = 2 << 20


def swallow(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_drain, args=(connection,), daemon=True).start()


def _drain(connection: socket.socket) -> None:
    buffer = bytearray(BUFFER)
    view = memoryview(buffer)
    with connection:
        while header := connection.recv(8, socket.MSG_WAITALL):
            (left,) = struct.unpack("<Q", header)
            while left:
                left -= connection.recv_into(view[: min(left, BUFFER)])
            connection.sendall(b".")


def _unary(request: bytes, context: grpc.ServicerContext) -> bytes:
    return request


def _stream(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    yield from requests


def _carry(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    held = []
    for request in requests:
        held.append(request)
        if request[0]:
            yield from held
            held.clear()


async def _carry_on_socket(stream: Stream) -> None:
    held: list[bytes] = []
    while (message := await stream.receive()) is not None:
        # It lies where the next one will.
        held.append(bytes(message))
        if message[0]:
            for kept in held:
                await stream.send([kept])
            held.clear()


async def _listening(opened: "Future[SocketListener]", over: asyncio.Event) -> None:
    owner = Owner()
    owner.begin()
    opened.set_result(SocketListener(_carry_on_socket, owner))
    await over.wait()


def _listen() -> tuple[dict[str, Any], list[str]]:
    """Where a listener on a loop of its own is, and two tokens."""
    opened: Future[SocketListener] = Future()
    loop = asyncio.new_event_loop()
    threading.Thread(
        target=loop.run_until_complete, args=(_listening(opened, asyncio.Event()),), daemon=True
    ).start()
    listener = opened.result()

    async def said() -> tuple[dict[str, Any], list[str]]:
        places = {"unix": listener.name, "port": listener.port}
        return places, [listener.issue_token().token.hex() for _ in range(2)]

    return asyncio.run_coroutine_threadsafe(said(), loop).result()


def main() -> None:
    keep_large_blocks()
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=swallow, args=(listener,), daemon=True).start()
    server = grpc.server(ThreadPoolExecutor(4), options=SERVER_OPTIONS(10.0))
    places, tokens = _listen()
    methods: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Stream": grpc.stream_stream_rpc_method_handler(_stream),
        "Carry": grpc.stream_stream_rpc_method_handler(_carry),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ports = {"grpc": port, "socket": listener.getsockname()[1], **places}
    print(json.dumps({**ports, "tokens": tokens}), flush=True)
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    main()
