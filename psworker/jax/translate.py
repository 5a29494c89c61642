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

from psworker.translating import Config, TranslationError, beginning, single

KNOWN = "sgd, adam, adamw, adamax, adamaxw, adagrad, adadelta, rmsprop, lion"


@dataclass(frozen=True, slots=True)
class Link:
    """One transformation of a chain: the name of the function of Optax that made it, its settings, and itself."""

    name: str
    settings: Mapping[str, Any]
    init: Callable[..., Any]
    update: Callable[..., Any]

    def __call__(self, gradients: Any, params: Any) -> Any:
        return self.update(gradients, self.init(params), params)[0]

    def plain(self, **expected: Any) -> None:
        """Raise TranslationError where a setting is another one: the servers have no knob for it."""
        for key, value in expected.items():
            if self.settings.get(key, value) != value:
                raise TranslationError(
                    f"optax.{self.name}({key}={self.settings[key]!r}): the servers know {key}={value!r} only"
                )


@dataclass(frozen=True, slots=True)
class Translated:
    """`config` is the [optimizer], `before` what each worker does with its gradients, `rate` the learning rate of the
    update from a version on."""

    config: Config
    before: Sequence[Link]
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
        for each in _links(optimizer.init, optimizer.update)
        if each.name != "identity" and each.settings.get("weight_decay", 1) != 0
    ]
    before: list[Link] = []
    while links and links[0].name in (*_LIMITS, "add_decayed_weights"):
        before.append(links.pop(0))
        _check_limit(before[-1])
    core = links.pop(0) if links and links[0].name in _RULES else None
    name, knobs = _RULES[core.name](core) if core is not None else ("sgd", {})
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


def _links(init: Any, update: Any) -> Iterator[Link]:
    name = update.__qualname__.partition(".")[0] if inspect.isfunction(update) else type(update).__name__
    if not inspect.isfunction(update) or not str(update.__module__).startswith("optax."):
        yield Link(getattr(update, "__qualname__", name), {}, init, update)
        return
    settings, of_init = (inspect.getclosurevars(each).nonlocals for each in (update, init))
    if name == "chain":
        for one, other in zip(of_init["init_fns"], settings["update_fns"], strict=True):
            yield from _links(one, other)
    elif name == "with_extra_args_support":
        yield from _links(settings["tx"].init, settings["tx"].update)
    else:
        yield Link(name, {**of_init, **settings}, init, update)


def _list(optimizer: Any) -> str:
    return " -> ".join(link.name for link in _links(optimizer.init, optimizer.update))


def _unknown(link: Link, chain: str) -> TranslationError:
    return TranslationError(
        f"the servers cannot do {link.name} at its place in {chain}: expected clip or clip_by_global_norm, then one of "
        f"optax.{KNOWN}, with a number or a schedule as its learning rate"
    )


# What clips, and its setting that says where.
_LIMITS = {"clip": "max_delta", "clip_by_global_norm": "max_norm"}


def _limit(link: Link) -> float:
    return float(link.settings[_LIMITS[link.name]])


def _check_limit(link: Link) -> None:
    # For servers 0 means no limit; Optax makes all gradients 0 of it.
    if link.name in _LIMITS and not _limit(link) > 0:
        raise TranslationError(f"optax.{link.name}({_limit(link):g}): expected a number above 0")


def _rate(link: Link, chain: str) -> Callable[[int], float]:
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


def _decay(link: Link, params: Any, names: Sequence[str]) -> Config:
    mask = None
    if link.name == "masked":
        mask, inner = link.settings["mask"], link.settings["inner"]
        [link] = _links(inner.init, inner.update)
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


def _momentum(link: Link, *, rate_outside: bool) -> Config:
    link.plain(accumulator_dtype=None, nesterov=False)
    return {"momentum": float(link.settings["decay"]), "rate_outside": rate_outside}


def _trace(link: Link) -> tuple[str, Config]:
    link.plain(accumulator_dtype=None)
    momentum = float(link.settings["decay"])
    return "nesterov" if link.settings["nesterov"] else "momentum", {
        "momentum": momentum,
        "rate_outside": True,
    }


def _adam(link: Link) -> tuple[str, Config]:
    link.plain(eps_root=0.0, mu_dtype=None, nesterov=False)
    return "adam", {**_means(link), "epsilon_outside": True}


def _adamax(link: Link) -> tuple[str, Config]:
    return "adamax", {**_means(link), "epsilon_inside": True}


def _rms(link: Link) -> tuple[str, Config]:
    link.plain(bias_correction=False, initial_scale=0.0)
    knobs = {"rho": float(link.settings["decay"]), "epsilon": float(link.settings["eps"])}
    outside = not link.settings["eps_in_sqrt"]
    return "rmsprop", {**knobs, "centered": link.name == "scale_by_stddev", "epsilon_outside": outside}


def _adagrad(link: Link) -> tuple[str, Config]:
    start = float(link.settings["initial_accumulator_value"])
    return "adagrad", {"initial_accumulator_value": start, "epsilon": float(link.settings["eps"])}


def _adadelta(link: Link) -> tuple[str, Config]:
    return "adadelta", {"rho": float(link.settings["rho"]), "epsilon": float(link.settings["eps"])}


def _lion(link: Link) -> tuple[str, Config]:
    link.plain(mode="hard", mu_dtype=None)
    return "lion", {"beta_1": float(link.settings["b1"]), "beta_2": float(link.settings["b2"])}


def _means(link: Link) -> Config:
    of = link.settings
    return {"beta_1": float(of["b1"]), "beta_2": float(of["b2"]), "epsilon": float(of["eps"])}


_RULES: Mapping[str, Callable[[Link], tuple[str, Config]]] = {
    "trace": _trace,
    "scale_by_adam": _adam,
    "scale_by_adamax": _adamax,
    "scale_by_rms": _rms,
    "scale_by_stddev": _rms,
    "scale_by_rss": _adagrad,
    "scale_by_adadelta": _adadelta,
    "scale_by_lion": _lion,
}
