"""The other end of the raw limits: swallows a socket's bytes, echoes gRPC messages.

Says {"grpc": port, "socket": port, "unix": name, "port": port, "tokens": [hex]},
then serves until its input ends; the tokens are for one connection each, on the Unix
socket "unix" or the TCP port "port". A socket connection carries 8 bytes with the number of bytes that follow,
again and again; each batch is answered with one byte. Carry, and a connection with a token, keep
messages until one begins with the byte 1, and then send them all back.
"""

import json
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from psserver.service.transport.sockets import Caller, SocketListener
from pswire.process import keep_large_blocks
from pswire.transport.channels import SERVER_OPTIONS
from pswire.transport.framed_socket import Parts
from pswire.transport.frames import Message

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


def _carry_on_socket(messages: Iterator[Message], caller: Caller) -> Iterator[Parts]:
    held: list[bytes] = []
    for message in messages:
        # It lies where the next one will.
        held.append(bytes(message))
        if message[0]:
            yield from ([kept] for kept in held)
            held.clear()


def main() -> None:
    keep_large_blocks()
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=swallow, args=(listener,), daemon=True).start()
    server = grpc.server(ThreadPoolExecutor(4), options=SERVER_OPTIONS(10.0))
    unix = SocketListener(_carry_on_socket)
    methods: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Stream": grpc.stream_stream_rpc_method_handler(_stream),
        "Carry": grpc.stream_stream_rpc_method_handler(_carry),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ports = {"grpc": port, "socket": listener.getsockname()[1], "unix": unix.name, "port": unix.port}
    print(json.dumps({**ports, "tokens": [unix.issue_token().token.hex() for _ in range(2)]}), flush=True)
    sys.stdin.read()
    unix.close()
    server.stop(None)


if __name__ == "__main__":
    main()
