"""A table's dumb twin: dictionaries of rows, every version kept; and what tests of tables share."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from psserver.optimizers import build
from psserver.optimizers.rows import rows_optimizer
from psserver.shard.tables import Contribution, Table
from psserver.shard.tables import advance as advance_store
from pswire.model.initial_rows import initial_rows
from pswire.model.tables import TableSpec, mix

SGD: dict[str, object] = {"name": "sgd", "learning_rate": 0.25}
SPEC = TableSpec("t", 3, "uniform", (-1.0, 1.0), 5)


def table(config: dict[str, object] | None = None, spec: TableSpec = SPEC, version: int = 0) -> Table:
    return Table(spec, rows_optimizer(config, build(SGD)), version=version)


def gradient(ids: list[int], seed: int, factor: float = 1.0, dim: int = 3) -> Contribution:
    """Return a random contribution with rows of `ids`."""
    keys = np.unique(mix(np.array(ids, np.int64)))
    rows = np.random.default_rng(seed).standard_normal((keys.size, dim)).astype(np.float32)
    return keys, rows, factor


def update(table: Table, *contributions: Contribution, keep: bool = False) -> int:
    return advance(table, contributions, 1.0 / max(len(contributions), 1), keep=keep)


def advance(
    table: Table,
    contributions: Sequence[Contribution],
    scale: float = 1.0,
    lr_scale: float = 1.0,
    *,
    keep: bool = False,
) -> int:
    """Return how many elements were kept back. `keep`: older versions stay readable."""
    _, kept = advance_store([(table, contributions)], scale, lr_scale)
    if not keep:
        table.forget(table.version)
    return sum(kept.values())


@contextmanager
def read_meanwhile(ours: Table, keys: np.ndarray, readers: int = 3) -> Iterator[None]:
    """Read in threads until the block ends. Each update takes 0.25 off all rows; none has numbers of two versions."""
    faults, done = list[str](), threading.Event()

    def read() -> None:
        while not done.is_set():
            version = ours.version
            rows = ours.read(keys, version)
            if not (rows == np.float32(-0.25) * version).all():
                faults.append(f"version {version}: {np.unique(rows)}")
                return

    threads = [threading.Thread(target=read) for _ in range(readers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not faults


class Twin:
    """SGD on rows by key; `versions` has all of them."""

    def __init__(self) -> None:
        self.versions: list[dict[int, np.ndarray]] = [{}]

    def update(self, *contributions: Contribution) -> None:
        now, scale = dict(self.versions[-1]), np.float32(1.0 / max(len(contributions), 1))
        sums: dict[int, np.ndarray] = {}
        for keys, rows, factor in contributions:
            for key, row in zip(keys.tolist(), rows, strict=True):
                own = row * np.float32(factor)
                sums[key] = sums[key] + own if key in sums else own
        for key, total in sums.items():
            now[key] = self.read([key], -1)[0] - total * scale * np.float32(0.25)
        self.versions.append(now)

    def read(self, keys: list[int], version: int) -> np.ndarray:
        fresh = initial_rows(SPEC, np.array(keys, np.uint64))
        return np.array(
            [self.versions[version].get(key, row) for key, row in zip(keys, fresh, strict=True)], np.float32
        ).reshape(len(keys), 3)
