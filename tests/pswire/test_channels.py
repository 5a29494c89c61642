"""Channel options, on real sockets: which messages pass, who owns a port, how soon a dead peer is noticed."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event
from typing import Any

import grpc
import pytest

from psserver.coordinator import JobTerms
from pswire.transport import channels
from pswire.transport.channels import CHANNEL_OPTIONS, RECEIVED_BYTES, SERVER_OPTIONS
from tests.comparing import same
from tests.patience import PATIENCE, within
from tests.relay import relayed
from tests.sentences import Recorder

# Seconds.
WORKER_TIMEOUT = 3.0
# A connection that no other channel of this process shares.
OWN = [("grpc.use_local_subchannel_pool", 1)]


class Echo:
    """A server with a method that answers at once and one that waits, and what it saw of its peer."""

    def __init__(self, address: str = "127.0.0.1:0", options: channels.Options | None = None) -> None:
        self.release, self.called, self.peer_lost = Event(), Event(), Event()
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Echo": grpc.unary_unary_rpc_method_handler(lambda request, context: request),
            "Wait": grpc.unary_unary_rpc_method_handler(self.wait),
        }
        self.server = grpc.server(ThreadPoolExecutor(2), options=options or SERVER_OPTIONS(WORKER_TIMEOUT))
        self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Echo", handlers)])
        self.port = self.server.add_insecure_port(address)
        self.server.start()

    def wait(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(self.peer_lost.set)
        self.called.set()
        self.release.wait(float(request))
        return b"awake"

    def stop(self) -> None:
        self.release.set()
        self.server.stop(None).wait()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.stop()


Call = Callable[..., Any]


def open_channel(port: int) -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS(WORKER_TIMEOUT))


def patient(options: channels.Options) -> channels.Options:
    """As many pings, and patience with their answers: neither end is dead because this process is kept from running."""
    answer = int(1000 * PATIENCE)
    changed = {"grpc.keepalive_timeout_ms": answer, "grpc.http2.ping_timeout_ms": answer}
    return [*{**dict(options), **changed}.items()]


def test_messages_up_to_the_bound_pass(echo: Echo) -> None:
    with open_channel(echo.port) as channel:
        call: Call = channel.unary_unary("/test.Echo/Echo")
        assert same(call(bytes(RECEIVED_BYTES), timeout=PATIENCE), bytes(RECEIVED_BYTES))
        with pytest.raises(grpc.RpcError) as caught:
            call(bytes(RECEIVED_BYTES + 1), timeout=PATIENCE)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_both_ends_notice_a_dead_link(echo: Echo) -> None:
    with relayed(("127.0.0.1", echo.port)) as relay, open_channel(relay.port) as channel:
        call: Call = channel.unary_unary("/test.Echo/Wait").future
        answer = call(b"60", timeout=4 * PATIENCE)
        assert echo.called.wait(PATIENCE)
        relay.freeze()
        begin = time.monotonic()
        # A second until the ping, a third of the timeout for its answer, and a little.
        with within(1 + WORKER_TIMEOUT / 3 + 5):
            assert answer.code() == grpc.StatusCode.UNAVAILABLE
            assert echo.peer_lost.wait(PATIENCE)
        # However busy the machine is: less than the minute after which gRPC notices without our options.
        assert time.monotonic() - begin < 50


def test_a_web_proxy_is_not_asked(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    with open_channel(echo.port) as channel:
        call: Call = channel.unary_unary("/test.Echo/Echo")
        assert call(b"hello", timeout=PATIENCE) == b"hello"


def test_a_port_has_one_owner(echo: Echo, sentences: Recorder) -> None:
    with pytest.raises(RuntimeError) as refused:
        Echo(f"127.0.0.1:{echo.port}")
    sentences.check(refused)


@pytest.mark.parametrize("timeout", [3.0, 4.0, 10.0, 600.0])
def test_the_times_of_a_loss_add_up_to_the_timeout(timeout: float) -> None:
    """A worker that is dead is missed for `worker_timeout` at most, from its last word to the decision; a server that
    stands still is noticed within one and a third."""

    def noticed(options: channels.Options) -> float:
        found = dict(options)
        assert found["grpc.keepalive_timeout_ms"] == found["grpc.http2.ping_timeout_ms"]
        return (int(found["grpc.keepalive_time_ms"]) + int(found["grpc.keepalive_timeout_ms"])) / 1000

    grace = JobTerms("job", workers=1, worker_timeout=timeout).grace
    assert noticed(SERVER_OPTIONS(timeout)) + grace <= timeout
    assert noticed(CHANNEL_OPTIONS(timeout)) <= 4 / 3 * timeout
    # What may be on its way in front of a ping at 500 kB/s is there before its answer is late.
    payloads = dict(CHANNEL_OPTIONS(timeout, payloads=True))
    assert payloads["grpc.http2.bdp_probe"] == 0
    window = 2**16
    answer = int(dict(SERVER_OPTIONS(timeout))["grpc.keepalive_timeout_ms"]) / 1000
    assert (window + int(payloads["grpc.http2.max_frame_size"])) / 500e3 < answer / 2


@pytest.mark.parametrize("timeout", [1e-6, 1e7, 1e300])
def test_any_timeout_gives_options_that_grpc_takes(timeout: float) -> None:
    """One that is too short for a loaded machine ends connections, so it is not to have one."""
    for _, value in [*SERVER_OPTIONS(timeout), *CHANNEL_OPTIONS(timeout, payloads=True)]:
        assert isinstance(value, str) or -1 <= value < 2**31
    if timeout < 1:
        return
    server = grpc.server(ThreadPoolExecutor(1), options=SERVER_OPTIONS(timeout))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}", CHANNEL_OPTIONS(timeout, payloads=True)) as channel:
        grpc.channel_ready_future(channel).result(PATIENCE)
    server.stop(None).wait()


def test_a_timeout_of_nothing_is_refused(sentences: Recorder) -> None:
    with pytest.raises(ValueError) as refused:
        SERVER_OPTIONS(0)
    sentences.check(refused)


def test_a_connection_without_calls_is_closed_and_one_with_a_call_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever only holds a connection gives its descriptor back; the next call makes it anew."""
    monkeypatch.setattr(channels, "IDLE_CONNECTION", 0.5)
    echo = Echo(options=patient(SERVER_OPTIONS(WORKER_TIMEOUT)))
    states = SimpleQueue[grpc.ChannelConnectivity]()
    try:
        address = f"127.0.0.1:{echo.port}"
        with grpc.insecure_channel(address, OWN) as idle, grpc.insecure_channel(address, OWN) as busy:
            waiting = busy.unary_unary("/test.Echo/Wait", None, None).future(b"60", timeout=2 * PATIENCE)
            assert echo.called.wait(PATIENCE)
            idle.subscribe(states.put)
            call = idle.unary_unary("/test.Echo/Echo", None, None)
            assert call(b"once", timeout=PATIENCE) == b"once"
            seen = [states.get(timeout=PATIENCE)]
            while seen[-1] != grpc.ChannelConnectivity.IDLE or grpc.ChannelConnectivity.READY not in seen:
                seen.append(states.get(timeout=PATIENCE))
            assert call(b"again", timeout=PATIENCE) == b"again"
            assert not echo.peer_lost.is_set()
            echo.release.set()
            assert waiting.result() == b"awake"
    finally:
        echo.stop()
