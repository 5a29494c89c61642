"""Links: what a transfer takes, to the last digit."""

from random import Random

import pytest

from pslab.simulator.network import Channel, EventQueue, LinkFaults, Network, SimulatedLink
from tests.simulator.lab import experiment, simulate


def drain(queue: EventQueue) -> None:
    while queue.step():
        pass


def test_equal_times_keep_the_order_in_which_they_were_put_down() -> None:
    queue, seen = EventQueue(), []
    for name in "abc":
        queue.at(1.0, seen.append, name)
    queue.at(0.5, seen.append, "first")
    queue.at(-3.0, seen.append, "the past is now")
    drain(queue)
    assert seen == ["the past is now", "first", "a", "b", "c"] and queue.now == 1.0


def test_flows_share_a_card() -> None:
    """100 bytes/s: a alone for a second, then half each until b's 50 bytes are through."""
    queue = EventQueue()
    link, ended = SimulatedLink(queue, 100.0), {}

    def send(name: str, nbytes: int) -> None:
        link.send(nbytes, lambda: ended.setdefault(name, queue.now))

    queue.at(0.0, send, "a", 200)
    queue.at(1.0, send, "b", 50)
    drain(queue)
    assert ended == {"b": pytest.approx(2.0), "a": pytest.approx(2.5)}


def test_equal_flows_end_together_and_nothing_costs_nothing() -> None:
    queue = EventQueue()
    link, ended = SimulatedLink(queue, 10.0), []
    for _ in range(5):
        link.send(20, lambda: ended.append(queue.now))
    link.send(0, lambda: ended.append(queue.now))
    drain(queue)
    assert ended == [0.0] + [pytest.approx(10.0)] * 5
    free = Network(EventQueue(), 2, latency=0.0, bandwidth=0.0)
    free.download([10**9, 10**9], lambda: ended.append(-1.0))
    assert ended[-1] == -1.0


def test_a_step_over_a_link() -> None:
    """One worker: ask and answer 2 x 10 ms + 1 s down, 3 s of work, the same up, commit 10 ms, grant 10 ms."""
    run = simulate(
        experiment(
            "async",
            workers=1,
            cluster={"servers": 2},
            run={"versions": 10},
            links={"latency": 0.01, "bandwidth": 500.0},
            simulation={"compute": "constant(3)", "payload_bytes": 1000},
        )
    )
    # Two servers of 500 bytes each, in parallel. The first grant is given 10 ms before it is heard.
    assert run.seconds == pytest.approx(10 * (0.02 + 1 + 3 + 0.02 + 1 + 0.02))


def test_one_server_is_the_bottleneck_of_many_workers() -> None:
    """Eight workers' gradients through one link take eight times as long; two servers halve it."""

    def pace(servers: int) -> float:
        return simulate(
            experiment(
                "sync",
                workers=8,
                cluster={"servers": servers},
                run={"versions": 20},
                links={"bandwidth": 1000.0},
                simulation={"compute": "constant(0)", "payload_bytes": 1000},
            )
        ).seconds_per_version

    assert pace(1) == pytest.approx(16, rel=1e-6)
    assert pace(2) == pytest.approx(8, rel=1e-6)


def test_a_channel_keeps_the_order_whatever_is_lost() -> None:
    queue, heard = EventQueue(), []
    channel = Channel(queue, LinkFaults(latency=0.1, loss=0.5, duplicate=0.3, resend=1.0), Random(3))
    for number in range(50):
        queue.at(number * 0.3, channel.send, heard.append, number)
    drain(queue)
    assert heard == sorted(heard) and set(heard) == set(range(50)) and len(heard) > 50


def test_a_broken_channel_delivers_when_it_stands_again() -> None:
    queue = EventQueue()
    channel = Channel(queue, LinkFaults(), Random(0))
    assert channel.immediate()
    channel.down_until = 5.0
    assert not channel.immediate()
    channel.send(lambda: None)
    drain(queue)
    assert queue.now == 5.0 and channel.immediate()
