"""Payloads of one update on several servers whose memory is nearly full: none waits for another one in a circle."""

import random

import pytest

from psserver.optimizers import build
from psserver.policies import TensorParts
from psserver.service.guard.memory import MIB, Memory
from psserver.shard import Fold, Hold, Install, Seal, Shard
from pswire.model.plan import VariableSpec, make_plan
from tests.promises import promise

WORKERS, SERVERS, ROUNDS = 4, 2, 3


def made(room: int) -> tuple[list[Shard], list[Memory]]:
    """Shards at version 0, and their accounts: each has room for `room` payloads beside the first."""
    plan = make_plan([VariableSpec("w", (64, 64))], SERVERS)
    shards, accounts = [], []
    for server, layout in enumerate(plan.shards):
        shard = Shard(
            plan, server, build({"name": "sgd", "learning_rate": 0.01}), tensors=TensorParts(), staging=4
        )
        account = Memory(1024 * MIB, 3)
        account.serve(shard)
        account.limit = account.total + room * layout.nbytes
        shard.execute(Hold(1, 0, initialise=True, worker="w0"))
        shard.staging.finish(shard.begin(1))
        shard.execute(Install(1))
        shards.append(shard)
        accounts.append(account)
    return shards, accounts


@promise("Servers whose memory is nearly full let all payloads of an update in, one after the other.")
@pytest.mark.parametrize("room", range(4))
@pytest.mark.parametrize("seed", range(50))
def test_all_payloads_come_in(room: int, seed: int) -> None:
    chance, (shards, accounts) = random.Random(seed), made(room)
    ticket = 1
    for _ in range(ROUNDS):
        opened = range(ticket + 1, ticket + 1 + WORKERS)
        ticket += WORKERS
        for number in opened:
            for shard in shards:
                shard.execute(Hold(number, 0, worker=f"w{number}"))
        outside = [(number, server) for number in opened for server in range(SERVERS)]
        while outside:
            chance.shuffle(outside)
            entered = next(
                ((n, s) for n, s in outside if shards[s].staging.admits(n) and accounts[s].admits_payload(n)),
                None,
            )
            assert entered is not None, f"{outside} wait for each other"
            number, server = entered
            outside.remove(entered)
            shards[server].staging.finish(shards[server].begin(number))
            assert accounts[server].total <= accounts[server].limit
            if not any(number == waiting for waiting, _ in outside):
                for shard in shards:
                    shard.execute(Seal(number))
                    shard.execute(Fold(number, 0.25))
