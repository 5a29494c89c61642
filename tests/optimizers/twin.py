"""Formulas evaluated by numpy, operation by operation: what compiled loops are compared with."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from psserver.fast import Loop
from psserver.optimizers import Optimizer, describe
from psserver.optimizers.formulas import Formula, Value
from psserver.optimizers.rule import Rule

OPERATIONS: dict[str, Any] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "max": np.maximum,
    "sign": np.sign,
    ">": lambda a, b, then, other: np.where(a > b, then, other),
    "<=": lambda a, b, then, other: np.where(a <= b, then, other),
}


def evaluated(formula: Formula, inputs: Mapping[str, Any], size: int) -> dict[str, np.ndarray]:
    """Return all results of a formula. `inputs`: x, g, slots and scalars."""
    known: dict[Value, np.ndarray] = {}

    def value_of(value: Value) -> np.ndarray:
        if value not in known:
            found = OPERATIONS[value.op](*map(value_of, value.args)) if value.args else inputs[value.name]
            known[value] = np.broadcast_to(found, size)
        return known[value]

    with np.errstate(all="ignore"):
        return {name: value_of(value).copy() for name, value in formula.results.items()}


class NumpyBackend:
    """Runs the loops of one optimizer in numpy, in place of `psserver.fast.Backend`."""

    def __init__(self, optimizer: Optimizer) -> None:
        rule = optimizer.rule
        assert isinstance(rule, Rule)
        self._formula, self._loop = rule._formula(), rule.fused(np.float32(0), 1).loop

    def run(self, loop: Loop, arrays: Sequence[np.ndarray], scalars: Sequence[np.float32]) -> bool:
        assert loop is self._loop
        formula, (x, g, out, *slots) = self._formula, arrays
        *own, factor, scale, tiny = scalars
        with np.errstate(all="ignore"):
            g = g * factor * scale
        inputs = {"x": x, "g": g, **dict(zip(formula.slots, slots, strict=True)), "zero": np.float32(0)}
        found = evaluated(formula, {**inputs, **dict(zip(formula.scalars, own, strict=True))}, x.size)
        fine = np.logical_and.reduce([np.isfinite(each) for each in found.values()])
        out[...] = np.where(fine, found["x"], np.float32(np.nan))
        for name, slot in zip(formula.slots, slots, strict=True):
            new = np.where(np.abs(found[name]) < tiny, np.float32(0), found[name])
            slot[...] = np.where(fine, new, slot)
        return bool(fine.all())


def decays(name: str) -> bool:
    """Return whether the rule has the knob `weight_decay`."""
    return any(knob.name == "weight_decay" for knob in describe(name).knobs)
