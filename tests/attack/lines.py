"""Strangers on the sockets: gRPC's own port, the port for payloads, and the Unix socket beside it."""

import socket
import struct
import threading

from tests.attack.target import Attacker

# Frames of the data line: a length and a code, then so many bytes.
HEAD = struct.Struct("<IB")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SPEECHES = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    PREFACE + bytes(9),
    PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    HEAD.pack(2**32 - 1, 0),
    HEAD.pack(16, 0) + bytes(16),
    HEAD.pack(16, 255) + bytes(15),
    HEAD.pack(0, 0),
    HEAD.pack(8 * 2**20, 0) + bytes(4),
)
PATIENCE = 0.05


class SocketStranger(Attacker):
    """Keeps a few connections open, some of them silent, and says nonsense on others."""

    KEPT = 40

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._open: list[socket.socket] = []
        self._said = 0

    def act(self) -> None:
        """A few words on a new connection or an old one; no more than a third of all that is sent."""
        if self._said > 100 + self.tally.messages.total() / 3:
            threading.Event().wait(PATIENCE)
            return
        if len(self._open) >= self.KEPT or (self._open and self.chance.random() < 0.3):
            self._open.pop(self.chance.randrange(len(self._open))).close()
            return
        kind, connection = self._connection()
        if connection is None:
            return
        self._open.append(connection)
        for _ in range(self.chance.choice((1, 1, 2, 5))):
            self.tally.count(kind)
            self._said += 1
            if not self._say(connection):
                break

    def _connection(self) -> tuple[str, socket.socket | None]:
        server = self.server()
        line, host = self.target.lines[server], self.target.hosts[server]
        choices = ["gRPC port"] + ["data port"] * 2 * bool(line.port) + ["Unix socket"] * 3 * bool(line.name)
        kind = self.chance.choice(choices)
        try:
            if kind == "Unix socket":
                made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                made.settimeout(PATIENCE)
                made.connect(f"\0{line.name}")
            else:
                port = int(host.rpartition(":")[2]) if kind == "gRPC port" else line.port
                made = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        except OSError:
            self.tally.answered("NO CONNECTION")
            return kind, None
        return kind, made

    def _say(self, connection: socket.socket) -> bool:
        words = self.chance.choice((*SPEECHES, self.mutate.noise()))
        if self.chance.random() < 0.5:
            words = self.mutate.data(words)
        try:
            connection.sendall(words)
            if self.chance.random() < 0.2:
                connection.recv(100)
        except OSError:
            # Refused, or nothing to read yet: both are answers.
            self.tally.answered("CUT")
            return False
        return True

    def close(self) -> None:
        for connection in self._open:
            connection.close()
        self._open = []
