"""The built-in policies: named compositions, each with its guarantee, its source, its knobs and its cost.

Each module of this package is a family of policies. Every `PolicySpec` in it that has a name is a built-in policy, in
the order of definition; there is no list to maintain.
"""

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType

from psserver.policies.builtin.spec import Cost, Facts, PolicySpec

# Families in the order of the documentation; others follow by name.
FAMILY_ORDER = ("barriers", "arrivals", "staleness", "clocks", "deadlines", "compensated", "robust", "local")


def _families() -> Iterator[ModuleType]:
    found = {module.name for module in pkgutil.iter_modules(__path__)} - {"spec"}
    for name in (*FAMILY_ORDER, *sorted(found - set(FAMILY_ORDER))):
        yield import_module(f"{__name__}.{name}")


def specs_in(module: ModuleType) -> dict[str, type[PolicySpec]]:
    """Return the policies that a module defines, by name, in the order of definition."""
    found = [value for value in vars(module).values() if isinstance(value, type)]
    own = [value for value in found if issubclass(value, PolicySpec) and value.__module__ == module.__name__]
    return {spec.name: spec for spec in own if spec.name}


FAMILIES: Mapping[str, Mapping[str, type[PolicySpec]]] = {
    (module.__doc__ or module.__name__).partition("\n")[0]: specs_in(module) for module in _families()
}
"""Title of a family (the first line of its docstring) -> its policies by name."""
BUILTIN: Mapping[str, type[PolicySpec]] = {
    name: spec for family in FAMILIES.values() for name, spec in family.items()
}
"""Every built-in policy by name, in the order of the documentation."""

__all__ = ["BUILTIN", "FAMILIES", "Cost", "Facts", "PolicySpec", "specs_in"]
