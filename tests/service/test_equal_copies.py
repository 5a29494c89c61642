"""Both copies of a part have the same bits behind each update: digests of all versions.

A few updates with three optimizers here; `scripts/soak digests` makes 10,000 with each.
"""

from pathlib import Path

import numpy as np
import pytest

from psserver.optimizers import names
from psserver.replication import SyncMember
from psserver.replication.digests import Comparison, CopyDifference
from psserver.service.replicas import comparing
from tests.promises import promise
from tests.repetitions import FIRST_SEED, repetitions, usually
from tests.service.replicated import copies
from tests.service.serving import VARIABLES, granted, wait_until

UPDATES = repetitions(20, soak=10_000, fast=10)


@promise("Both copies have the same bits after each update, under every optimizer.")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("optimizer", usually(["adam", "delayed-nesterov"], soak=list(names())))
def test_all_versions_of_both_copies_have_one_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    own: dict[int, bytes] = {}
    theirs: dict[int, bytes] = {}

    class Noted(Comparison):
        def own(self, at: int, digest: bytes) -> list[CopyDifference]:
            own[at] = digest
            return super().own(at, digest)

        def theirs(self, member: SyncMember, at: int, digest: bytes) -> CopyDifference | None:
            theirs[at] = digest
            return super().theirs(member, at, digest)

    monkeypatch.setattr(comparing, "Comparison", Noted)
    overrides = (f"optimizer.name={optimizer}", "optimizer.learning_rate=0.01")
    dice = np.random.default_rng(FIRST_SEED)
    with copies(3, tmp_path / "run", *overrides, compared=1) as (_, session):
        for _ in range(UPDATES):
            grant = granted(session)
            session.pull(grant)
            drawn = {spec.name: dice.normal(size=spec.shape).astype(np.float32) for spec in VARIABLES}
            session.push(grant, drawn)
            session.commit(grant, samples=1, loss=0.5)
        wait_until(lambda: UPDATES in own and UPDATES in theirs, "the last version's digests")
    assert own == theirs and own.keys() == set(range(1, UPDATES + 1))
    assert len(set(own.values())) == UPDATES
