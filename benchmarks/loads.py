"""What is measured: payloads of several sizes."""

import math
from dataclasses import dataclass

MB = 1e6

Shapes = tuple[tuple[int, ...], ...]


def dense(*widths: int) -> Shapes:
    """Shapes of a chain of layers: a matrix and a bias each."""
    pairs = zip(widths[:-1], widths[1:], strict=True)
    return tuple(shape for rows, columns in pairs for shape in ((rows, columns), (columns,)))


@dataclass(frozen=True)
class Load:
    """One row of a table: weights of `shapes` are pulled, and a prepared gradient is pushed without any computation."""

    name: str
    shapes: Shapes = ()
    workers: int = 1
    servers: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of `shapes` in float32."""
        return 4 * sum(math.prod(shape) for shape in self.shapes)


def even(megabytes: float, variables: int) -> Shapes:
    """`variables` vectors of equal length, float32, `megabytes` together."""
    return ((round(megabytes * MB / 4 / variables),),) * variables


TRANSPORT = (
    Load("0.26 MB, 4 variables", even(0.26, 4)),
    Load("0.66 MB, 40 variables", even(0.66, 40)),
    Load("16.8 MB, 4 variables", even(16.8, 4)),
    Load("67 MB, 4 variables", even(67, 4)),
    Load("67 MB, 4 variables, 2 workers", even(67, 4), workers=2),
)
# Codecs with blocks work on rows of matrices.
MATRICES = Load("67 MB, matrices of an MLP", dense(1024, 4096, 3072, 10))
