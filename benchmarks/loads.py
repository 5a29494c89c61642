"""What is measured: sizes, models, and the ratios that were aimed at."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.kinds import GRPC, GRPC_BF16, SHM, SOCKET, SOCKET_BF16

MB = 1e6

Shapes = tuple[tuple[int, ...], ...]


def dense(*widths: int) -> Shapes:
    """Shapes of a chain of layers: a matrix and a bias each."""
    pairs = zip(widths[:-1], widths[1:], strict=True)
    return tuple(shape for rows, columns in pairs for shape in ((rows, columns), (columns,)))


# Of the models in programs/models.py, by name.
MODEL_SHAPES: Mapping[str, Shapes] = {
    "mlp": dense(1024, 4096, 3072, 10),
    "cnn": ((3, 3, 1, 16), (16,), (3, 3, 16, 32), (32,), (4 * 4 * 32, 10), (10,)),
    # 100 layers.
    "deep": dense(*[32] * 100, 10),
}


@dataclass(frozen=True)
class Load:
    """One row of a table.

    Either `shapes`, whose values are pulled and whose prepared gradient is pushed without any computation, or `model`,
    a name in programs/models.py, with real training steps. `think`: seconds that each worker idles in a step, as if an
    accelerator computed. `targets`: wanted multiples of TensorFlow's rate, by peer.
    """

    name: str
    shapes: Shapes = ()
    model: str = ""
    workers: int = 1
    servers: int = 1
    think: float = 0.0
    targets: Mapping[str, float] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of `shapes` in float32; 0 for a model."""
        return 4 * sum(math.prod(shape) for shape in self.shapes)

    @property
    def weights(self) -> Shapes:
        """Shapes of all weights."""
        return self.shapes or MODEL_SHAPES[self.model]


def even(megabytes: float, variables: int) -> Shapes:
    """`variables` vectors of equal length, float32, `megabytes` together."""
    return ((round(megabytes * MB / 4 / variables),),) * variables


def _targets(float32: float, shared: float, bfloat16: float | None = None) -> dict[str, float]:
    """What is wanted over TCP, by gRPC's stream or the socket beside it, and through shared memory."""
    wanted = {GRPC: float32, SOCKET: float32, SHM: shared}
    return wanted if bfloat16 is None else {**wanted, GRPC_BF16: bfloat16, SOCKET_BF16: bfloat16}


TRANSPORT = (
    Load("0.26 MB, 4 variables", even(0.26, 4), targets=_targets(4, 8)),
    Load("0.66 MB, 40 variables", even(0.66, 40), targets=_targets(5, 12)),
    Load("16.8 MB, 4 variables", even(16.8, 4), targets=_targets(1.1, 5, 1.8)),
    Load("67 MB, 4 variables", even(67, 4), targets=_targets(1.1, 4, 1.8)),
    Load("67 MB, 4 variables, 2 workers", even(67, 4), workers=2, targets=_targets(1.1, 4, 1.8)),
)

TRAINING = (
    Load("MLP, 17M parameters", model="mlp"),
    Load("CNN on digits", model="cnn"),
    Load("200 small variables", model="deep"),
)
