"""The command `scripts/bench fit`: samples per second of `model.fit`, plain and on one embedded server, in turns.

Beside them TensorFlow's ParameterServerStrategy, which has no `fit` with Keras 3: a chief that schedules the same
step, a worker and a parameter server, with Adam where the variables are.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil

from benchmarks.measures.fits import Samples, ratio
from benchmarks.peers.child import ROOT
from benchmarks.peers.theirs import Cluster
from benchmarks.programs.fit_cases import CASES

CHIEF = "benchmarks.programs.tensorflow.keras_chief"
BACKENDS = ("tensorflow", "jax", "torch")


def clocks() -> tuple[float, float, float]:
    process = psutil.Process()
    own, children = process.cpu_times(), [each.cpu_times() for each in process.children(recursive=True)]
    return time.perf_counter(), own.user + own.system, sum(each.user + each.system for each in children)


def measure(name: str, rounds: int, theirs: Cluster | None) -> None:
    import psworker.keras  # isort: skip  (before Keras)
    import keras

    model, x, y, batch = CASES[name]()
    steps = len(x) // batch
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss)
    other = keras.models.clone_model(model)
    other.compile(optimizer="adam", loss=loss)
    plain, ours, strategy = Samples(steps), Samples(steps), Samples(steps)
    if theirs is not None:
        theirs.chief.ask("prepare", load=name)
    with psworker.keras.distribute(other):
        for turn in range(rounds + 1):
            for found, each in ((plain, model), (ours, other)):
                before = clocks()
                each.fit(x, y, batch_size=batch, verbose=0)
                after = clocks()
                if turn:  # the first traces
                    for kind, a, b in zip((found.wall, found.cpu, found.server), before, after, strict=True):
                        kind.append(b - a)
            if theirs is not None and turn:
                told = theirs.chief.ask("measure", load=name, steps=steps)
                strategy.wall.append(told["end"] - told["begin"])
    if theirs is not None:
        theirs.chief.ask("release", load=name)
    # The server waits meanwhile, and the chief is not this process.
    plain.server = []
    print(
        f"  {model.count_params():,} parameters, {len(x) / statistics.median(plain.wall):,.0f} samples/s plain"
    )
    print(f"  plain       {plain.per_step()}")
    print(f"  distributed {ours.per_step()}")
    print(f"  distributed by plain: {ratio(plain, ours)} of its samples/s")
    if strategy.wall:
        print(f"  TensorFlow  {strategy.per_step()}")
        print(f"  distributed by TensorFlow's: {ratio(strategy, ours)} of its samples/s")
    print(end="", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="bench fit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s, behind one that traces")
    parser.add_argument("--case", default="", help="only cases whose name has this in it")
    parser.add_argument(
        "--strategy",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="with TensorFlow its ParameterServerStrategy, too; default: yes",
    )
    parser.add_argument(
        "--backend",
        default="tensorflow",
        help="Keras' backend, or several with commas between them: tensorflow, jax, torch; default: %(default)s",
    )
    given = sys.argv[1:] if arguments is None else list(arguments)
    chosen = parser.parse_args(given)
    if chosen.rounds < 1:
        parser.error(f"--rounds: expected 1 or more, got {chosen.rounds}")
    cases = [name for name in CASES if chosen.case.lower() in name.lower()]
    if not cases:
        parser.error(f"--case: expected a part of one of {'; '.join(CASES)}, got {chosen.case!r}")
    backends = chosen.backend.split(",")
    for name in backends:
        if name not in BACKENDS:
            parser.error(f"--backend: expected some of {','.join(BACKENDS)}, got {name!r}")
    if len(backends) > 1:
        # Each in a process of its own, as Keras has one backend.
        for name in backends:
            command = [sys.executable, "-m", "benchmarks", "fit", *given, "--backend", name]
            subprocess.run(command, cwd=ROOT, check=True)
        return
    [backend] = backends
    os.environ["KERAS_BACKEND"] = backend
    print(f"Keras on {backend}", flush=True)
    strategy = chosen.strategy and backend == "tensorflow"
    theirs = Cluster(1, ROOT / "runs" / "bench-fit", CHIEF) if strategy else None
    try:
        for name in cases:
            print(name, flush=True)
            measure(name, chosen.rounds, theirs)
    finally:
        if theirs is not None:
            theirs.close()


if __name__ == "__main__":
    main()
