"""Somebody who connects, steered by the benchmark: again and again to one port, or as many workers that join at once.

Commands: knock {port, kind, seconds, files}, join {hosts, workers, threads, connect}. Only connecting is measured:
what knocks is a bare socket, with Python's `ssl` around it where there are `files` (of psworker.connect).
"""

import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import psworker
from benchmarks.programs.json_commands import serve
from pswire.security.files import TlsFiles
from pswire.transport.framed_socket import HEAD, TOKEN_BYTES

HOST = "127.0.0.1"
# Seconds: a server that does not answer by then does not.
PATIENCE = 30.0
# What a worker says first on the data line: a token. The server ends the connection, for it is nobody's.
STRANGE = HEAD.pack(TOKEN_BYTES, 0) + bytes(TOKEN_BYTES)


def knock(port: int, kind: str, seconds: float, files: dict[str, str] | None = None) -> dict[str, Any]:
    """One connection after the other, each until the server has shown that it believes this end: gRPC says its first
    words, the data line has read a token. `kind`: "grpc" or "socket"."""
    context = None if files is None else _context(files)
    if context is not None and kind == "grpc":
        context.set_alpn_protocols(["h2"])
    begin, count = time.perf_counter(), 0
    while not count or time.perf_counter() - begin < seconds:
        _connection(port, kind, context)
        count += 1
    return {"count": count, "seconds": time.perf_counter() - begin}


def _connection(port: int, kind: str, context: ssl.SSLContext | None) -> None:
    with socket.create_connection((HOST, port), PATIENCE) as plain:
        # As workers do: the token would wait for the acknowledgement of the handshake's last words.
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            _answered(plain, kind)
            return
        with context.wrap_socket(plain, server_hostname=HOST) as encrypted:
            _answered(encrypted, kind)


def _answered(connected: socket.socket, kind: str) -> None:
    if kind == "grpc":
        if not connected.recv(1):
            raise RuntimeError("expected gRPC's first words, but the server ended the connection")
        return
    connected.sendall(STRANGE)
    if connected.recv(1):
        raise RuntimeError("expected the server to end a connection with a strange token, but it spoke")


def _context(files: dict[str, str]) -> ssl.SSLContext:
    paths = {name.removeprefix("tls_"): Path(path) for name, path in files.items()}
    return TlsFiles(**paths).read().client_context()


def join(hosts: str, workers: int, threads: int, connect: dict[str, Any]) -> dict[str, Any]:
    """So many workers of one process, `threads` at the same time: seconds until the last has joined."""
    variables = {"v": np.zeros(1000, np.float32)}

    def one(_: int) -> psworker.Session:
        return psworker.connect(hosts, variables, server_timeout=PATIENCE, **connect)

    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        sessions = list(pool.map(one, range(workers)))
    seconds = time.perf_counter() - begin
    for session in sessions:
        session.close()
    return {"seconds": seconds}


if __name__ == "__main__":
    serve({"knock": knock, "join": join})
