"""`fit` in one worker of two, which waits at given versions until a test has killed a server.

Arguments: own index, a folder that both share, and VERSION=FILE for each wait. PS_HOSTS: the servers.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import psworker.keras  # isort: skip  (before Keras)
import keras
import tensorflow as tf

from tests.keras.two_workers import BATCH, SAMPLES, data, model, wait_for

EPOCHS = 4


class Samples(keras.metrics.Sum):  # type: ignore[misc]
    """Counts what an epoch's logs are over."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(tf.ones_like(y_true))


class Gates(keras.callbacks.Callback):
    """A batch behind that version is computed once there is the file; "FILE INDEX" says that it has been begun."""

    def __init__(self, job: Any, index: int, gates: dict[int, Path]) -> None:
        super().__init__()
        self.job, self.index, self.gates = job, index, gates

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        gate = self.gates.get(self.job.version)
        if gate is not None:
            gate.with_name(f"{gate.name} {self.index}").touch()
            wait_for(gate)


def main(index: int, shared: Path, gates: dict[int, Path]) -> None:
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    made, (x, y) = model(), data()
    made.compile(made.optimizer, made.loss, metrics=[Samples(name="samples")], run_eagerly=True)
    x, y = x[index::2], y[index::2]
    with psworker.keras.distribute(made, task_index=index) as job:
        history = made.fit(
            *(x, y),
            batch_size=BATCH,
            epochs=EPOCHS,
            verbose=0,
            validation_data=data(2),
            validation_batch_size=SAMPLES,
            callbacks=[Gates(job, index, gates)],
        )
        told = {"history": history.history, "fates": job.fates, "version": job.version}
    told["weight"] = float(made.get_weights()[0].sum())
    (shared / f"{index}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    pairs = (gate.partition("=") for gate in sys.argv[4:])
    main(
        int(sys.argv[1]),
        sys.argv[2],
        Path(sys.argv[3]),
        {int(version): Path(file) for version, _, file in pairs},
    )
