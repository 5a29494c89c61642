"""A Keras model on any of Keras' backends: its variables, named and ordered the same way in every worker."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol

import keras
import numpy as np
from numpy.typing import NDArray

from pswire.model.plan import VariableSpec
from psworker.backends import Landing, ModelError

log = logging.getLogger("ps-worker")

# What Keras calls a variable without a name.
_UNNAMED = "variable"
_SEED = "seed_generator_state"
Kind = Literal["trainable", "state"]


def stable_names(model: Any) -> dict[int, str]:
    """Name each Keras variable, by id: the layers on the way to it, without the model itself, and its own name.

    "block/dense/kernel". Numbers that Keras gave are counted from 0 again within `model`; layers that the
    user named keep their names. A layer of images with channels first has "[channels_first]" behind its name.
    """
    ways = list(_ways(model, () if isinstance(model, keras.Model) else (model,), {id(model)}))
    numbers: dict[str, set[int]] = defaultdict(set)
    for way, variable in ways:
        for layer in way:
            _count(numbers, _base(type(layer).__name__), layer.name)
        _count(numbers, _UNNAMED, variable.name)
    renamed = {
        _numbered(base, number): _numbered(base, place)
        for base, found in numbers.items()
        for place, number in enumerate(sorted(found))
    }
    names: dict[int, str] = {}
    for way, variable in ways:
        parts = [renamed.get(layer.name, layer.name) + _layout(layer) for layer in way]
        names.setdefault(id(variable), "/".join([*parts, renamed.get(variable.name, variable.name)]))
    return names


def _layout(layer: Any) -> str:
    """Tell images with channels first from others: shapes of kernels do not, and workers of one job must agree."""
    return "[channels_first]" if getattr(layer, "data_format", None) == "channels_first" else ""


def _ways(layer: Any, way: tuple[Any, ...], visited: set[int]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(layers on the way, variable) for every variable, each layer once."""
    for variable in (*layer._trainable_variables, *layer._non_trainable_variables):
        yield way, variable
    for inner in layer._layers:
        if id(inner) not in visited:
            visited.add(id(inner))
            yield from _ways(inner, (*way, inner), visited)


def _count(numbers: dict[str, set[int]], base: str, name: str) -> None:
    given = re.fullmatch(rf"{re.escape(base)}(?:_(\d+))?", name)
    if given is not None:
        numbers[base].add(int(given[1] or 0))


def _numbered(base: str, number: int) -> str:
    return f"{base}_{number}" if number else base


def _base(kind: str) -> str:
    """Derive the name that Keras gives a layer of this class."""
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", kind))
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def variables_of(layer: Any) -> list[tuple[str, Any, Kind]]:
    """(name, variable, kind) of a layer or model: its trainable ones first. Metrics' variables are left out.

    Raises ModelError for a layer that is not built.
    """
    if not layer.built:
        raise ModelError(
            f"the Keras model {layer.name!r} is not built yet, so its variables are not known: "
            "begin it with keras.Input(shape), or call model.build(shape)"
        )
    names = stable_names(layer)
    kinds: tuple[tuple[Kind, Iterable[Any]], ...] = (
        ("trainable", layer.trainable_weights),
        ("state", layer.non_trainable_variables),
    )
    return [(names.get(id(each), each.path), each, kind) for kind, several in kinds for each in several]


def unique(names: list[str]) -> list[str]:
    """Return the names, with "#1", "#2", ... after the second and later of equal ones."""
    taken = set(names)
    used: set[str] = set()
    result = []
    for name in names:
        fresh, count = name, 0
        while fresh in used or (count and fresh in taken):
            count += 1
            fresh = f"{name}#{count}"
        used.add(fresh)
        result.append(fresh)
    return result


def kept_outside(model: Any) -> list[tuple[str, Any]]:
    """(name, variable) of what layers keep in attributes of theirs and Keras does not list, as a stateful RNN does."""
    kinds = implementation().framework.kinds
    known = {key for each in model.variables for key in (id(each), id(native(each)))}
    found: list[tuple[str, Any]] = []
    for layer in model._flatten_layers():
        for name, value in vars(layer).items():
            for leaf in _leaves(value):
                if type(leaf).__name__ == "Generator":
                    # TensorFlow's; nothing else is asked, because a property of a user's own may raise.
                    leaf = getattr(leaf, "state", None)
                if isinstance(leaf, kinds) and not known & {id(leaf), id(native(leaf))}:
                    known |= {id(leaf), id(native(leaf))}
                    found.append((f"{layer.name}/{name}", leaf))
    return found


def _leaves(value: Any) -> list[Any]:
    """List a value, or what is in lists, tuples and dicts; of nothing else, which has owners of its own."""
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for each in value for leaf in _leaves(each)] if isinstance(value, list | tuple) else [value]


@dataclass(frozen=True)
class KerasVariables:
    """The variables of a model that travel, trainable ones first; `specs[i]` describes `variables[i]`.

    They are Keras' own; where a model is no Keras model, TensorFlow's.
    """

    specs: tuple[VariableSpec, ...]
    variables: tuple[Any, ...]
    local: tuple[
        Any, ...
    ]  # those that do not travel: what is not floating or not finite, and a stateful RNN's states
    seeds: tuple[Any, ...]  # those of them that are the state of Keras' random generators

    @property
    def trainable(self) -> int:
        """How many of them are trained."""
        return sum(spec.kind == "trainable" for spec in self.specs)

    @property
    def trained(self) -> tuple[Any, ...]:
        """The trainable ones."""
        return self.variables[: self.trainable]

    @property
    def state(self) -> tuple[Any, ...]:
        """The others: BatchNorm's moving averages, frozen layers."""
        return self.variables[self.trainable :]

    def values(self) -> list[NDArray[Any]]:
        """Present values as float32 arrays, in order."""
        return [np.asarray(read(variable), dtype=np.float32) for variable in self.variables]


def draw(seeds: Sequence[Any], of: Sequence[int]) -> None:
    """Set the states of Keras' random generators by some numbers, so that a step draws the same wherever it runs."""
    drawn = np.random.SeedSequence(of).generate_state(len(seeds))
    for own, variable in zip(drawn, seeds, strict=True):
        set_seed(variable, int(own), 0)


def set_seed(variable: Any, one: int, two: int) -> None:
    """Set the state of one of Keras' random generators. Not every backend has uint32."""
    kind = np.dtype(variable.dtype)
    variable.assign((np.array([one, two], np.int64) & np.iinfo(kind).max).astype(kind))


def finite(array: NDArray[Any]) -> bool:
    """Return whether all numbers of a floating array are finite."""
    return bool(np.isfinite(array.astype(np.float32)).all())


def read(value: Any) -> NDArray[Any]:
    """Read a keras.Variable's value, an array of the backend, or anything that numpy takes, on the host."""
    value = native(value)
    if not keras.ops.is_tensor(value):
        return np.asarray(value)
    found: NDArray[Any] = implementation().framework.read(value)
    return found


def native(variable: Any) -> Any:
    """Return the framework's own variable."""
    return variable._value if isinstance(variable, keras.Variable) else variable


def collect(model: Any) -> KerasVariables:
    """Collect the variables of a built Keras model or layer, on any backend.

    Floating variables travel: those that the optimizer trains as "trainable", the others as "state". Raises ModelError
    for a model that is not built, has no trainable variable, or has some of float64 or complex ones.
    """
    found = variables_of(model)
    for name, variable, _ in found:
        if variable.dtype == "float64":
            raise ModelError(
                f"variable {name!r} has dtype float64, and servers reckon in float32: expected layers of float32 "
                '(keras.config.set_floatx("float32"), dtype="float32")'
            )
    return assorted(f"{type(model).__name__} {model.name!r}", found, kept_outside(model))


def named_variables(model: Any) -> dict[str, Any]:
    """Return the variables of a model that travel, by the names by which `psworker.connect` knows them.

    On TensorFlow it may also be a `tf.Module`, or a nest of `tf.Variable`s. Raises ModelError, as for a job's model.
    """
    found: KerasVariables = implementation().collect(model)
    return {spec.name: variable for spec, variable in zip(found.specs, found.variables, strict=True)}


def assorted(
    model: str, found: Iterable[tuple[str, Any, Kind]], outside: Sequence[tuple[str, Any]]
) -> KerasVariables:
    """Sort variables into those that travel and what stays here; one that is met twice counts once.

    `model`: what a sentence calls it. `outside`: what layers keep and Keras does not list. Raises ModelError.
    """
    travels: list[tuple[str, Any, Kind]] = []
    local: list[Any] = []
    visited: set[int] = set()
    for name, variable, kind in found:
        if id(native(variable)) in visited:
            continue
        visited.add(id(native(variable)))
        dtype = _dtype(variable)
        if "float" in dtype:
            # A mask with -inf stays: servers hold finite numbers, and every worker has made it alike.
            if kind == "state" and not finite(read(variable)):
                local.append(variable)
            else:
                travels.append((name, variable, kind))
        elif kind == "trainable" and dtype.startswith("complex"):
            raise ModelError(f"variable {name!r} has dtype {dtype}: servers train real numbers only")
        else:
            local.append(variable)
    travels.sort(key=lambda each: each[2] == "state")
    if not travels or travels[0][2] == "state":
        raise ModelError(f"{model} has no trainable floating variable")
    names = unique([name for name, _, _ in travels])
    specs = tuple(
        VariableSpec(name, tuple(int(size) for size in variable.shape), _dtype(variable), kind)
        for name, (_, variable, kind) in zip(names, travels, strict=True)
    )
    seeds = tuple(each for each in local if isinstance(each, keras.Variable) and each.name == _SEED)
    local += [variable for _, variable in outside if id(native(variable)) not in visited]
    variables = tuple(each for _, each, _ in travels)
    return KerasVariables(specs, variables, tuple(local), seeds)


def _dtype(variable: Any) -> str:
    return str(getattr(variable.dtype, "name", variable.dtype))


class Framework(Protocol):
    """The operations that the variables of a Keras model need of the framework that they are made of.

    Implemented by the modules `step` of the backends' packages.
    """

    name: str
    # The classes of variables that layers may keep in attributes: Keras' and the framework's.
    kinds: tuple[type[Any], ...]

    def traces(self, values: Sequence[Any]) -> bool:
        """Return whether the caller, who has these values, is within a function that is being traced."""

    def place(self, variable: Any, array: NDArray[Any]) -> Any:
        """Assign an array of float32 or a wire dtype, good for the time of this call only, to a keras.Variable, cast
        on its device. Returns what it holds now, as an array of the framework that nothing changes."""

    def read(self, value: Any) -> NDArray[Any]:
        """Read an array of the framework, on the host."""

    def change(self, now: Any, before: Any) -> Any:
        """`now - before`, in float32."""

    def fetch(self, value: Any, start: int, stop: int, dtype: np.dtype[Any]) -> Landing:
        """Implement `psworker.backends.Model.fetch`."""

    def device(self, value: Any) -> str:
        """Name the device of an array in the framework's words."""

    def tensor(self, value: Any) -> Any:
        """Return what a batch has, an array say, as the framework computes with it."""


def implementation() -> Any:
    """Return the module `step` of the package for Keras' present backend, a `psworker.backends.keras.step.Backend`.

    Raises ModelError for a backend that cannot train.
    """
    name = keras.backend.backend()
    if name not in ("tensorflow", "jax", "torch"):
        raise ModelError(
            f'Keras computes with {name!r} here: expected KERAS_BACKEND to be "tensorflow", "jax" or "torch"'
        )
    return import_module(f"psworker.backends.{name}.step")


class KerasModel:
    """A Keras model or layer as a `psworker.backends.Model`, on any backend."""

    def __init__(self, found: KerasVariables, framework: Framework) -> None:
        self.found, self._framework = found, framework
        self.backend, self.specs = framework.name, found.specs
        # Of each variable, what `put` placed in it.
        self.placed: list[Any] = []

    @property
    def device(self) -> str:
        return ",".join(sorted({self._framework.device(native(each)) for each in self.found.variables}))

    def values(self) -> list[NDArray[Any]]:
        return self.found.values()

    def put(self, arrays: Sequence[NDArray[Any]]) -> None:
        pairs = zip(self.found.variables, arrays, strict=True)
        self.placed = [self._framework.place(variable, array) for variable, array in pairs]

    def changes(self) -> list[Any]:
        pairs = zip(self.found.state, self.placed[self.found.trainable :], strict=True)
        return [self._framework.change(native(variable), before) for variable, before in pairs]

    def fetch(self, value: Any, start: int, stop: int, dtype: np.dtype[Any]) -> Landing:
        return self._framework.fetch(value, start, stop, dtype)


@contextmanager
def undone(variables: Sequence[Any]) -> Iterator[None]:
    """Set variables back at the end of the block."""
    before = [np.array(read(variable)) for variable in variables]
    yield
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
