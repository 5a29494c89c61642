"""Slots of the servers' optimizer in the model's Keras optimizer, so that plain Keras can continue from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from psworker.backends.keras import unwrapped
from psworker.keras.translate import kind_of

# The attributes in which a Keras optimizer keeps its slots, in the order of the server's rule: lists of variables,
# absent or empty where its settings need none.
_MEANS = ("_momentums", "_velocities", "_velocity_hats")
LISTS: Mapping[type[Any], tuple[str, ...]] = {
    keras.optimizers.SGD: ("momentums",),
    keras.optimizers.Adam: _MEANS,
    keras.optimizers.AdamW: _MEANS,
    keras.optimizers.Nadam: _MEANS,
    keras.optimizers.Lamb: _MEANS,
    keras.optimizers.Adamax: ("_m", "_u"),
    keras.optimizers.Adagrad: ("_accumulators",),
    keras.optimizers.Adadelta: ("_accumulated_grads", "_accumulated_delta_vars"),
    keras.optimizers.RMSprop: ("_velocities", "_momentums", "_average_gradients"),
    keras.optimizers.Lion: ("_momentums",),
    keras.optimizers.Ftrl: ("_accumulators", "_linears"),
    # Rows and columns of a matrix; for a vector `_v` takes the place of the rows.
    keras.optimizers.Adafactor: ("_r", "_c"),
}


def slot_lists(optimizer: Any) -> list[list[Any]]:
    """List, for each slot that servers have, too, the optimizer's variables, in the order in which it trains."""
    optimizer = unwrapped(optimizer)
    found = [list(getattr(optimizer, name, ())) for name in LISTS[kind_of(optimizer)]]
    if isinstance(optimizer, keras.optimizers.Adafactor):
        vectors = [len(variable.shape) < 2 for variable in optimizer._trainable_variables]
        rows, columns = found
        rows = [v if one else r for one, v, r in zip(vectors, optimizer._v, rows, strict=True)]
        found = [rows, [None if one else c for one, c in zip(vectors, columns, strict=True)]]
    return [slots for slots in found if slots]


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
