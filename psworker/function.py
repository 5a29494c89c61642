"""What decides a Keras model's function beside its variables, as digests that workers of a job compare.

That is: classes and configurations of its layers, vocabularies, bin edges, adapted values and constants, and its loss.
Names of layers, seeds and initial values decide nothing: they are left out. Nothing here loads a framework.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from pswire.logs.events import event

log = logging.getLogger("ps-worker")

# Bounds of the text: layers that are told apart, and characters of a layer's name.
LAYERS, LABEL = 500, 48
# Parts of a configuration that do not decide the function, or stand elsewhere.
_ASIDE: Final = frozenset(
    {
        *(
            "name",
            "seed",
            "trainable",
            "layers",
            "input_layers",
            "output_layers",
            "build_config",
            "compile_config",
        ),
        *(
            "vocabulary",
            "vocabulary_size",
            "idf_weights",
            "bin_boundaries",
            "mean",
            "variance",
            "registered_name",
        ),
    }
)
# What Keras' preprocessing layers learn from data, or derive from what they learned.
_LEARNED: Final = ("get_vocabulary", "bin_boundaries", "mean", "variance", "idf_weights_const")


def function_of(model: Any) -> str:
    """Return the digests as JSON; "" for what is no Keras model. Warns once of layers that cannot be compared."""
    layers = getattr(model, "_flatten_layers", None)
    if layers is None:
        return ""
    found = list(layers(include_self=True, recursive=True))
    places = {each.name: f"#{number}" for number, each in enumerate(found)}
    undecided: list[str] = []
    described = [
        [_label(each), *(_digest(part) for part in _parts(each, places, undecided, of_model=each is model))]
        for each in found
    ]
    described.append(["loss", _digest(_loss(model, undecided)), ""])
    if undecided:
        log.warning(
            "%s: cannot be compared with those of other workers: expected the same code in every worker, and a layer "
            "of one's own to have get_config()",
            ", ".join(dict.fromkeys(undecided)),
            extra=event("function_undecided"),
        )
    if len(described) > LAYERS:
        rest = described[LAYERS:]
        described = [
            *described[:LAYERS],
            [f"{len(rest)} more layers", _digest([each[1:] for each in rest]), ""],
        ]
    return json.dumps(described, separators=(",", ":"))


def _label(layer: Any) -> str:
    return f"{type(layer).__name__} '{layer.name}'"[:LABEL]


def _parts(
    layer: Any, places: Mapping[str, str], undecided: list[str], *, of_model: bool
) -> tuple[object, object]:
    """Return configuration and values of a layer."""
    kind = type(layer)
    known = kind.__module__.partition(".")[0] == "keras"
    config: object = None
    if known or "get_config" in vars(kind):
        try:
            config = _plain(layer.get_config(), places)
        except Exception:
            # Some objects in a configuration cannot be described.
            config = None
    if (config is None and not of_model) or kind.__name__ == "Lambda" or "<lambda>" in str(config):
        undecided.append(_label(layer))
        config = None
    graph = _graph(layer, places) if known else None
    values = [[name, each] for name, each in _values(layer, known=known)]
    return [kind.__name__, config, graph], values


def _graph(layer: Any, places: Mapping[str, str]) -> object:
    """Return how the layers of a functional model are connected."""
    if type(layer).__name__ != "Functional":
        return None
    try:
        config = layer.get_config()
    except Exception:
        return None
    nodes = [each.get("inbound_nodes") for each in config.get("layers", ())]
    return _plain([nodes, config.get("input_layers"), config.get("output_layers")], places, aside=frozenset())


def _plain(value: Any, places: Mapping[str, str], aside: frozenset[str] = _ASIDE) -> object:
    """Return a configuration without what decides nothing. Names of layers become their places."""
    if isinstance(value, Mapping):
        return {
            str(name): _plain(each, places, aside)
            for name, each in sorted(value.items(), key=lambda item: str(item[0]))
            if name not in aside and not str(name).endswith("_initializer")
        }
    if isinstance(value, list | tuple):
        return [_plain(each, places, aside) for each in value]
    if isinstance(value, str):
        return places.get(value, value)
    if value is None or isinstance(value, bool | int | float):
        return value
    described = getattr(value, "get_config", None)
    if described is not None:
        return [type(value).__name__, _plain(described(), places, aside)]
    return getattr(value, "__name__", None) or _array(value) or type(value).__name__


def _values(layer: Any, *, known: bool) -> Iterator[tuple[str, object]]:
    """Yield what the layer has learned or holds beside its variables."""
    for name in _LEARNED if known else ():
        found = getattr(layer, name, None)
        try:
            found = found() if callable(found) else found
        except Exception:
            # Nothing is adapted yet.
            found = None
        if found is not None and not hasattr(found, "assign") and (made := _array(found)) is not None:
            yield name, made
    for name, found in sorted(vars(layer).items()):
        if name not in _LEARNED and not name.startswith("_") and (made := _constant(found)) is not None:
            yield name, made


def _constant(found: Any) -> str | None:
    """Return the digest of an array that is no variable; None for anything else."""
    if hasattr(found, "assign") or not hasattr(found, "dtype") or not hasattr(found, "shape"):
        return None
    return _array(found)


def _array(found: Any) -> str | None:
    """Return the digest of an array, or of what numpy takes for one; None for anything else."""
    try:
        value = getattr(found, "value", None)
        array = np.asarray(found if value is None or callable(value) else value)
    except Exception:
        # A tensor that is only traced.
        return None
    if array.dtype == object or array.dtype.kind in "US":
        return _digest([str(each) for each in array.reshape(-1)])
    if array.dtype.kind == "f":
        # Machines may differ in the last bits of what they learn from the same data.
        mantissa, exponent = np.frexp(array.astype(np.float64))
        return _hash([str(array.shape).encode(), np.round(mantissa * 2**12).tobytes(), exponent.tobytes()])
    return _hash([str(array.shape).encode(), str(array.dtype).encode(), array.tobytes()])


def _loss(model: Any, undecided: list[str]) -> object:
    loss = getattr(model, "loss", None)
    if "<lambda>" in str(getattr(loss, "__name__", "")):
        undecided.append("the loss")
        return None
    return _plain(loss, {}) if loss is not None else None


def _digest(value: object) -> str:
    return _hash([json.dumps(value, sort_keys=True, default=str).encode()]) if value else ""


def _hash(pieces: Iterable[bytes]) -> str:
    made = hashlib.blake2b(digest_size=8)
    for piece in pieces:
        made.update(piece)
    return made.hexdigest()
