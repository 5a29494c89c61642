"""Two ends that watch each other: each notices, the one that dials does so again, and only then is it given up."""

import pytest

from psserver.coordinator import JobTerms
from pswire import patience
from pswire.transport.channels import CHANNEL_OPTIONS, DIAL, SERVER_OPTIONS, Options
from psworker.control.backoff import FIRST_PAUSE
from tests.test_imports import ROOT

# Of `worker_timeout`. gRPC never pings twice within a second.
TIMEOUTS = [3.0, 4.0, 5.0, 7.0, 10.0, 12.5, 30.0, 60.0, 600.0, 86400.0]
# Seconds between two pings of gRPC, at least.
LEAST = 1.0


def times(options: Options) -> tuple[float, float]:
    """Seconds without data until a ping, and that its answer may take."""
    found = dict(options)
    assert found["grpc.keepalive_timeout_ms"] == found["grpc.http2.ping_timeout_ms"]
    return float(found["grpc.keepalive_time_ms"]) / 1000, float(found["grpc.keepalive_timeout_ms"]) / 1000


def grace(timeout: float) -> float:
    return JobTerms("job", workers=1, worker_timeout=timeout).grace


@pytest.mark.parametrize("timeout", TIMEOUTS)
def test_a_worker_notices_and_dials_again_before_it_is_given_up(timeout: float) -> None:
    """The connection dies just behind the server's ping, which therefore notices as soon as it can."""
    ping, answer = times(CHANNEL_OPTIONS(timeout, session=True))
    _, servers = times(SERVER_OPTIONS(timeout))
    assert grace(timeout) == pytest.approx(patience.grace(timeout))
    given_up = servers + grace(timeout)
    # Below 7 s gRPC's own second is longer than the interval.
    late = max(0.0, LEAST - ping)
    noticed = max(ping, LEAST) + answer
    dialled = noticed + 1.2 * FIRST_PAUSE
    assert noticed < dialled < given_up + late
    # Where the first attempt fails there is time for a second one.
    assert dialled + 1.2 * patience.longest_pause(timeout) < given_up + late


@pytest.mark.parametrize("timeout", TIMEOUTS)
def test_others_wait_no_longer_than_they_are_promised(timeout: float) -> None:
    assert sum(times(SERVER_OPTIONS(timeout))) + grace(timeout) <= timeout


@pytest.mark.parametrize("timeout", TIMEOUTS)
def test_a_data_port_is_dialled_again_before_its_payload_is_late(timeout: float) -> None:
    assert patience.silence(timeout) < timeout <= patience.transfer(1, timeout)


@pytest.mark.parametrize("timeout", TIMEOUTS)
def test_servers_dial_again_before_they_give_each_other_up(timeout: float) -> None:
    """Either may notice first; server 0 dials, and the other one waits for that."""
    options = (CHANNEL_OPTIONS(timeout), SERVER_OPTIONS(timeout, liveness=False))
    notices = [sum(times(each)) for each in options]
    # The other one notices at once, server 0 as late as it can.
    last = max(notices) + patience.SERVER_AWAY
    assert patience.coordinator_away(timeout) > last
    # Where no process listens, server 0 decides first, too.
    assert patience.refused_limit(timeout) < timeout
    assert min(patience.SERVER_AWAY, patience.SERVER_TIMEOUT) > DIAL


def test_workers_wait_as_long_as_servers_do() -> None:
    """A server that others wait for finds its workers there, unless they were told to wait for less."""
    assert patience.SERVER_TIMEOUT >= patience.SERVER_AWAY


def test_the_page_has_these_times() -> None:
    page = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
    table = page[page.index("## Timeouts") : page.index("## Memory")]
    notices = patience.PING + patience.WORKER_ANSWER, patience.PING + patience.SERVER_ANSWER
    for words in (
        f"dials again | {notices[0]:.2f} `worker_timeout`, then every tenth of it |",
        f"connection is dead | {notices[1]:.1f} `worker_timeout` |",
        f"acknowledges nothing | {patience.WORKER_ANSWER} `worker_timeout` |",
        f"on another connection | {patience.stuck(0.0):.0f} s and `worker_timeout` |",
        f"`--server-timeout`, {patience.SERVER_TIMEOUT:.0f} s |",
        f"whose connection broke | {patience.SERVER_AWAY:.0f} s; `worker_timeout` / 3 if",
        f"server 0 to dial again | {patience.coordinator_away(0.0):.0f} s and two `worker_timeout`;",
    ):
        assert words in table, words
    assert (patience.PAUSE, patience.GRACE) == (0.1, 1 / 3)
