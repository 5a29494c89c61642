"""Held-out data measured while training, by worker 0, and what follows from it: the best model, a lower learning rate,
an early end."""

from psworker.evaluating.evaluations import Evaluations
from psworker.evaluating.every import Every
from psworker.evaluating.plateau import Plateau
from psworker.evaluating.watched import MonitorError, Watched

__all__ = ["Evaluations", "Every", "MonitorError", "Plateau", "Watched"]
