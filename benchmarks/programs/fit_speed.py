"""The command `scripts/bench fit`: samples per second of `model.fit`, plain and on one embedded server, in turns."""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import psutil

import psworker.keras  # isort: skip  (before Keras)
import keras

# Of one fit.
STEPS = 40


def mlp(width: int, depth: int, batch: int) -> tuple[keras.Model, np.ndarray, np.ndarray, int]:
    """A classifier of `depth` layers of `width` units."""
    layers = [keras.Input((width,)), *(keras.layers.Dense(width, activation="relu") for _ in range(depth))]
    return keras.Sequential([*layers, keras.layers.Dense(10)]), *_data((width,), batch), batch


def cnn(batch: int) -> tuple[keras.Model, np.ndarray, np.ndarray, int]:
    """The network of examples/digits_cnn.py."""
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.25),
            keras.layers.Dense(10),
        ]
    )
    return model, *_data((8, 8, 1), batch), batch


def _data(shape: tuple[int, ...], batch: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    count = STEPS * batch
    return generator.normal(size=(count, *shape)).astype(np.float32), generator.integers(0, 10, count)


CASES = {
    "MLP, 1 M parameters, batches of 128": lambda: mlp(512, 4, 128),
    "digits CNN, batches of 32": lambda: cnn(32),
    "digits CNN, batches of 256": lambda: cnn(256),
    "MLP, 17 M parameters, batches of 128": lambda: mlp(2048, 4, 128),
}


@dataclass
class Samples:
    """Of each round: seconds of wall clock, of this process's CPU, and of its children's (the server)."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)

    def per_step(self) -> str:
        """Medians, in milliseconds."""
        wall, cpu, server = (
            statistics.median(each) / STEPS * 1e3 for each in (self.wall, self.cpu, self.server)
        )
        return f"{wall:7.2f} ms a step (CPU {cpu:.2f}" + (f", server {server:.2f})" if server else ")")


def clocks() -> tuple[float, float, float]:
    process = psutil.Process()
    own, children = process.cpu_times(), [each.cpu_times() for each in process.children(recursive=True)]
    return time.perf_counter(), own.user + own.system, sum(each.user + each.system for each in children)


def measure(made: tuple[keras.Model, np.ndarray, np.ndarray, int], rounds: int) -> None:
    model, x, y, batch = made
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss)
    other = keras.models.clone_model(model)
    other.compile(optimizer="adam", loss=loss)
    plain, ours = Samples(), Samples()
    with psworker.keras.distribute(other):
        for turn in range(rounds + 1):
            for found, each in ((plain, model), (ours, other)):
                before = clocks()
                each.fit(x, y, batch_size=batch, verbose=0)
                after = clocks()
                if turn:  # the first traces
                    for kind, a, b in zip((found.wall, found.cpu, found.server), before, after, strict=True):
                        kind.append(b - a)
    # Of the plain rounds the server's share is only that it waits.
    plain.server = [0.0]
    ratios = [p / d for p, d in zip(plain.wall, ours.wall, strict=True)]
    print(
        f"  {model.count_params():,} parameters, {len(x) / statistics.median(plain.wall):,.0f} samples/s plain"
    )
    print(f"  plain       {plain.per_step()}")
    print(f"  distributed {ours.per_step()}")
    print(
        f"  ratio of samples/s: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench fit", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s, behind one that traces")
    parser.add_argument("--case", default="", help="only cases whose name has this in it")
    chosen = parser.parse_args(arguments)
    if chosen.rounds < 1:
        parser.error(f"--rounds: expected 1 or more, got {chosen.rounds}")
    cases = {name: make for name, make in CASES.items() if chosen.case.lower() in name.lower()}
    if not cases:
        parser.error(f"--case: expected a part of one of {'; '.join(CASES)}, got {chosen.case!r}")
    for name, make in cases.items():
        print(name, flush=True)
        measure(make(), chosen.rounds)


if __name__ == "__main__":
    main()
