"""Which loads and which peers make a section of the benchmark."""

from collections.abc import Callable
from pathlib import Path

from benchmarks import kinds, loads
from benchmarks.loads import Load
from benchmarks.measures import kernels
from benchmarks.measures.rounds import SHORT, Mode, Progress, Row
from benchmarks.stage import Stage

Chosen = Callable[[Load], bool]

COMPARED = (
    kinds.TF,
    kinds.TF_PACKED,
    kinds.GRPC,
    kinds.GRPC_BF16,
    kinds.SOCKET,
    kinds.SOCKET_BF16,
    kinds.SHM,
)

# Seconds per step that every worker idles in half of the scaling table, as if an
# accelerator computed: without that, one worker already takes all there is.
THINK = 0.05


def transport(stage: Stage, chosen: Chosen) -> dict[str, list[Row]]:
    """Communication only, in the clear and over TLS."""
    peers = stage.choose(*COMPARED, kinds.GRPC_TLS, kinds.SOCKET_TLS)
    return {"transport": [stage.measure(load, peers) for load in loads.TRANSPORT if chosen(load)]}


def training(stage: Stage, chosen: Chosen) -> dict[str, list[Row]]:
    """Real training steps; with our step alone, whose rate nobody's communication can exceed."""
    peers = stage.choose(*COMPARED, kinds.ALONE)
    return {"training": [stage.measure(load, peers) for load in loads.TRAINING if chosen(load)]}


def checkouts(stage: Stage, chosen: Chosen) -> dict[str, list[Row]]:
    """Communication only: this checkout and another, a pair of the same kind at a time, taking turns."""
    pairs = stage.pairs()
    return {
        "against": [stage.measure(load, pair) for load in loads.TRANSPORT if chosen(load) for pair in pairs]
    }


def scaling(stage: Stage, chosen: Chosen) -> dict[str, list[Row]]:
    """Several workers and servers, with and without compute elsewhere."""
    short = stage.mode is SHORT
    workers, servers = ((1, 2, 4), (1, 2)) if short else ((1, 2, 4, 8), (1, 2, 4))
    peers = stage.choose(kinds.GRPC, kinds.SOCKET, kinds.SHM)
    return {
        title: [stage.measure(load, peers) for load in loads.scaling(workers, servers, think) if chosen(load)]
        for title, think in (
            ("scaling, communication only, 16.8 MB", 0.0),
            (f"scaling, {THINK * 1e3:.0f} ms of compute elsewhere per step, 16.8 MB", THINK),
        )
    }


# The short mode leaves out rules that differ little from their neighbours.
SHORT_KERNELS = ("sgd", "adam", kernels.FOLD)


def optimizers(mode: Mode, logs: Path, say: Progress) -> list[kernels.Row]:
    """Update kernels against the machine's memory bandwidth, numpy and Keras."""
    names = SHORT_KERNELS if mode is SHORT else kernels.NAMES
    return kernels.measure(names, repetitions=mode.rounds, seconds=mode.seconds / 4, logs=logs, progress=say)
