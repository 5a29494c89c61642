"""Slots of the servers' optimizer in the model's Keras optimizer, so that plain Keras can continue from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from psworker.backends.keras.step import unwrapped
from psworker.keras.translate import keras_row


def slot_lists(optimizer: Any) -> list[list[Any]]:
    """List, for each slot that servers have, too, the optimizer's variables, in the order in which it trains."""
    optimizer = unwrapped(optimizer)
    row = keras_row(optimizer)
    assert row is not None, "it was translated"
    names = row.slots({knob: getattr(optimizer, setting) for knob, setting in row.knobs.items()})
    found = [list(getattr(optimizer, name)) for name in names]
    if isinstance(optimizer, keras.optimizers.Adafactor):
        vectors = [len(variable.shape) < 2 for variable in optimizer._trainable_variables]
        rows, columns = found
        rows = [v if one else r for one, v, r in zip(vectors, optimizer._v, rows, strict=True)]
        found = [rows, [None if one else c for one, c in zip(vectors, columns, strict=True)]]
    return found


def assign_slots(optimizer: Any, slots: Sequence[Mapping[int, np.ndarray[Any, Any]]], version: int) -> None:
    """Load the servers' slots of `version` into a Keras optimizer.

    `slots`: for each of `slot_lists`, an array per trained variable, by the id of its keras.Variable.
    """
    optimizer = unwrapped(optimizer)
    trained = [id(variable) for variable in optimizer._trainable_variables]
    for variables, arrays in zip(slot_lists(optimizer), slots, strict=True):
        for variable, key in zip(variables, trained, strict=True):
            if variable is not None:
                # Adafactor's are smaller than their variable, and lie at its beginning.
                size = int(np.prod(variable.shape))
                variable.assign(arrays[key].reshape(-1)[:size].reshape(variable.shape))
    if isinstance(optimizer, keras.optimizers.Nadam):
        optimizer._u_product.assign(_product(optimizer.beta_1, version))
    optimizer._iterations.assign(version * (optimizer.gradient_accumulation_steps or 1))


def _product(beta_1: float, updates: int) -> np.float32:
    """Multiply up Nadam's running product, which all variables share."""
    one, product = np.float32(1), np.float32(1)
    for step in range(1, updates + 1):
        factor = one - np.float32(0.5) * np.power(np.float32(0.96), np.float32(step))
        product = np.float32(np.float32(product * np.float32(beta_1)) * factor)
        if not product:
            break
    return product
