"""The quadratic f(x) = 1/2 sum_i h_i (x_i - c_i)^2, for which theory is exact."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pslab.simulator.problems.problem import Floats, Gradient, Parameters


@dataclass(frozen=True)
class Batch:
    worker: int
    # Added to the gradient; of the shape of x.
    noise: Floats


@dataclass(frozen=True)
class Quadratic:
    """A quadratic with curvatures h_i from 1 to 1/`condition` on a log scale, and gradient noise N(0, noise^2).

    `centres` and `curvatures` make the workers' data differ: worker w minimises
    ``curvatures[w]/2 sum_i h_i (x_i - centres[w])^2`` (both are repeated cyclically), and the optimum is that of the
    workers' mean.
    """

    dimensions: int = 10
    condition: float = 10.0
    noise: float = 0.0
    start: float = 1.0
    batches_per_epoch: int = 100
    centres: tuple[float, ...] = (0.0,)
    curvatures: tuple[float, ...] = (1.0,)

    @cached_property
    def h(self) -> Floats:
        return np.logspace(0, -np.log10(self.condition), self.dimensions).astype(np.float32)

    @property
    def optimum(self) -> float:
        """Each coordinate of the minimum of the workers' mean, with each (centre, curvature) once."""
        pairs = [self._of(worker) for worker in range(max(len(self.centres), len(self.curvatures)))]
        return sum(c * k for c, k in pairs) / sum(k for _, k in pairs)

    def _of(self, worker: int) -> tuple[float, float]:
        return self.centres[worker % len(self.centres)], self.curvatures[worker % len(self.curvatures)]

    def initial(self) -> Parameters:
        return {"x": np.full(self.dimensions, self.start, np.float32)}

    def batches(self, worker: int, workers: int, seed: int, epoch: int) -> Iterator[Batch]:
        rng = np.random.default_rng([seed, worker, epoch])
        for _ in range(self.batches_per_epoch):
            noise = rng.standard_normal(self.dimensions) if self.noise else np.zeros(self.dimensions)
            yield Batch(worker, (self.noise * noise).astype(np.float32))

    def gradient(self, parameters: Parameters, batch: Batch) -> Gradient:
        centre, curvature = self._of(batch.worker)
        away = parameters["x"] - np.float32(centre)
        pull = np.float32(curvature) * self.h * away
        loss = 0.5 * float(np.vdot(pull, away))
        return Gradient({"x": pull + batch.noise}, loss, 1)

    def evaluate(self, parameters: Parameters) -> dict[str, float]:
        """Return `loss` (above the optimum's), `distance` from the optimum, `gradient` (the norm of that of f)."""
        away = parameters["x"].astype(np.float64) - self.optimum
        pairs = [self._of(worker) for worker in range(max(len(self.centres), len(self.curvatures)))]
        mean = sum(k for _, k in pairs) / len(pairs)
        return {
            "loss": 0.5 * mean * float(self.h @ away**2),
            "distance": float(np.linalg.norm(away)),
            "gradient": mean * float(np.linalg.norm(self.h * away)),
        }
