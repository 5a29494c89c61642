"""What stands around `fit`, in one worker of two, one job after another: loading TensorFlow takes longest.

Arguments: own index, output (JSON), a folder that both share, and KIND=ADDRESS of each job.
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import psworker.keras  # isort: skip  (before Keras)
import keras

SAMPLES, FEATURES, BATCH, EPOCHS, WORKERS = 96, 12, 8, 3, 2


def data(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    return x, (x[:, :3].sum(1) > 0).astype(np.float32)[:, None]


def model() -> keras.Model:
    keras.utils.clear_session()
    keras.utils.set_random_seed(4)
    made = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
    )
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    made.compile(keras.optimizers.SGD(0.1), loss=loss, metrics=["mae"], run_eagerly=True)
    return made


class At(keras.callbacks.Callback):
    """Does something at the end of an epoch."""

    def __init__(self, epoch: int, action: Any) -> None:
        super().__init__()
        self.epoch, self.action = epoch, action

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.epoch:
            self.action(self.model)


def stop(made: Any) -> None:
    made.stop_training = True


def fail(made: Any) -> None:
    raise ValueError("a callback of mine has failed")


def wait_for(path: Path) -> None:
    """Until the other worker has written it. Raises TimeoutError."""
    deadline, pause = time.monotonic() + 100.0, threading.Event()
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody wrote {path.name}")
        pause.wait(0.01)


def fit(kind: str, index: int, shared: Path, made: Any) -> Any:
    """What this worker's fit does in a job of that kind."""
    x, y = data()
    own = slice(index, None, WORKERS)
    more: dict[str, Any] = {"callbacks": [], "validation_data": data(2), "validation_batch_size": SAMPLES}
    if kind == "files":
        saved = keras.callbacks.ModelCheckpoint(str(shared / "{epoch}.keras"), save_freq="epoch")
        more["callbacks"] = [saved, keras.callbacks.CSVLogger(str(shared / "log.csv"))]
    elif kind == "one stops" and index == 1:
        more["callbacks"] = [At(1, stop)]
    elif kind == "one raises" and index == 1:
        more["callbacks"] = [At(0, fail)]
    elif kind == "async own":
        # Within the first epoch's end of one, the whole fit of the other.
        last = shared / "last epoch"
        more["callbacks"] = [
            At(0, lambda _: wait_for(last)) if index == 0 else At(EPOCHS - 1, lambda _: last.touch())
        ]
    return made.fit(x[own], y[own], batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, **more)


def job(kind: str, address: str, index: int, shared: Path) -> dict[str, Any]:
    made = model()
    told: dict[str, Any] = {}
    distributed = psworker.keras.distribute(
        made, address, task_index=index, metrics="own" if kind == "async own" else "all"
    )
    try:
        told["history"] = fit(kind, index, shared, made).history
    except Exception as error:
        told["error"] = f"{type(error).__name__}: {error}"
    told["version"] = distributed.version
    distributed.close()
    told["weight"] = float(np.sum(made.get_weights()[0]))
    return told


def main(index: int, out: str, shared: str, jobs: list[str]) -> None:
    told = {}
    for each in jobs:
        kind, address = each.split("=")
        began = time.monotonic()
        told[kind] = job(kind, address, index, Path(shared))
        print(kind, time.monotonic() - began, file=sys.stderr, flush=True)
    Path(out).write_text(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
