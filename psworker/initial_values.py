"""What a training loop gives `connect`: a Keras model, or values by name, or with their specifications."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pswire.logs.events import event
from pswire.model.plan import VariableSpec
from pswire.nearest import did_you_mean

log = logging.getLogger("ps-worker")

# Initial values, by name, or with the specifications of the variables; or a Keras model.
Variables = Mapping[str, ArrayLike] | Sequence[tuple[VariableSpec, ArrayLike]] | Any
# What layers keep beside their weights, by the ends of Keras' names.
_STATE = ("moving_mean", "moving_variance", "moving_norm")


def specified(variables: Variables, state: Collection[str] | None) -> list[tuple[VariableSpec, ArrayLike]]:
    """With their specifications. Raises ValueError for a model that is not built, and unknown names of state."""
    if hasattr(variables, "trainable_weights"):
        _no_state_beside(state, "a Keras model, which knows its state")
        return _of_model(variables)
    if not isinstance(variables, Mapping):
        _no_state_beside(state, "specifications, which say it")
        return list(variables)
    arrays = {str(name): np.asarray(value) for name, value in variables.items()}
    unknown = sorted(set(state or ()) - arrays.keys())
    if unknown:
        raise ValueError(
            f"state: there is no variable {unknown[0]!r}{did_you_mean(unknown[0], list(arrays))}"
        )
    if state is None:
        _warn_of_state(arrays)
    trained = set(arrays) - set(state or ())
    return [
        (VariableSpec(name, a.shape, str(a.dtype), "trainable" if name in trained else "state"), a)
        for name, a in arrays.items()
    ]


def _no_state_beside(state: Collection[str] | None, what: str) -> None:
    if state is not None:
        raise ValueError(f"state: expected none beside {what}")


def _of_model(model: Any) -> list[tuple[VariableSpec, ArrayLike]]:
    # Imported here: it loads TensorFlow, which whoever has a Keras model has loaded.
    from psworker.backends.tensorflow.variables import collect
    from psworker.job.errors import JobError

    try:
        found = collect(model)
    except JobError as error:
        raise ValueError(str(error)) from error
    return list(zip(found.specs, found.values(), strict=True))


def _warn_of_state(names: Collection[str]) -> None:
    doubtful = [name for name in names if name.rpartition("/")[2] in _STATE]
    if doubtful:
        log.warning(
            "%s will be trained by the servers' optimizer, and %s like state of a layer: give connect() the Keras "
            "model itself, or say state=[...] ([] where this is meant)",
            *(", ".join(doubtful[:4]), "looks" if len(doubtful) == 1 else "they look"),
            extra=event("state_is_trained"),
        )
