"""Data as work units, on the worker's side: what a unit is made of, and the batches of a dealt part.

units    `WorkUnits`, what a job declares; `Unit`, what its dataset is given
source   from a grant's part to its batches
"""

from psworker.work.units import Unit, WorkUnits

__all__ = ["Unit", "WorkUnits"]
