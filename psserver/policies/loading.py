"""From a name and knobs, as they stand in an experiment file, to a policy."""

import difflib
import importlib
import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from types import ModuleType
from typing import Any, cast

from psserver.policies.builtin import SHELF, PolicySpec, knobs_of
from psserver.policies.composed import ComposedPolicy
from psserver.policies.policy import Policy, PolicyError
from psserver.policies.tensors import TensorParts


def names() -> tuple[str, ...]:
    """The named policies."""
    return tuple(SHELF)


def describe(name: str) -> str:
    """Rule, guarantee, source, cost and knobs of a named policy, as a paragraph."""
    entry = entry_of(name)
    lines = [
        f"{name}: {inspect.getdoc(entry)}",
        f"  guarantee: {entry.guarantee}",
        f"  source: {entry.source}",
        f"  servers keep: {entry.cost.stores}",
        f"  work per push: {entry.cost.work}",
        f"  lost: {entry.cost.waste}",
    ]
    if entry.optimizer:
        lines.append(f"  meant for the optimizer: {_listed(entry.optimizer)}")
    lines += [f"  {knob.name} = {knob.default!r}: {knob.meaning} ({knob.range})" for knob in knobs_of(entry)]
    return "\n".join(lines)


def advice(name: str, optimizer: Mapping[str, object]) -> str | None:
    """A sentence when the policy is meant for another [optimizer] than this one; None when all is well."""
    meant = SHELF[name].optimizer if name in SHELF else {}
    other = {key: optimizer.get(key) for key, value in meant.items() if optimizer.get(key) != value}
    if not other:
        return None
    return f"policy {name} is meant for [optimizer] {_listed(meant)}; this job has {_listed(other)}"


def _listed(keys: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in keys.items())


def build(name: str, knobs: Mapping[str, object], workers: int, servers: int = 1) -> Policy:
    """The policy `name` for a job that starts with `workers` workers and has `servers` servers.

    `name` is on the shelf, or "module:Class" for a class of the user's: it is
    called as ``Class(workers=workers, **knobs)`` and must satisfy `Policy`.
    Raises PolicyError when the name, a knob or a value is not acceptable, or
    when the policy cannot work with so many servers.
    """
    policy = _custom(name, knobs, workers) if ":" in name else _named(name, knobs, workers)
    policy.tensors.check_servers(servers)
    return policy


def _named(name: str, knobs: Mapping[str, object], workers: int) -> Policy:
    entry = entry_of(name)
    known = {knob.name: knob.default for knob in knobs_of(entry)}
    for knob, value in knobs.items():
        if knob not in known:
            raise PolicyError(f"policy {name} has no knob {knob!r}{_known(knob, known)}")
        _check_type(knob, value, known[knob])
    chosen = entry(**cast(dict[str, Any], knobs))
    return ComposedPolicy(name, asdict(chosen), chosen.compose(workers))


def entry_of(name: str) -> type[PolicySpec]:
    """The shelf's entry of that name. Raises PolicyError with the nearest name."""
    if name not in SHELF:
        raise PolicyError(f"unknown policy {name!r}{_known(name, SHELF)}, or module:Class of your own")
    return SHELF[name]


def _known(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"{hint} Known: {', '.join(known) or 'none'}" if hint else f"; known: {', '.join(known) or 'none'}"


def _alike(name: str, module: ModuleType) -> str:
    """What may be meant: the nearest names, else the module's policies. A module may have hundreds of other names."""
    public = {known: value for known, value in vars(module).items() if not known.startswith("_")}
    near = difflib.get_close_matches(name, public)
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    own = [value for value in public.values() if getattr(value, "__module__", None) == module.__name__]
    policies = [value.__name__ for value in own if isinstance(value, type) and hasattr(value, "explain")]
    return f"; its policies: {', '.join(policies)}" if policies else "; there is no policy in it"


def _check_type(knob: str, value: object, default: object) -> None:
    expected = type(default)
    whole = isinstance(value, int) and not isinstance(value, bool)
    # A whole number is a number, but neither is a truth value, which Python counts among the whole ones.
    fits = whole if expected is int else isinstance(value, expected) or (whole and expected is float)
    if not fits:
        raise PolicyError(f"policy.{knob} is {value!r}; expected {_noun(expected, default)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise PolicyError(f"policy.{knob} is {value!r}; expected a finite number such as {default!r}")


def _noun(kind: type, default: object) -> str:
    if kind is bool:
        return "true or false"
    noun = {int: "a whole number", float: "a number", str: "a word"}.get(kind, kind.__name__)
    return f"{noun} such as {default!r}"


def _custom(name: str, knobs: Mapping[str, object], workers: int) -> Policy:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        reason = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise PolicyError(f"policy {name!r}: cannot import {module_name!r}: {reason}") from error
    if not hasattr(module, attribute):
        raise PolicyError(f"policy {name!r}: {module_name} has no {attribute!r}{_alike(attribute, module)}")
    try:
        policy = getattr(module, attribute)(workers=workers, **knobs)
    except PolicyError:
        raise
    except Exception as error:
        raise PolicyError(
            f"policy {name!r} does not accept workers={workers} and {dict(knobs)}: "
            f"{type(error).__name__}: {error}"
        ) from error
    missing = [m for m in ("name", "knobs", "tensors", "step", "explain") if not hasattr(policy, m)]
    if missing:
        raise PolicyError(f"policy {name!r} lacks {', '.join(missing)}; see psserver.policies.Policy")
    if not isinstance(policy.tensors, TensorParts):
        raise PolicyError(f"policy {name!r}: tensors is {policy.tensors!r}; expected TensorParts(...)")
    return cast(Policy, policy)
