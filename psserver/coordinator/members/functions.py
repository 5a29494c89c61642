"""What decides a model's function beside its variables, and the sentence about two workers of which it differs."""

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    """`text`: a JSON list of [layer, digest of its configuration, digest of what it has learned], of the worker `by`,
    which was the first to name one; empty: nobody has."""

    by: str = ""
    text: str = ""


def same(ours: Function, theirs: Function) -> bool:
    """Return whether the two compute the same. Names of layers decide nothing: Keras counts what a process makes."""
    if ours.text == theirs.text:
        return True
    one, other = _layers(ours.text), _layers(theirs.text)
    return bool(one) and [each[1:] for each in one] == [each[1:] for each in other]


def difference(ours: Function, theirs: Function) -> str:
    """Return why the worker of `theirs` cannot take part in the job of `ours`."""
    return (
        f"the model of worker {theirs.by!r} computes something else than that of worker {ours.by!r}, which came first: "
        f"{_first(_layers(ours.text), _layers(theirs.text), ours.by)}"
    )


def _first(ours: list[list[str]], theirs: list[list[str]], by: str) -> str:
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one[1] != other[1]:
            return (
                f"layer {number} is {other[0]}, and {one[0]} on {by!r}, with another configuration or other inputs: "
                "start all workers with the same script"
            )
        if one[2] != other[2]:
            return (
                f"layer {number}, {other[0]}, has another vocabulary, other bin edges, another mean and variance, or "
                f"another constant than on {by!r}: adapt it on the same data in every worker, or adapt it once, save "
                "what it learned, and give that to every worker"
            )
    return f"it has {len(theirs)} layers, and {len(ours)} on {by!r}: start all workers with the same script"


def _layers(text: str) -> list[list[str]]:
    """Return the layers of a text from a worker; a text of another form has none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(found, list) or not all(isinstance(each, list) and len(each) == 3 for each in found):
        return []
    return [[str(part)[:64] for part in each] for each in found]
