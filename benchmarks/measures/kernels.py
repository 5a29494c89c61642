"""Updates of a server at memory speed: our fused loops, their numpy fallbacks, Keras, and the triad limit.

    rows = measure(elements=1 << 24, threads=(1, 2))
    print(text(rows))

Bandwidth counts each word that a pass must read or write once, as STREAM
counts: no write-allocate traffic. The triad runs through the same pool of
threads over arrays of the same size, next to each measurement, so that the
ratio holds for this machine at this moment.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measures.samples import Samples, collected, each
from benchmarks.peers.child import Child
from psserver.fast import FastBackend
from psserver.optimizers import NUMPY, Backend, Loop, Optimizer, build, loop
from psserver.shard import arithmetic

Floats = NDArray[np.float32]
Step = Callable[[Backend], None]

ELEMENTS = 1 << 24
# Ours -> Keras's class and its knobs; folding has no counterpart there.
KERAS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
    "adagrad": ("Adagrad", {}),
    "rmsprop": ("RMSprop", {}),
}
FOLD = "fold"
NAMES = (*KERAS, FOLD)


@loop("wrrf")
def triad(a: Floats, b: Floats, c: Floats, s: np.float32) -> None:
    for i in range(a.size):
        a[i] = b[i] + s * c[i]


def _triad(a: Floats, b: Floats, c: Floats, s: np.float32) -> None:
    np.multiply(c, s, out=a)
    np.add(a, b, out=a)


@dataclass(frozen=True, slots=True)
class Row:
    """One pass with one number of threads. `words`: float32 numbers of traffic per element.

    Samples are GB/s, one per repetition, in the same order for all. `keras`
    counts the same words although it moves more: it is time that compares.
    """

    name: str
    threads: int
    elements: int
    words: int
    triad: Samples
    fused: Samples
    numpy: Samples
    keras: Samples | None

    @property
    def of_triad(self) -> Samples:
        """Share of the triad limit, repetition by repetition."""
        return self.fused.per(self.triad)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Arena:
    """Arrays that every pass shares, so that one set of pages is measured."""

    def __init__(self, elements: int) -> None:
        generator = np.random.default_rng(0)
        self.x = generator.standard_normal(elements, np.float32)
        self.g = generator.standard_normal(elements, np.float32)
        self.out = np.zeros(elements, np.float32)

    def triad(self, backend: Backend) -> None:
        backend.run(triad, _triad, (self.out, self.x, self.g), (np.float32(0.5),))

    def step(self, name: str) -> tuple[Step, int]:
        """One pass, and its words per element.

        Factors are of size 1: the fallbacks spoil `g`, and repeated shrinking would make it subnormal, and slow.
        """
        if name == FOLD:
            return lambda backend: arithmetic.fold(self.x, -1.0, self.g, -1.0, backend), 3
        optimizer = build({"name": name, "learning_rate": 1.0})
        state = optimizer.init(self.x.size)

        def update(backend: Backend) -> None:
            optimizer.update(
                self.x, self.g, self.out, state, version=0, lr_scale=1.0, scale=-1.0, backend=backend
            )

        return update, 3 + 2 * len(state)


def variants(names: Sequence[str]) -> list[tuple[Loop, str]]:
    optimizers: list[Optimizer] = [build({"name": name}) for name in names if name != FOLD]
    own = [(one, one.letters) for one in (triad, *arithmetic.LOOPS)]
    return [*own, *(optimizer.variant() for optimizer in optimizers)]


def measure(
    names: Sequence[str] = NAMES,
    *,
    elements: int = ELEMENTS,
    threads: Sequence[int] = (1, 2),
    repetitions: int = 5,
    seconds: float = 0.2,
    keras: bool = True,
    logs: Path = Path("runs/bench-kernels"),
    progress: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Measure passes of `elements` float32; about `seconds` per sample. `progress` gets a line before each.

    Raises RuntimeError when the loops cannot be compiled, and ChildError when Keras fails.
    """
    arena, rows = Arena(elements), []
    for count in threads:
        with ExitStack() as stack:
            backend = stack.enter_context(FastBackend(count))
            backend.prepare(variants(names))
            if not backend.wait_ready():
                raise RuntimeError(f"expected compiled loops, but {backend.reason}")
            oracle = stack.enter_context(_keras(elements, count, logs)) if keras else None
            for name in names:
                progress(f"{name}, {count} thread(s)")
                rows.append(_row(arena, name, backend, oracle, repetitions, seconds))
    return rows


def _row(
    arena: Arena, name: str, backend: FastBackend, oracle: Child | None, repetitions: int, seconds: float
) -> Row:
    step, words = arena.step(name)
    gigabytes = 4 * words * arena.x.size / 1e9
    samples: dict[str, list[float]] = {"triad": [], "fused": [], "numpy": [], "keras": []}
    if name not in KERAS:
        oracle = None
    if oracle is not None:
        kind, knobs = KERAS[name]
        oracle.ask("prepare", name=kind, knobs=knobs)
    for _ in range(repetitions):
        triads = [each(lambda: arena.triad(backend), seconds / 2)]
        samples["fused"].append(gigabytes / each(lambda: step(backend), seconds))
        # Once before and once after: the limit of the moment.
        triads.append(each(lambda: arena.triad(backend), seconds / 2))
        samples["triad"].append(4 * 3 * arena.x.size / 1e9 / (sum(triads) / 2))
        samples["numpy"].append(gigabytes / each(lambda: step(NUMPY), seconds))
        if oracle is not None:
            samples["keras"].append(gigabytes / oracle.ask("step", seconds=seconds)["seconds"])
        arena.g[:] = arena.x[::-1]
    done = {key: collected(values) for key, values in samples.items() if values}
    return Row(
        name,
        backend.threads,
        arena.x.size,
        words,
        done["triad"],
        done["fused"],
        done["numpy"],
        done.get("keras"),
    )


@contextmanager
def _keras(elements: int, threads: int, logs: Path) -> Iterator[Child]:
    program = ["-m", "benchmarks.programs.tensorflow.optimizers", str(elements), str(threads)]
    child = Child("keras", program, logs / f"keras-{threads}.log")
    try:
        yield child
    finally:
        child.close()


def text(rows: Sequence[Row]) -> str:
    """A table: medians in GB/s, spread of the share of the triad limit, speed-up over numpy and Keras."""
    heads = ("pass", "threads", "triad", "fused", "of triad", "numpy", "keras", "x numpy", "x keras")
    lines = [heads]
    for row in rows:
        share = row.of_triad
        keras = row.keras
        lines.append(
            (
                row.name,
                str(row.threads),
                f"{row.triad.median:.1f}",
                f"{row.fused.median:.1f}",
                f"{share.median:.2f} +-{share.spread:.0%}",
                f"{row.numpy.median:.1f}",
                f"{keras.median:.1f}" if keras else "",
                f"{row.fused.per(row.numpy).median:.1f}",
                f"{row.fused.per(keras).median:.1f}" if keras else "",
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines)
