"""Types of batches, as open as the batches differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def opened(spec: Any, known: Sequence[Any]) -> Any:
    """`spec`, with every axis open in which it differs from a known one of its kind."""
    for earlier in known:
        if _same_structure(earlier, spec):
            both = [
                new.most_specific_common_supertype([old])
                for new, old in zip(tf.nest.flatten(spec), tf.nest.flatten(earlier), strict=True)
            ]
            if None not in both:  # None: another dtype or rank
                spec = tf.nest.pack_sequence_as(spec, both)
    return spec


def tensor(value: Any) -> Any:
    """Convert an array of a batch to a tensor."""
    given = value is None or isinstance(value, tf.SparseTensor | tf.RaggedTensor)
    return value if given else tf.convert_to_tensor(value)


def spec_of(tensor: Any) -> Any:
    """Return the type of a tensor, or of its type, with the sample axis open."""
    spec = tensor if tensor is None or isinstance(tensor, tf.TypeSpec) else tf.type_spec_from_value(tensor)
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec


def fits(spec: Any, batch: Any) -> bool:
    """Return whether a function of batches of type `spec` takes this one."""
    if not _same_structure(spec, batch):
        return False
    pairs = zip(tf.nest.flatten(spec), tf.nest.flatten(batch), strict=True)
    return all(one.is_compatible_with(tensor) for one, tensor in pairs)


def _same_structure(one: Any, other: Any) -> bool:
    try:
        tf.nest.assert_same_structure(one, other)
    except (TypeError, ValueError):
        return False
    return True
