"""The command `scripts/bench fit`: samples per second of `model.fit`, plain and on one embedded server, in turns.

Beside them TensorFlow's ParameterServerStrategy, which has no `fit` with Keras 3: a chief that schedules the same
step, a worker and a parameter server, with Adam where the variables are.
"""

import os
import statistics
import time
from collections.abc import Sequence

import click
import psutil

from benchmarks.fit.cases import CASES
from benchmarks.peers.child import ROOT
from benchmarks.peers.theirs import Cluster
from benchmarks.samples import collected
from pswire.command.options import CONTEXT

CHIEF = "benchmarks.fit.keras_chief"
BACKENDS = ("tensorflow", "jax", "torch")

# Seconds of one round: of the wall clock, of this process's CPU, and of its children's (the server).
Round = tuple[float, ...]


def per_step(rounds: Sequence[Round], steps: int) -> str:
    """Medians of a step, in milliseconds."""
    wall, *spent = (1e3 * statistics.median(each) / steps for each in zip(*rounds, strict=True))
    named = [f"{name} {each:.2f}" for name, each in zip(("CPU", "server"), spent, strict=False)]
    return f"{wall:7.2f} ms a step" + (f" ({', '.join(named)})" if named else "")


def ratio(slow: Sequence[Round], fast: Sequence[Round]) -> str:
    """Of the samples per second, within each round: median and range."""
    one, other = (collected([wall for wall, *_ in rounds]) for rounds in (slow, fast))
    found = one.per(other)
    return f"{found.median:.2f} ({min(found.values):.2f} to {max(found.values):.2f})"


def clocks() -> Round:
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
    plain, ours, strategy = list[Round](), list[Round](), list[Round]()
    if theirs is not None:
        theirs.chief.ask("prepare", load=name)
    with psworker.keras.distribute(other):
        for turn in range(rounds + 1):
            for found, each in ((plain, model), (ours, other)):
                before = clocks()
                each.fit(x, y, batch_size=batch, verbose=0)
                after = clocks()
                if turn:  # the first traces
                    found.append(tuple(b - a for a, b in zip(before, after, strict=True)))
            if theirs is not None and turn:
                told = theirs.chief.ask("measure", load=name, steps=steps)
                strategy.append((told["end"] - told["begin"],))
    if theirs is not None:
        theirs.chief.ask("release", load=name)
    # The server waits meanwhile.
    plain = [(wall, cpu) for wall, cpu, _ in plain]
    usual = statistics.median(wall for wall, _ in plain)
    print(f"  {model.count_params():,} parameters, {len(x) / usual:,.0f} samples/s plain")
    print(f"  plain       {per_step(plain, steps)}")
    print(f"  distributed {per_step(ours, steps)}")
    print(f"  distributed by plain: {ratio(plain, ours)} of its samples/s")
    if strategy:
        print(f"  TensorFlow  {per_step(strategy, steps)}")
        print(f"  distributed by TensorFlow's: {ratio(strategy, ours)} of its samples/s")
    print(end="", flush=True)


@click.command(context_settings=CONTEXT)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="After one that traces.")
@click.option("--case", default="", help="Only cases whose name contains this text.")
@click.option(
    "--strategy/--no-strategy",
    default=True,
    show_default=True,
    help="On TensorFlow, measure its ParameterServerStrategy as well.",
)
@click.option(
    "--backend", type=click.Choice(BACKENDS), default=BACKENDS[0], show_default=True, help="Of Keras."
)
def main(rounds: int, case: str, strategy: bool, backend: str) -> None:
    """Measure `model.fit` on one embedded server beside plain `fit`, in turns."""
    cases = [name for name in CASES if case.lower() in name.lower()]
    if not cases:
        raise click.UsageError(f"--case: expected a part of one of {'; '.join(CASES)}, got {case!r}")
    os.environ["KERAS_BACKEND"] = backend
    click.echo(f"Keras on {backend}")
    beside = strategy and backend == "tensorflow"
    theirs = Cluster(1, ROOT / "runs" / "bench-fit", CHIEF) if beside else None
    try:
        for name in cases:
            click.echo(name)
            measure(name, rounds, theirs)
    finally:
        if theirs is not None:
            theirs.close()
