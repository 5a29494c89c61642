"""What decides a Keras model's function beside its variables, as digests that workers of a job compare.

That is: classes and configurations of its layers and how they are connected, vocabularies, bin edges, adapted values
and constants, and its loss. Names of layers, seeds and initial values decide nothing: they are left out. Where sameness
cannot be decided, as of a user's own code, a warning says so. Nothing here loads a framework.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pswire.logs.events import event

log = logging.getLogger("ps-worker")

# Bounds of the text: layers that are told apart, and characters of a layer's name.
LAYERS, LABEL = 500, 48
# Parts of a configuration that do not decide the function, or stand elsewhere.
_ASIDE: Final = frozenset(
    {
        *("name", "seed", "trainable", "layers", "input_layers", "output_layers"),
        *("build_config", "compile_config", "registered_name"),
    }
)
# Of Keras' own layers also what is read from attributes.
_READ: Final = frozenset(
    {"vocabulary", "vocabulary_size", "idf_weights", "bin_boundaries", "mean", "variance"}
)
# What Keras' preprocessing layers learn from data, or derive from what they learned.
_LEARNED: Final = ("get_vocabulary", "bin_boundaries", "mean", "variance", "idf_weights_const")
# Classes of Keras whose `get_config` says what the constructor of a subclass was given.
_PLAIN: Final = ("Layer", "Operation", "Model")
_SEED = "seed_generator_state"
# Numbers that stand for the floating arrays of a layer; elements of an array that are read at once.
_NUMBERS, _CHUNK = 3, 2**16
# An array that is smaller than the largest of its layer by this factor is noise near zero.
_NOISE = 1e-4
# Numbers beyond it are as good as infinite.
_LARGEST = 1e200


def function_of(model: Any, loss: Any = None) -> str:
    """Return the digests as JSON; "" for what is no Keras model. Warns once of what cannot be compared.

    `loss`: of a model that was compiled without one.
    """
    layers = getattr(model, "_flatten_layers", None)
    if layers is None:
        _warn(["the model, which is no Keras model,"])
        return ""
    undecided, rows = list[str](), list[list[Any]]()
    # One after the other: a part holds copies of its arrays.
    for each in [*layers(include_self=True, recursive=True), None]:
        part = _loss(model, loss) if each is None else _Part(each, of_model=each is model)
        undecided += part.undecided
        rows.append(part.row())
    if undecided:
        _warn(list(dict.fromkeys(undecided)))
    if len(rows) > LAYERS:
        rest = rows[LAYERS:]
        rows = [*rows[:LAYERS], [f"{len(rest)} more layers", _digest([each[1:3] for each in rest]), "", []]]
    return json.dumps(rows, separators=(",", ":"))


def _warn(undecided: list[str]) -> None:
    log.warning(
        "cannot compare %s with the other workers' models: start all workers with the same code, which gives the same "
        "values to what is no variable",
        ", ".join(undecided),
        extra=event("function_undecided"),
    )


class _Part:
    """A layer, described: what must be equal, numbers that must be near, and what cannot be decided."""

    def __init__(self, layer: Any, *, of_model: bool = False) -> None:
        self.label = f"{type(layer).__name__} '{layer.name}'"[:LABEL] if layer is not None else "loss"
        self.undecided: list[str] = []
        self.exact: list[object] = []
        self.near: list[NDArray[np.float64]] = []
        self._aside = _ASIDE
        self.configured: object = None
        if layer is not None:
            self._describe(layer, of_model)

    def row(self) -> list[Any]:
        """Return the label, two digests and the numbers."""
        return [self.label, _digest(self.configured), _digest(self.exact), _numbers(self.near)]

    def _describe(self, layer: Any, of_model: bool) -> None:
        known = _known(type(layer).__module__)
        if not known or type(layer).__name__ == "Lambda":
            # Nothing tells what a user's code does.
            self.undecided.append(self.label)
        self._aside = _ASIDE | _READ if known else _ASIDE
        policy = getattr(getattr(layer, "dtype_policy", None), "name", None)
        self.configured = [type(layer).__name__, policy, self._config(layer), self._graph(layer)]
        for value in (*_learned(layer), *_stays(layer, known=known)):
            self._array(value)
        for value in () if of_model else _constants(layer, known=known):
            self._array(value)

    def _config(self, layer: Any) -> object:
        if hasattr(layer, "_nodes_by_depth") or type(layer).__name__ == "Sequential":
            # Its layers and its graph describe it.
            return None
        if not _configures(type(layer)):
            # Keras would take whatever the constructor got: a folder for logs, say.
            return None
        try:
            found = layer.get_config()
        except Exception:
            # An object in a configuration cannot be described.
            self.undecided.append(self.label)
            return None
        return self.plain(found)

    def _graph(self, layer: Any) -> object:
        """Return how the operations of a functional model are connected."""
        depths = getattr(layer, "_nodes_by_depth", None)
        if depths is None:
            return None
        inside = {id(node) for several in depths.values() for node in several}
        calls = [[node for node in each._inbound_nodes if id(node) in inside] for each in layer.operations]
        wires = {
            id(tensor): f"#{number}.{call}.{output}"
            for number, nodes in enumerate(calls)
            for call, node in enumerate(nodes)
            for output, tensor in enumerate(node.outputs)
        }
        described = [
            [self._operation(each), [self.plain([*_arguments(node)], wires) for node in nodes]]
            for each, nodes in zip(layer.operations, calls, strict=True)
        ]
        return [described, self.plain([layer._inputs_struct, layer._outputs_struct], wires)]

    def _operation(self, operation: Any) -> object:
        """Describe what is no layer, such as `x + y`; layers have parts of their own."""
        if hasattr(operation, "_flatten_layers"):
            return None
        if not _known(type(operation).__module__):
            self.undecided.append(type(operation).__name__)
        return [type(operation).__name__, self._config(operation)]

    def plain(self, value: Any, wires: Mapping[int, str] | None = None) -> object:
        """Return a value of a configuration as JSON, without what decides nothing; arrays go to their place."""
        if wires and id(value) in wires:
            return wires[id(value)]
        if hasattr(value, "assign"):
            return "variable"
        if isinstance(value, Mapping):
            return self._mapping(value, wires)
        if isinstance(value, list | tuple):
            if _is_floats(value) and self._array(value):
                return "floats"
            return [self.plain(each, wires) for each in value]
        if isinstance(value, float):
            return _rounded(float(value))
        if value is None or isinstance(value, str | bool | int):
            return value
        return self._object(value)

    def _mapping(self, value: Mapping[Any, Any], wires: Mapping[int, str] | None) -> object:
        if value.get("class_name") in ("function", "__lambda__") or _is_code(value):
            if _known(str(value.get("module"))):
                return str(value.get("config"))
            self.undecided.append(self.label)
            return "function"
        if "class_name" in value and not _known(str(value.get("module", "keras"))):
            self.undecided.append(self.label)
        return {
            str(name): self.plain(each, wires)
            for name, each in sorted(value.items(), key=lambda item: str(item[0]))
            if name not in self._aside and not str(name).endswith("_initializer")
        }

    def _object(self, value: Any) -> object:
        described = getattr(value, "get_config", None)
        name = getattr(value, "__name__", None)
        if described is None and name is None:
            if isinstance(value, slice) or value is Ellipsis or _is_dtype(value):
                return str(value)
            if hasattr(value, "dtype") and self._array(value):
                return "array"
        if not _known(str(getattr(value, "__module__", ""))) and not isinstance(value, type):
            self.undecided.append(self.label)
        if described is None or isinstance(value, type):
            return str(name or type(value).__name__)
        try:
            return [type(value).__name__, self.plain(described())]
        except Exception:
            self.undecided.append(self.label)
            return type(value).__name__

    def _array(self, value: Any) -> bool:
        """Take an array, or what numpy takes for one; False for anything else."""
        array = _as_array(value)
        if array is None:
            return False
        if _is_real(array):
            finite = np.isfinite(array)
            pattern = ""
            if not finite.all():
                # A mask with -inf.
                kinds = np.where(finite, 0, np.nan_to_num(array, nan=2, posinf=1, neginf=-1)).astype(np.int8)
                pattern, array = _hash([kinds.tobytes()]), np.where(finite, array, 0)
            self.exact.append([array.shape, pattern])
            self.near.append(array.clip(-_LARGEST, _LARGEST).reshape(-1))
        elif array.dtype.kind in "US":
            self.exact.append([array.shape, _digest(array.reshape(-1).tolist())])
        else:
            self.exact.append([array.shape, _hash([array.tobytes()])])
        return True


def _loss(model: Any, loss: Any) -> _Part:
    made = _Part(None)
    given = getattr(model, "loss", None) if loss is None else loss
    weights = getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)
    if given is not None:
        # Outputs without names of the user's have numbers.
        outputs = {name: f"#{number}" for number, name in enumerate(getattr(model, "output_names", ()) or ())}
        made.configured = made.plain([_renamed(each, outputs) for each in (given, weights)])
    return made


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    return {names.get(key, key): each for key, each in value.items()} if isinstance(value, Mapping) else value


def _configures(kind: type) -> bool:
    """Return whether a class, or one that it is made from, says what its configuration is."""
    definer = next((each for each in kind.__mro__ if "get_config" in vars(each)), None)
    return _known(kind.__module__) or (definer is not None and definer.__name__ not in _PLAIN)


def _known(module: str) -> bool:
    return module.partition(".")[0] in ("keras", "psworker")


def _arguments(node: Any) -> tuple[Any, Any]:
    return node.arguments.args, node.arguments.kwargs


def _learned(layer: Any) -> Iterator[Any]:
    """Yield what a layer has learned from data."""
    for name in _LEARNED:
        try:
            found = getattr(layer, name, None)
            if name == "get_vocabulary" and found is not None:
                found = found()
        except Exception:
            # Nothing is adapted yet.
            found = None
        if found is None or callable(found) or hasattr(found, "assign"):
            continue
        array = _as_array(found)
        # Means are compared by the measure of the deviation.
        yield (
            np.sqrt(np.abs(array)) if name == "variance" and array is not None and _is_real(array) else found
        )


def _stays(layer: Any, *, known: bool) -> Iterator[Any]:
    """Yield the values of variables that do not travel: infinite constants, and integers that no training changes."""
    for variable in layer._non_trainable_variables:
        if variable.name == _SEED or not (_infinite(variable) or (known and _counts(variable))):
            continue
        yield variable


def _infinite(variable: Any) -> bool:
    return "float" in str(variable.dtype) and not bool(np.isfinite(_host(variable)).all())


def _counts(variable: Any) -> bool:
    return "int" in str(variable.dtype) or "bool" in str(variable.dtype)


def _constants(layer: Any, *, known: bool) -> Iterator[Any]:
    """Yield the arrays in a layer's attributes that are no variables."""
    for name, found in sorted(vars(layer).items()):
        # Keras keeps there what the last call returned.
        if name in (*_LEARNED, "_losses") or (known and name.startswith("_")):
            continue
        for each in _leaves(found):
            if hasattr(each, "dtype") and hasattr(each, "shape") and not hasattr(each, "assign"):
                yield each


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = [each for _, each in sorted(value.items(), key=lambda item: str(item[0]))]
    if isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _host(found: Any) -> NDArray[Any]:
    """Return a variable or an array of any framework as numpy's, in its own dtype."""
    value = getattr(found, "value", None)
    found = found if value is None or callable(value) else value
    return np.asarray(found.detach().cpu() if hasattr(found, "detach") else found)


def _as_array(found: Any) -> NDArray[Any] | None:
    """Return floats as float64, integers as int64, texts as texts; None for what is none of these."""
    try:
        array = _host(found)
    except Exception:
        # A tensor that is only traced.
        return None
    if array.dtype.kind in "biu":
        return array.astype(np.int64)
    if "float" in array.dtype.name:
        return array.astype(np.float64)
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag]).astype(np.float64)
    if array.dtype.kind in "US" or all(isinstance(each, str | bytes | int) for each in array.reshape(-1)):
        return np.array([str(each) for each in array.reshape(-1)]).reshape(array.shape)
    return None


def _is_code(value: Mapping[Any, Any]) -> bool:
    """Return whether Keras has written down a lambda, whose code differs with its place in a file."""
    return set(value) == {"value"} and isinstance(value["value"], tuple)


def _is_floats(value: Any) -> bool:
    """Return whether a list has numbers only, not all of them integers."""
    leaves = list(_leaves(value))
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in leaves)
    return numbers and any(isinstance(each, float) for each in leaves)


def _is_real(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "f"


def _is_dtype(value: Any) -> bool:
    return isinstance(value, np.dtype) or type(value).__name__ in ("DType", "dtype", "TensorShape")


def _rounded(value: float) -> object:
    """Return a number as machines agree on it that have computed it."""
    near = float(f"{value:.5g}")
    return int(near) if near.is_integer() else str(near)


def _numbers(arrays: list[NDArray[np.float64]]) -> list[float]:
    """Return numbers that are near for arrays that are near, relative to their norms, and far for others.

    They are random projections: of each array at length 1, and of the logarithm of its length. A hash of rounded
    values would differ where one value lies beside the edge between two roundings.
    """
    if not arrays:
        return []
    # Its numbers are the same in every release of numpy.
    dice = np.random.RandomState(0)
    sizes = [_norm(each) for each in arrays]
    widths = [max(each.size, 1) ** 0.5 for each in arrays]
    floor = _NOISE * max(size / width for size, width in zip(sizes, widths, strict=True))
    total = np.zeros(_NUMBERS)
    for array, size, width in zip(arrays, sizes, widths, strict=True):
        size = max(size, floor * width) or 1.0
        for start in range(0, array.size, _CHUNK):
            part = array[start : start + _CHUNK]
            total += dice.standard_normal((_NUMBERS, part.size)) @ (part / size)
        total += dice.standard_normal(_NUMBERS) * np.log(size)
    return [round(float(each), 5) for each in total]


def _norm(array: NDArray[np.float64]) -> float:
    largest = float(np.abs(array).max(initial=0.0))
    return largest * float(np.linalg.norm(array / largest)) if largest else 0.0


def _digest(value: object) -> str:
    return _hash([json.dumps(value, sort_keys=True, default=str).encode()]) if value else ""


def _hash(pieces: Iterable[bytes]) -> str:
    made = hashlib.blake2b(digest_size=8)
    for piece in pieces:
        made.update(piece)
    return made.hexdigest()
