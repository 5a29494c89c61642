"""Whoever reaches the metrics port takes few connections and no lines of a log, and keeps a scrape off for a while."""

import asyncio
import gc
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from psserver.metrics.endpoint import HEAD_BYTES, METRICS_CONNECTIONS, Metrics
from pswire.security.credentials import NO_TLS, Credentials
from pswire.security.names import Role
from tests.patience import PATIENCE
from tests.security.identities import Identities
from tests.service.loops import begun, run

# Seconds from a connection's accept to its end.
DEADLINE = 0.5
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def with_port(
    live: Callable[[Metrics], Awaitable[None]], bind: str = "127.0.0.1", credentials: Credentials = NO_TLS
) -> None:
    """Run it beside the metrics port of a server."""

    async def served() -> None:
        found = CollectorRegistry()
        Gauge("answer", "A number.", registry=found).set(42)
        runtime = begun()
        metrics = Metrics(runtime, bind, 0, (), found, credentials, deadline=DEADLINE)
        await metrics.begin()
        try:
            async with asyncio.timeout(PATIENCE):
                await live(metrics)
        finally:
            metrics.close()
            runtime.close()

    run(served())


async def connect(metrics: Metrics) -> Streams:
    return await asyncio.open_connection("127.0.0.1", metrics.address.port)


async def ended(streams: Streams) -> bool:
    """The server closes it."""
    try:
        return await streams[0].read() == b""
    except ConnectionResetError:
        return True
    finally:
        streams[1].transport.abort()


async def check_scrape(metrics: Metrics) -> None:
    reader, writer = await connect(metrics)
    writer.write(REQUEST)
    assert b"answer 42.0" in await reader.read()
    writer.close()


def test_silent_connections_are_few_and_end(capfd: pytest.CaptureFixture[str]) -> None:
    async def live(metrics: Metrics) -> None:
        silent = [await connect(metrics) for _ in range(METRICS_CONNECTIONS)]
        later = [await connect(metrics) for _ in range(20)]
        for _, leaver in later[::2]:
            leaver.write(b"GET /metrics HTT")
            leaver.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            leaver.transport.abort()
        # Beyond the limit at once, the others at the deadline.
        assert all([await ended(each) for each in later[1::2]])
        assert not any(reader.at_eof() for reader, _ in silent)
        assert all([await ended(each) for each in silent])
        await check_scrape(metrics)

    with_port(live)
    assert capfd.readouterr().err == ""


def test_a_connection_that_drips_ends_all_the_same() -> None:
    async def live(metrics: Metrics) -> None:
        reader, writer = await connect(metrics)
        writer.write(b"GET /")

        async def drip() -> None:
            while not writer.transport.is_closing():
                writer.write(b"x")
                await asyncio.sleep(DEADLINE / 5)

        dripping = asyncio.create_task(drip())
        assert await ended((reader, writer))
        dripping.cancel()
        await check_scrape(metrics)

    with_port(live)


def test_closing_ends_what_is_served() -> None:
    async def live(metrics: Metrics) -> None:
        silent = await connect(metrics)
        await check_scrape(metrics)
        metrics.close()
        assert await ended(silent)

    with_port(live)


def test_a_server_that_ends_during_a_handshake_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def live(metrics: Metrics) -> None:
        silent = await connect(metrics)
        while not metrics._open:
            await asyncio.sleep(0)
        metrics.close()
        assert await ended(silent)

    with_port(live, credentials=Identities(tmp_path).credentials(Role.SERVER))
    gc.collect()
    assert not caplog.records


def test_every_interface_has_ipv4_too() -> None:
    with_port(check_scrape, "::")


def test_a_long_head_is_answered() -> None:
    async def live(metrics: Metrics) -> None:
        reader, writer = await connect(metrics)
        head = REQUEST[:-2] + b"Cookie: "
        writer.write(head + b"x" * (HEAD_BYTES + 4 - len(head)))
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
        writer.close()
        await check_scrape(metrics)

    with_port(live)


def test_a_registry_that_fails_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def live(metrics: Metrics) -> None:
        Gauge("wrong", "It raises.", registry=metrics._registry).set_function(lambda: 1 / 0)
        streams = await connect(metrics)
        streams[1].write(REQUEST)
        assert await ended(streams)

    with_port(live)
    gc.collect()
    assert not caplog.records
