"""HTTP/2 by hand: just enough to say what no client library would."""

import socket
import struct
from collections.abc import Iterable
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
CANCEL = struct.pack(">I", 8)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def headers(method: str, more: Iterable[tuple[str, str]] = ()) -> bytes:
    """Of a gRPC call, as HPACK literals that nobody has to remember."""
    pseudo = ((":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "localhost"))
    usual = (("te", "trailers"), ("content-type", "application/grpc"))
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in (*pseudo, *usual, *more))


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest, length = len(data) - 127, b"\x7f"
    while rest >= 128:
        length, rest = length + bytes([rest % 128 + 128]), rest // 128
    return length + bytes([rest]) + data


class Connection:
    """A TCP connection on which the preface was said. Streams have odd numbers."""

    def __init__(self, address: str, seconds: float) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=seconds)
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
        self._next = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def stream(self) -> int:
        self._next += 2
        return self._next - 2

    def send(self, data: bytes) -> bool:
        """False once the server has closed the connection."""
        try:
            self._socket.sendall(data)
        except (ConnectionError, BrokenPipeError):
            return False
        return True

    def heard(self, kind: int) -> bytes | None:
        """The payload of the next frame of that kind; None when the server closes the connection instead."""
        while (head := self._exactly(9)) is not None:
            length = int.from_bytes(head[:3], "big")
            payload = self._exactly(length)
            if payload is None:
                return None
            if head[3] == kind and not (kind in (SETTINGS, PING) and head[4] & ACK == 0):
                return payload
        return None

    def answered(self) -> bool:
        """All that was sent before is read: the server answers a ping. False when it has closed the connection."""
        return self.send(frame(PING, 0, 0, b"question")) and self.heard(PING) is not None

    def _exactly(self, length: int) -> bytes | None:
        data = b""
        while len(data) < length:
            try:
                more = self._socket.recv(length - len(data))
            except ConnectionError:
                return None
            if not more:
                return None
            data += more
        return data
