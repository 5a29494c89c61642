"""Whoever reaches the metrics port takes few connections and no lines of a log, and keeps a scrape off for a while."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client import CollectorRegistry, Gauge

from psserver.metrics.endpoint import METRICS_CONNECTIONS, Metrics
from tests.patience import PATIENCE
from tests.service.loops import run

# Seconds from a connection's accept to its end.
DEADLINE = 0.5
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def with_port(live: Callable[[Metrics], Awaitable[None]]) -> None:
    """Run it beside the metrics port of a server."""

    async def served() -> None:
        found = CollectorRegistry()
        Gauge("answer", "A number.", registry=found).set(42)
        metrics = Metrics("127.0.0.1", 0, (), found, deadline=DEADLINE)
        await metrics.begin()
        try:
            async with asyncio.timeout(PATIENCE):
                await live(metrics)
        finally:
            metrics.close()

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
