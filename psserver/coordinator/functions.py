"""What decides a model's function beside its variables, and the sentence about two workers of which it differs."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

# How far the numbers of a layer may lie from one another: machines round differently, and data comes in other orders.
NEAR: Final = 2e-3
# No number is larger, and no layer has more of them.
LARGEST, MOST = 1e9, 8


@dataclass(frozen=True, slots=True)
class Function:
    """`text`: a JSON list of [layer, digest of its configuration, digest of what it has learned, numbers that stand for
    arrays], of the worker `by`, which was the first to name one; empty: nobody has."""

    by: str = ""
    text: str = ""


def same(ours: Function, theirs: Function) -> bool:
    """Return whether the two compute the same. Names of layers decide nothing: Keras counts what a process makes."""
    if ours.text == theirs.text:
        return True
    one, other = _layers(ours.text), _layers(theirs.text)
    if not one or len(one) != len(other):
        return False
    return all(mine[1] == its[1] and _learned_alike(mine, its) for mine, its in zip(one, other, strict=True))


def digest(function: Function) -> str:
    """Return a digest of the layers' configurations in order, the same for all that are `same`; "" for none."""
    layers = _layers(function.text)
    return hashlib.sha256(json.dumps([each[1:3] for each in layers]).encode()).hexdigest() if layers else ""


def readable(text: str) -> bool:
    """Return whether a text describes layers as workers do now: one in a checkpoint may be older."""
    return bool(_layers(text))


def difference(ours: Function, theirs: Function) -> str:
    """Return why the worker of `theirs` cannot take part in the job of `ours`."""
    return (
        f"the model of worker {theirs.by!r} computes something else than that of worker {ours.by!r}, which came first: "
        f"{_first(_layers(ours.text), _layers(theirs.text), ours.by)}"
    )


def _first(ours: list[list[Any]], theirs: list[list[Any]], by: str) -> str:
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one[1] != other[1]:
            return (
                f"layer {number} is {other[0]}, and {one[0]} on {by!r}, with another configuration or other inputs: "
                "start all workers with the same script"
            )
        if not _learned_alike(one, other):
            return (
                f"layer {number}, {other[0]}, has another vocabulary, other bin edges, another mean and variance, or "
                f"another constant than on {by!r}: adapt it on the same data in every worker, or adapt it once, save "
                "what it learned, and give that to every worker"
            )
    return f"it has {len(theirs)} layers, and {len(ours)} on {by!r}: start all workers with the same script"


def _learned_alike(one: list[Any], other: list[Any]) -> bool:
    mine, its = one[3], other[3]
    near = len(mine) == len(its) and all(abs(a - b) <= NEAR for a, b in zip(mine, its, strict=True))
    return bool(one[2] == other[2]) and near


def _layers(text: str) -> list[list[Any]]:
    """Return the layers of a text from a worker; a text of another form has none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(found, list) or not all(_is_layer(each) for each in found):
        return []
    return [[*(str(part)[:64] for part in each[:3]), each[3]] for each in found]


def _is_layer(found: object) -> bool:
    if not isinstance(found, list) or len(found) != 4 or not isinstance(found[3], list):
        return False
    return len(found[3]) <= MOST and all(
        isinstance(each, int | float) and abs(each) <= LARGEST for each in found[3]
    )
