"""The other end of the raw limits: swallows a socket's bytes, echoes gRPC messages.

Says {"grpc": port, "socket": port}, then serves until its input ends. A socket
connection carries 8 bytes with the number of bytes that follow, again and
again; each batch is answered with one byte.
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


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=swallow, args=(listener,), daemon=True).start()
    server = grpc.server(ThreadPoolExecutor(4))
    methods: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Stream": grpc.stream_stream_rpc_method_handler(_stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(json.dumps({"grpc": port, "socket": listener.getsockname()[1]}), flush=True)
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    main()
