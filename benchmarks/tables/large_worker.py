"""The worker of `scripts/bench large-table`.

Commands: connect {hosts, rows, dim}, version, fill {steps}, train {until, seconds}, digest.

Its model is linear, in numpy, so that the cores are left to the server: the sum of a sample's rows, times a vector. The
ids of a step depend on its version alone, so that a job that goes on from a checkpoint repeats them.
"""

import hashlib
import os
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import psworker
from benchmarks.programs.json_commands import serve
from benchmarks.tables import load
from pswire.model.tables import Floats, Keys, TableSpec, canonical, sums, uniques

TABLE = "clicks"
# Ids that a step of filling makes rows of, and rows that are looked up at once.
FILLED, LOOKED_UP = 1 << 14, 1 << 20
# Of so many ids, the last has no row before training.
LEFT_OUT = 20
# Seconds for which the thread that shows the machine's own pauses sleeps.
NAP = 0.01


def sizes(rows: int) -> list[int]:
    """Return vocabularies in the proportions of Criteo's, of `rows` ids together or a few more."""
    return [max(3, each * rows // sum(load.CARDINALITIES)) for each in load.CARDINALITIES]


def fill_steps(rows: int) -> int:
    """Return how many steps make rows of all ids but those that are left out."""
    return -(-(rows - rows // LEFT_OUT) // FILLED)


class Naps:
    """How late a thread wakes up that does nothing: pauses that are the machine's, and no program's."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._over.wait(NAP):
            now = time.monotonic()
            self.late.append(now - begin - NAP)
            begin = now

    def __enter__(self) -> "Naps":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


class Worker:
    """One session, and the batch of each version."""

    def connect(self, hosts: str, rows: int, dim: int) -> None:
        rule = canonical({"name": "rowwise-adagrad", "learning_rate": load.RATE})
        self._rows, self._dim, self._sizes = rows, dim, sizes(rows)
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)])[:-1]
        self._planted = np.random.default_rng(8).normal(size=len(self._sizes))
        initial = {"w": np.ones(dim, np.float32), "b": np.zeros(1, np.float32)}
        self._session = psworker.connect(
            hosts, initial, state=[], task_index=0, tables=[TableSpec(TABLE, dim, optimizer=rule)]
        )
        self._grant = self._session.ready()

    def version(self) -> dict[str, Any]:
        """Return the version that the next step begins at."""
        assert self._grant is not None
        return {"version": self._grant.version}

    def fill(self, steps: int) -> dict[str, Any]:
        """Make rows of ids that no step has made rows of, FILLED in each; return when each was in its version."""
        waits, made = [], 0
        begin = time.monotonic()
        none = [np.zeros(shard.elements, np.float32) for shard in self._session.plan.shards]
        gradients = np.full((FILLED, self._dim), 1e-3, np.float32)
        for _ in range(steps):
            grant = self._grant
            assert grant is not None
            at = np.arange(grant.version * FILLED, (grant.version + 1) * FILLED)
            # Every id but each twentieth.
            ids = at + at // (LEFT_OUT - 1)
            keys, _ = uniques([ids[ids < self._rows]])[0]
            self._session.pull_flat(grant)
            began = time.monotonic()
            self._session.contribute(
                grant, none, samples=1, loss=0.0, ready=True, rows={TABLE: (keys, gradients[: keys.size])}
            )
            self._grant = self._session.ready()
            waits.append(time.monotonic() - began)
            made += keys.size
        return {"seconds": time.monotonic() - begin, "rows": made, "waits": waits}

    def train(self, until: int = 0, seconds: float = 0.0) -> dict[str, Any]:
        """Train until a version, or for so long. `waits`: when each step's payload was ready to be sent, and how long
        it then took until the next version's rows were here; `late`: by how much a sleeping thread woke up too late.
        """
        session, waits, losses = self._session, [], []
        grant = self._grant
        assert grant is not None
        keys, inverse, labels = self._batch(grant.version)
        session.want_rows({TABLE: keys})
        over, begin = time.monotonic() + seconds, time.monotonic()
        with Naps() as naps:
            rows = session.pull_rows(grant, {TABLE: keys})[TABLE]
            while grant.version < until if until else time.monotonic() < over:
                weights = session.plan.gather_by_name(session.pull_flat(grant))
                loss, gradients, of_rows = self._step(weights, rows, inverse, labels)
                flats = session.plan.scatter([gradients[v.name] for v in session.plan.variables])
                following = self._batch(grant.version + 1)
                began = time.monotonic()
                session.contribute(
                    *(grant, flats),
                    samples=load.BATCH,
                    loss=loss,
                    ready=True,
                    rows={TABLE: (keys, of_rows)},
                    ahead={TABLE: following[0]},
                )
                grant = session.ready()
                assert grant is not None
                keys, inverse, labels = following
                rows = session.pull_rows(grant, {TABLE: keys})[TABLE]
                waits.append((began, time.monotonic() - began))
                losses.append(loss)
        session.want_rows({})
        self._grant = grant
        return {
            "seconds": time.monotonic() - begin,
            "version": grant.version,
            "waits": waits,
            "late": naps.late,
            "losses": [float(np.mean(part)) for part in np.array_split(losses, min(5, max(1, len(losses))))],
        }

    def _batch(self, version: int) -> tuple[Keys, NDArray[np.int32], Floats]:
        """Return unique keys, the place of each id's row among them, and labels."""
        dice = np.random.default_rng([9, version])
        ids = load.draw_ids(dice, self._sizes)
        labels = load.draw_labels(dice, ids, self._planted)
        keys, inverse = uniques([(ids + self._starts).reshape(-1)])[0]
        return keys, inverse, labels[:, 0]

    def _step(
        self, weights: dict[str, Floats], rows: Floats, inverse: NDArray[np.int32], labels: Floats
    ) -> tuple[float, dict[str, Floats], Floats]:
        features = len(self._sizes)
        added = rows[inverse].reshape(load.BATCH, features, self._dim).sum(axis=1)
        logits = added @ weights["w"] + weights["b"]
        loss = float(np.mean(np.logaddexp(0, logits) - labels * logits))
        slope = ((1 / (1 + np.exp(-logits)) - labels) / load.BATCH).astype(np.float32)
        of_each = np.repeat(slope[:, None] * weights["w"], features, axis=0)
        gradients = {"w": slope @ added, "b": slope.sum(keepdims=True)}
        return loss, gradients, sums(inverse, of_each, len(rows))

    def digest(self) -> dict[str, Any]:
        """Return the SHA-256 digest of the rows of all ids at the newest version."""
        found, begin = hashlib.sha256(), time.monotonic()
        for start in range(0, self._rows, LOOKED_UP):
            rows, _ = self._session.lookup(TABLE, np.arange(start, min(start + LOOKED_UP, self._rows)))
            found.update(rows.data)
        return {"sha256": found.hexdigest(), "seconds": time.monotonic() - begin}


if __name__ == "__main__":
    worker = Worker()
    commands = ("connect", "version", "fill", "train", "digest")
    serve({name: getattr(worker, name) for name in commands})
    os._exit(0)
