"""As much HTTP/2 as a test needs to count what a server takes of a message, which gRPC's own client does not say."""

import select
import socket
import struct
import time
from collections import Counter

from tests.patience import PATIENCE

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
ACK, END_HEADERS = 1, 4
INITIAL_WINDOW = 4
FRAME = 16_384


def grpc_message(data: bytes) -> bytes:
    """Return it with gRPC's head."""
    return struct.pack(">BI", 0, len(data)) + data


class Connection:
    """One thread uses it."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        self._received = b""
        # What may be sent: in all, on a stream from its begin, and on each less what was sent.
        self._window, self._initial = 65_535, 65_535
        self._given: Counter[int] = Counter()
        self._next = 1
        self.closed = False
        self._authority = address.encode()
        self._send(PREFACE + _frame(SETTINGS, 0, 0, b""))
        self.listen(0.2)

    def open(self, path: str) -> int:
        """A call of a method; its stream."""
        stream, self._next = self._next, self._next + 2
        self._send(_frame(HEADERS, END_HEADERS, stream, _headers(path.encode(), self._authority)))
        return stream

    def say(self, stream: int, data: bytes, seconds: float = 0.5) -> int:
        """Send what the server takes within that time; how much that was."""
        sent, deadline = 0, time.monotonic() + seconds
        while sent < len(data) and not self.closed and time.monotonic() < deadline:
            room = min(self._window, self._initial + self._given[stream], FRAME, len(data) - sent)
            if room <= 0:
                self.listen(0.02)
                continue
            self._send(_frame(DATA, 0, stream, data[sent : sent + room]))
            self._window -= room
            self._given[stream] -= room
            sent += room
            self.listen(0.0)
        return sent

    def listen(self, seconds: float) -> None:
        """Take in what the server says of windows, and answer its pings."""
        while not self.closed and select.select([self._socket], [], [], seconds)[0]:
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                data = b""
            self.closed = not data
            self._received += data
            while len(self._received) >= 9:
                length = int.from_bytes(self._received[:3], "big")
                if len(self._received) < 9 + length:
                    break
                kind, flags = self._received[3], self._received[4]
                stream = int.from_bytes(self._received[5:9], "big") & 0x7FFFFFFF
                self._take(kind, flags, stream, self._received[9 : 9 + length])
                self._received = self._received[9 + length :]
            seconds = 0.0

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(body), 6):
                name, value = struct.unpack(">HI", body[at : at + 6])
                if name == INITIAL_WINDOW:
                    self._initial = value
            self._send(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._send(_frame(PING, ACK, 0, body))
        elif kind == WINDOW_UPDATE:
            more = int.from_bytes(body, "big") & 0x7FFFFFFF
            if stream:
                self._given[stream] += more
            else:
                self._window += more

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError:
            self.closed = True

    def close(self) -> None:
        self._socket.close()


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def _headers(path: bytes, authority: bytes) -> bytes:
    """HPACK without a table: POST, http, and the rest in full."""
    found = b"\x83\x86"
    found += b"\x04" + _text(path) + b"\x01" + _text(authority)
    found += b"\x0f\x10" + _text(b"application/grpc")
    return found + b"\x00" + _text(b"te") + _text(b"trailers")


def _text(value: bytes) -> bytes:
    assert len(value) < 127
    return bytes((len(value),)) + value
