"""A few seconds of what `scripts/soak attack` does for hours, from fixed seeds; and that it would notice."""

import random

import pytest

from pswire.v1 import coordinator_pb2, shard_pb2
from tests.attack.mutations import Mutator
from tests.attack.rounds import play
from tests.attack.scenarios import Scenario
from tests.promises import promise
from tests.repetitions import repetitions, seeds

MESSAGES = repetitions(600, soak=3000)
# Strangers and members, each once for every change.
ROUNDS = [
    ("sync", "strangers", 2, "socket", True),
    ("async", "members", 2, "grpc", True),
    pytest.param("median", "strangers", 1, "grpc", False, marks=pytest.mark.nightly),
    pytest.param("sync", "members", 1, "shared-memory", False, marks=pytest.mark.nightly),
]


@promise("Rows that no client may send are refused in a real run.")
@pytest.mark.parametrize(("policy", "company", "servers", "transport", "tables"), ROUNDS)
def test_honest_workers_among_others(
    policy: str, company: str, servers: int, transport: str, tables: bool
) -> None:
    for seed in seeds(1, soak=3):
        workers = 3 if policy == "median" else 2
        result = play(Scenario(seed, policy, company, servers, transport, workers, tables=tables), MESSAGES)
        assert not result.faults, "\n".join(result.problems)
        # Whom a machine that stood still has made wait in vain says nothing of the servers.
        assert not (result.waits and result.judged), "\n".join(result.problems)
        assert result.tally.enough


KINDS = [
    getattr(module, name)
    for module in (coordinator_pb2, shard_pb2)
    for name in module.DESCRIPTOR.message_types_by_name
]


@pytest.mark.parametrize("seed", list(seeds(1, soak=200)))
def test_every_field_of_every_message_is_changed(seed: int) -> None:
    """The fuzzer reaches what there is, and never fails on it."""
    chance = random.Random(seed)
    mutate = Mutator(chance, ["w0"])
    for kind in KINDS:
        changed: set[str] = set()
        fields = {field.name for field in kind.DESCRIPTOR.fields}
        for _ in range(60 * len(fields)):
            message = kind()
            mutate.message(message)
            changed.update(field.name for field, _ in message.ListFields())
            mutate.data(message.SerializeToString())
        assert changed == fields, kind.DESCRIPTOR.name
