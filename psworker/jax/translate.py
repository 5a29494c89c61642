"""An Optax chain as the servers' [optimizer].

Optax makes an optimizer of functions, each of which keeps its settings. A chain is known here by the names of these
functions and by the settings that they keep, all of them: whatever is not known is refused, also in a later Optax.
"""

from __future__ import annotations

import glob
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from psworker.optimizers import Config, TranslationError, beginning, row_of, single

KNOWN = "sgd, adam, adamw, adamax, adamaxw, adagrad, adadelta, rmsprop, lion"


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One transformation of a chain: the name of the function of Optax that made it, its settings, and itself."""

    name: str
    settings: Mapping[str, Any]
    init: Callable[..., Any]
    update: Callable[..., Any]

    def __call__(self, gradients: Any, params: Any) -> Any:
        return self.update(gradients, self.init(params), params)[0]


@dataclass(frozen=True, slots=True)
class Translated:
    """`config` is the [optimizer], `before` what each worker does with its gradients, `rate` the learning rate of the
    update from a version on."""

    config: Config
    before: Sequence[ChainLink]
    rate: Callable[[int], float]


def translate(optimizer: Any, params: Any, names: Sequence[str], servers: int = 1) -> Translated:
    """Translate an Optax chain into what servers do and what workers do: clipping and decay of gradients, one rule,
    decay of weights, a learning rate or schedule. Raises TranslationError.

    `names`: of the leaves of `params`. With one server it is the mean gradient that is clipped.
    """
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise TranslationError(f"expected an Optax optimizer, got {type(optimizer).__name__}")
    links = [
        each
        for each in links_of(optimizer.init, optimizer.update)
        if each.name != "identity" and each.settings.get("weight_decay", 1) != 0
    ]
    before: list[ChainLink] = []
    while links and links[0].name in (*_LIMITS, "add_decayed_weights"):
        before.append(links.pop(0))
        _check_limit(before[-1])
    core = row_of("optax", links[0].name, links[0].settings.get) if links else None
    name, knobs = (core.rule, core.read(links.pop(0).settings.get)) if core is not None else ("sgd", {})
    config: Config = {"name": name, "learning_rate": 0.0, **knobs}
    if links and links[0].name == "trace" and name == "rmsprop":
        config |= _momentum(links.pop(0), rate_outside=True)
    if core is not None and links and links[0].name in ("add_decayed_weights", "masked"):
        config |= _decay(links.pop(0), params, names)
    rate = _rate(links.pop(0), _list(optimizer)) if links else None
    if rate is None:
        raise TranslationError(f"the chain sets no learning rate: expected one of optax.{KNOWN}")
    if links and links[0].name == "trace" and name == "rmsprop":
        config |= _momentum(links.pop(0), rate_outside=False)
    if links:
        raise _unknown(links[0], _list(optimizer))
    config["learning_rate"] = beginning(rate(0))
    if len(before) == 1 and before[0].name == "clip":
        config["clipvalue"] = _limit(before.pop())
    elif len(before) == 1 and before[0].name == "clip_by_global_norm" and servers == 1:
        config["global_clipnorm"] = _limit(before.pop())
    numbers = {
        key: value if isinstance(value, str | list) else single(value) for key, value in config.items()
    }
    return Translated(numbers, before, rate)


def links_of(init: Any, update: Any) -> Iterator[ChainLink]:
    """Yield the transformations of a chain in order."""
    name = update.__qualname__.partition(".")[0] if inspect.isfunction(update) else type(update).__name__
    if not inspect.isfunction(update) or not str(update.__module__).startswith("optax."):
        yield ChainLink(getattr(update, "__qualname__", name), {}, init, update)
        return
    settings, of_init = (inspect.getclosurevars(each).nonlocals for each in (update, init))
    if name == "chain":
        for one, other in zip(of_init["init_fns"], settings["update_fns"], strict=True):
            yield from links_of(one, other)
    elif name == "with_extra_args_support":
        yield from links_of(settings["tx"].init, settings["tx"].update)
    else:
        yield ChainLink(name, {**of_init, **settings}, init, update)


def _list(optimizer: Any) -> str:
    return " -> ".join(link.name for link in links_of(optimizer.init, optimizer.update))


def _unknown(link: ChainLink, chain: str) -> TranslationError:
    return TranslationError(
        f"the servers cannot do {link.name} at its place in {chain}: expected clip or clip_by_global_norm, then one of "
        f"optax.{KNOWN}, with a number or a schedule as its learning rate"
    )


# What clips, and its setting that says where.
_LIMITS = {"clip": "max_delta", "clip_by_global_norm": "max_norm"}


def _limit(link: ChainLink) -> float:
    return float(link.settings[_LIMITS[link.name]])


def _check_limit(link: ChainLink) -> None:
    # For servers 0 means no limit; Optax makes all gradients 0 of it.
    if link.name in _LIMITS and not _limit(link) > 0:
        raise TranslationError(f"optax.{link.name}({_limit(link):g}): expected a number above 0")


def _rate(link: ChainLink, chain: str) -> Callable[[int], float]:
    if link.name == "scale_by_schedule":
        schedule = link.settings["step_size_fn"]
        return lambda version: _descends(-float(schedule(version)))
    if link.name != "scale":
        raise _unknown(link, chain)
    rate = _descends(-float(link.settings["step_size"]))
    return lambda version: rate


def _descends(rate: float) -> float:
    if not 0 <= rate < math.inf:
        raise TranslationError(f"a learning rate of {rate:g}: expected a number from 0 (optax.scale(-rate))")
    return rate


def _decay(link: ChainLink, params: Any, names: Sequence[str]) -> Config:
    mask = None
    if link.name == "masked":
        mask, inner = link.settings["mask"], link.settings["inner"]
        [link] = links_of(inner.init, inner.update)
    decay = link.settings.get("weight_decay")
    if link.name != "add_decayed_weights" or callable(decay):
        raise TranslationError(f"{link.name}: expected a number as weight_decay, with or without a mask")
    config: Config = {"weight_decay": float(decay)}  # type: ignore[arg-type]
    if mask is not None:
        given = mask(params) if callable(mask) else mask
        wide = jax.tree.map(lambda says, part: jax.tree.map(lambda _: says, part), given, params)
        kept = [name for name, says in zip(names, jax.tree.leaves(wide), strict=True) if not says]
        if kept:
            config["exclude_from_weight_decay"] = [glob.escape(name) for name in kept]
    return config


def _momentum(link: ChainLink, *, rate_outside: bool) -> Config:
    row = row_of("optax", link.name, link.settings.get)
    if row is None or row.rule != "momentum":
        raise TranslationError("optax.trace(nesterov=True) beside a mean of squares: expected nesterov=False")
    return {**row.read(link.settings.get), "rate_outside": rate_outside}
