"""A worker with a large payload delays others by slices."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pswire.model.plan import VariableSpec
from pswire.v1 import shard_pb2
from tests.promises import promise
from tests.service.peer import Peer, messages
from tests.service.serving import PATIENCE, serving


@promise("A large payload delays other workers by one slice at most.")
@pytest.mark.parametrize("way", ["Push", "Exchange"])
def test_others_are_granted_and_committed_in_the_middle_of_a_large_payload(way: str) -> None:
    """Whoever pushes it rests half-way; the other's steps need nothing of it."""
    resting, go_on = threading.Event(), threading.Event()
    variables = (VariableSpec("w", (2**20,)),)
    # Whoever rests is not cut for it, however long the other's steps take.
    patient = [f"cluster.worker_timeout={10 * PATIENCE}"]
    with serving(overrides=patient) as cluster, Peer(cluster, "slow", variables) as slow:
        first = slow.ready()
        other = Peer(cluster, "other", variables)
        data = np.ones(2**20, "<f4").tobytes()

        def said() -> Iterator[Any]:
            pushed = list(messages(slow.header(first, 0), data, 2**19))
            for number, message in enumerate(pushed):
                if number == len(pushed) // 2:
                    resting.set()
                    assert go_on.wait(PATIENCE)
                yield message if way == "Push" else _exchanged(message)

        ended: list[Any] = []
        shard = cluster.shards[0]

        def push() -> None:
            if way == "Push":
                ended.append(shard.Push(said(), timeout=PATIENCE).receipt)
            else:
                ended.extend(reply.receipt for reply in shard.Exchange(said(), timeout=PATIENCE))

        thread = threading.Thread(target=push)
        thread.start()
        assert resting.wait(PATIENCE)
        versions = [other.step().version for _ in range(5)]
        assert versions == sorted(set(versions)) and not ended
        go_on.set()
        thread.join(PATIENCE)
        slow.commit(first.ticket, ended)
        slow.grant = None
        assert slow.settled().version == versions[-1] + 1
        other.leave()


def _exchanged(message: shard_pb2.PushRequest) -> shard_pb2.ExchangeRequest:
    if message.HasField("header"):
        return shard_pb2.ExchangeRequest(push=message.header)
    return shard_pb2.ExchangeRequest(chunk=message.chunk)
