"""Build a policy from its name and knobs, as an experiment file has them."""

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

from psserver.policies.builtin import BUILTIN, Facts, PolicySpec
from psserver.policies.composed import ComposedPolicy
from psserver.policies.composition import Composition
from psserver.policies.decisions import PolicyError
from psserver.policies.declarations import LocalRule, TensorParts
from psserver.policies.policy import Policy
from pswire.knobs import KnobError, read, settings
from pswire.nearest import did_you_mean, nearest

T = TypeVar("T")

WHAT_TO_DO = "derive it from psserver.policies.Policy, or give a PolicySpec"


def names() -> tuple[str, ...]:
    """Return the names of the built-in policies."""
    return tuple(BUILTIN)


def spec_of(name: str) -> type[PolicySpec]:
    """Return the class of a built-in policy. Raises PolicyError, which suggests the nearest name."""
    if name not in BUILTIN:
        raise PolicyError(
            f"unknown policy {name!r}{did_you_mean(name, BUILTIN)}, or module:Class of your own"
        )
    return BUILTIN[name]


def class_of(name: str) -> type[PolicySpec] | type[Policy]:
    """Return the class of a built-in policy, or of your own "module:Class". Raises PolicyError."""
    if ":" not in name:
        return spec_of(name)
    made = _imported(name)
    # Checked before any call: the name may be that of any function.
    if isinstance(made, type) and issubclass(made, PolicySpec | Policy):
        return made
    kind = f"the class {made.__name__} is no Policy" if isinstance(made, type) else f"it is {made!r}"
    raise PolicyError(f"policy {name!r}: {kind}; {WHAT_TO_DO}")


def advice(name: str, optimizer: Mapping[str, object]) -> str | None:
    """Return a warning if the policy is meant for another [optimizer] than this one; None if not."""
    meant = BUILTIN[name].optimizer if name in BUILTIN else {}
    other = {key: optimizer.get(key) for key, value in meant.items() if optimizer.get(key) != value}
    if not other:
        return None
    return f"policy {name} is meant for [optimizer] {_listed(meant)}; this job has {_listed(other)}"


def facts(name: str, knobs: Mapping[str, object], workers: int) -> Facts | None:
    """Return what a built-in policy promises with these knobs; None for your own policy.

    Raises PolicyError for a knob out of range.
    """
    return _chosen(name, BUILTIN[name], knobs, workers).facts(workers) if name in BUILTIN else None


def _listed(keys: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in keys.items())


def check_trusted(name: str, trusted: bool) -> None:
    """Raise PolicyError if a run folder names a policy in code of its own and the folder is not trusted."""
    if ":" in name and not trusted:
        raise PolicyError(
            f"policy {name} is code, and the run folder names it: expected a built-in policy, or --trust if you "
            "know who made the folder"
        )


def build(name: str, knobs: Mapping[str, object], workers: int, servers: int = 1) -> Policy:
    """Build the policy `name` for a job that starts with `workers` workers and has `servers` servers.

    `name` is a built-in policy, or "module:Class" for your own class in this folder or in an installed package: a
    `Policy`, which is made as ``Class(workers=workers, **knobs)``, or a `PolicySpec`. A policy without a name or knobs
    of its own gets those that were passed here.
    Raises PolicyError for an unknown name, an unacceptable knob, a class that is not a policy, or a policy that cannot
    work with that number of servers.
    """
    policy = _custom(name, knobs, workers) if ":" in name else _composed(name, spec_of(name), knobs, workers)
    policy.tensors.check_servers(servers)
    return policy


def _composed(name: str, spec: type[PolicySpec], knobs: Mapping[str, object], workers: int) -> Policy:
    chosen = _chosen(name, spec, knobs, workers)
    composition = chosen.compose(workers)
    if not isinstance(composition, Composition):
        raise PolicyError(
            f"policy {name!r}: compose(workers) returned {composition!r}; expected a Composition"
        )
    return ComposedPolicy(composition, name=name, knobs=settings(chosen))


def _chosen(name: str, spec: type[PolicySpec], knobs: Mapping[str, object], workers: int) -> PolicySpec:
    try:
        return read(spec, knobs, f"policy {name}", {"workers": workers})
    except KnobError as error:
        raise PolicyError(str(error)) from error


def _custom(name: str, knobs: Mapping[str, object], workers: int) -> Policy:
    made = class_of(name)
    if issubclass(made, PolicySpec):
        if "__dataclass_fields__" not in vars(made):
            raise PolicyError(
                f"policy {name!r}: a PolicySpec is a dataclass; put @dataclass(frozen=True) above it"
            )
        return _guarded(name, "compose(workers)", lambda: _composed(name, made, knobs, workers))
    missing = sorted(getattr(made, "__abstractmethods__", ()))
    if missing:
        raise PolicyError(
            f"policy {name!r}: the class lacks {', '.join(missing)}; see psserver.policies.Policy"
        )
    try:
        arguments = inspect.signature(made).bind(workers=workers, **knobs)
    except TypeError as error:
        given = ", ".join(["workers", *knobs])
        raise PolicyError(
            f"policy {name!r}: expected {_takes(made)} to take {given} by name: {error}; "
            "a policy is made as Class(workers=N, **knobs)"
        ) from error
    make: Callable[..., object] = made
    policy = _guarded(name, "its __init__", lambda: make(workers=workers, **knobs))
    if not isinstance(policy, Policy):
        raise PolicyError(f"policy {name!r}: it made {policy!r}, which is no Policy; {WHAT_TO_DO}")
    arguments.apply_defaults()
    _complete(policy, name, _knobs_in(arguments))
    _check(policy, name)
    return policy


def _imported(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    try:
        # An installed command does not import from the working folder, where your own policy is.
        if (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)
        module = importlib.import_module(module_name)
    except Exception as error:
        reason = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise PolicyError(f"policy {name!r}: cannot import {module_name!r}: {reason}") from error
    if not hasattr(module, attribute):
        raise PolicyError(f"policy {name!r}: {module_name} has no {attribute!r}{_alike(attribute, module)}")
    return getattr(module, attribute)


def _alike(name: str, module: ModuleType) -> str:
    """Suggest the nearest name, else list the policies of the module."""
    public = {known: value for known, value in vars(module).items() if not known.startswith("_")}
    if nearest(name, public):
        return did_you_mean(name, public)
    own = [value for value in public.values() if getattr(value, "__module__", None) == module.__name__]
    kinds = [value for value in own if isinstance(value, type) and issubclass(value, Policy | PolicySpec)]
    policies = ", ".join(kind.__name__ for kind in kinds)
    return f"; its policies: {policies}" if policies else "; there is no policy in it"


def _takes(made: Any) -> str:
    return f"{getattr(made, '__name__', made)}{inspect.signature(made)}"


def _guarded(name: str, what: str, make: Callable[[], T]) -> T:
    """Call a user's code, and turn whatever it raises into a PolicyError."""
    try:
        return make()
    except PolicyError:
        raise
    except Exception as error:
        raise PolicyError(f"policy {name!r}: {what} raised {type(error).__name__}: {error}") from error


def _knobs_in(arguments: inspect.BoundArguments) -> dict[str, object]:
    """Return all arguments except `workers`, with those of a ** parameter among the others."""
    found: dict[str, object] = {}
    for name, value in arguments.arguments.items():
        kind = arguments.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        elif kind is not inspect.Parameter.VAR_POSITIONAL:
            found[name] = value
    found.pop("workers", None)
    return found


def _complete(policy: Policy, name: str, knobs: Mapping[str, object]) -> None:
    """Set name and knobs if the author gave none."""
    if policy.name == "" and isinstance(getattr(type(policy), "name", ""), str):
        policy.name = name
    if type(policy).knobs is Policy.knobs and "knobs" not in vars(policy):
        policy.knobs = knobs


def _check(policy: Policy, name: str) -> None:
    """Raise PolicyError for an attribute of the wrong type."""
    if isinstance(policy, ComposedPolicy) and not policy.composed:
        raise PolicyError(
            f"policy {name!r}: its __init__ does not call super().__init__(composition) of ComposedPolicy"
        )
    expected: dict[str, tuple[type, str]] = {
        "name": (str, "a text"),
        "knobs": (Mapping, "a mapping from names to values"),
        "tensors": (TensorParts, "TensorParts(...)"),
        "local_rule": (LocalRule, "LocalRule(...)"),
        "ahead": (bool, "True or False"),
    }
    for attribute, (kind, noun) in expected.items():
        value = _guarded(name, f"its {attribute}", partial(getattr, policy, attribute))
        if not isinstance(value, kind) or value == "":
            raise PolicyError(f"policy {name!r}: {attribute} is {value!r}; expected {noun}")
    try:
        json.dumps(dict(policy.knobs), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PolicyError(
            f"policy {name!r}: its knobs {dict(policy.knobs)!r} are not JSON, as the decision log needs: {error}"
        ) from error
