"""`fit` in one worker of two; worker 0, which validates and saves for all, is killed in its second epoch.

Arguments: own index, a folder that both share. PS_HOSTS: the servers.
"""

import json
import sys
import threading
from pathlib import Path
from typing import Any

import psworker.keras  # isort: skip  (before Keras)
import keras

from tests.keras.two_workers import BATCH, SAMPLES, data, model, wait_for

EPOCHS = 5


class Meeting(keras.callbacks.Callback):
    """Says that it begins an epoch, and waits there for what the test does."""

    def __init__(self, index: int, shared: Path) -> None:
        super().__init__()
        self.index, self.shared = index, shared

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        (self.shared / f"worker {self.index} begins {epoch + 1}").touch()
        if self.index == 0 and epoch == 1 and not (self.shared / "killed").exists():
            threading.Event().wait()
        if self.index == 1 and epoch == 1:
            wait_for(self.shared / "killed")
        if self.index == 1 and epoch == EPOCHS - 1:
            # Another worker 0 has joined this job, which its barrier holds until then.
            wait_for(self.shared / "back")


class Rates(keras.callbacks.Callback):
    """Half of the rate in each epoch, computed by each worker for itself."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.1 / 2**epoch


def main(index: int, shared: Path) -> None:
    made, (x, y) = model(), data()
    callbacks = [
        keras.callbacks.BackupAndRestore(shared / "backup"),
        keras.callbacks.ModelCheckpoint(str(shared / "{epoch}.keras"), save_freq="epoch"),
        # What worker 0 has seen as the best is the best for whoever takes over.
        keras.callbacks.ModelCheckpoint(
            str(shared / "best {epoch}.keras"), "loss", mode="max", save_best_only=True
        ),
        keras.callbacks.CSVLogger(str(shared / "log.csv"), append=True),
        Meeting(index, shared),
        *([Rates()] if index == 1 else []),
    ]
    with psworker.keras.distribute(made, task_index=index):
        history = made.fit(
            x[index::2],
            y[index::2],
            batch_size=BATCH,
            epochs=EPOCHS,
            shuffle=False,
            verbose=0,
            validation_data=data(2),
            validation_batch_size=SAMPLES,
            callbacks=callbacks,
        )
    told = {
        "epochs": history.epoch,
        "loss": history.history["loss"],
        "val_loss": history.history["val_loss"],
        "weight": float(made.get_weights()[0].sum()),
    }
    (shared / f"{index}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
