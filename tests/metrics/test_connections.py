"""Whoever reaches the metrics port takes few threads and no lines of a log, and keeps a scrape off for a while only."""

import select
import selectors
import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from psserver.metrics import endpoint
from psserver.metrics.endpoint import METRICS_CONNECTIONS, Metrics
from tests import patience

# Seconds: what does not happen by then does not happen.
PATIENCE = patience.PATIENCE
# Seconds from a connection's accept to its end.
DEADLINE = 0.5


class Port:
    """The metrics port of a server without a model, in this process."""

    def __init__(self, deadline: float = DEADLINE) -> None:
        host: Any = None
        self.metrics = Metrics("127.0.0.1", 0, (), host, lambda: None, deadline=deadline)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.metrics.address.port), PATIENCE)

    def scrape(self) -> str:
        with urllib.request.urlopen(f"http://{self.metrics.address}/metrics", timeout=PATIENCE) as reply:
            text: str = reply.read().decode()
            return text

    def threads(self) -> list[threading.Thread]:
        """Those that serve a connection."""
        return [t for t in threading.enumerate() if t.name == "metrics-connection"]

    def settle(self) -> None:
        """Every connection that was taken up has ended."""
        for thread in self.threads():
            thread.join(PATIENCE)
        assert self.threads() == []


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = CollectorRegistry()
    Gauge("answer", "A number.", registry=found).set(42)
    monkeypatch.setattr(endpoint, "registry", lambda *_: found)


@pytest.fixture
def port(answer: None) -> Iterator[Port]:
    made = Port()
    yield made
    made.metrics.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def ended(connection: socket.socket) -> bool:
    """The server closes it. Raises TimeoutError where it does not."""
    with connection:
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:
            return True


def test_silent_connections_take_few_threads_and_end(port: Port, capfd: pytest.CaptureFixture[str]) -> None:
    silent, most = [], 0
    for number in range(200):
        silent.append(port.connect())
        most = max(most, len(port.threads()))
        if number % 10 == 0:
            leaver = port.connect()
            leaver.sendall(b"GET /metrics HTT")
            reset(leaver)
    with selectors.DefaultSelector() as waiting:
        for connection in silent:
            waiting.register(connection, selectors.EVENT_READ)
        while waiting.get_map():
            for key, _ in waiting.select(DEADLINE / 50):
                waiting.unregister(key.fileobj)
            most = max(most, len(port.threads()))
    assert most <= METRICS_CONNECTIONS
    assert all(ended(connection) for connection in silent)
    port.settle()
    assert "answer 42.0" in port.scrape()
    assert capfd.readouterr().err == ""


def test_a_connection_that_drips_ends_all_the_same(port: Port) -> None:
    with port.connect() as dripping:
        dripping.sendall(b"GET /")
        # Far longer than the deadline: each byte waits for a fifth of it at most.
        for _ in range(int(5 * PATIENCE / DEADLINE)):
            if select.select([dripping], [], [], DEADLINE / 5)[0]:
                break
            with suppress(ConnectionError):
                dripping.sendall(b"x")
        else:
            pytest.fail("the server still listens")
    port.settle()
    assert "answer 42.0" in port.scrape()


def test_closing_ends_what_is_served(port: Port) -> None:
    with port.connect() as silent:
        # Taken up after it.
        port.scrape()
        port.metrics.close()
        assert ended(silent)
    port.settle()
