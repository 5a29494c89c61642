"""Types of batches, and one body traced as rarely as the batches allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# Weights of one version as tensors, one per server, and a batch.
Body = Callable[[list[Any], Any], Any]


class Traces:
    """`body(flats, batch)` as concrete functions, traced as rarely as the batches allow.

    Axis 0 of every array in a batch has no fixed size, so that a short last
    batch needs no new trace. Batches that differ in another axis (sequences of
    varying length) open that axis in a second trace, which then serves them all.
    Payloads of other dtypes have traces of their own. `eager`: no trace, the
    body runs as it stands; `jit`: traces are compiled by XLA.
    """

    def __init__(self, body: Body, flat_sizes: list[int], *, eager: bool = False, jit: bool = False) -> None:
        self._body = body
        self._eager, self._jit = eager, jit
        self._sizes = flat_sizes
        # Dtypes of the payloads -> (batch spec, tf.function), most open last.
        self._traced: dict[tuple[Any, ...], list[tuple[Any, Any]]] = {}

    @property
    def count(self) -> int:
        """Traces made so far."""
        return sum(map(len, self._traced.values()))

    @property
    def graphs(self) -> list[Any]:
        """The graphs of the traces made so far."""
        functions = [function for several in self._traced.values() for _, function in several]
        return [function.get_concrete_function().graph for function in functions]

    def __call__(self, flats: list[Any], batch: Any) -> Any:
        """`body`'s result; arrays in `batch` become tensors."""
        batch = tf.nest.map_structure(tensor, batch)
        if self._eager:
            return self._body(flats, batch)
        return self._for(tuple(flat.dtype for flat in flats), batch)(flats, batch)

    def _for(self, dtypes: tuple[Any, ...], batch: Any) -> Any:
        traced = self._traced.setdefault(dtypes, [])
        for spec, function in reversed(traced):
            if fits(spec, batch):
                return function
        spec = opened(tf.nest.map_structure(spec_of, batch), [each for each, _ in traced])
        flats = [tf.TensorSpec([size], dtype) for size, dtype in zip(self._sizes, dtypes, strict=True)]
        function = tf.function(
            self._body, input_signature=[flats, spec], jit_compile=self._jit, autograph=False
        )
        traced.append((spec, function))
        return function


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
    return value if isinstance(value, tf.SparseTensor | tf.RaggedTensor) else tf.convert_to_tensor(value)


def spec_of(tensor: Any) -> Any:
    """Return the tensor's type, its sample axis open."""
    spec = tf.type_spec_from_value(tensor)
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
