"""The optimizer that a Keras model was compiled with, as the servers' [optimizer]: names and numbers.

Servers run rules on flat arrays, variable by variable. What depends on a worker's own loss stays in the worker
(`psworker.keras.fit.gradients`): accumulation, loss scaling, averages of the weights. A single server clips the mean
gradient; with several servers each worker clips the norm of its own gradient. What neither can do is refused, with the
nearest alternative.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from psworker.backends.keras.step import unwrapped
from psworker.optimizers import (
    Config,
    OptimizerRow,
    TranslationError,
    beginning,
    kinds_of,
    row_for,
    row_of,
    single,
    warn_of_own_clipping,
)

_CLIPPING = ("clipnorm", "global_clipnorm", "clipvalue")


def translate(optimizer: Any, trained: Sequence[tuple[Any, str]] = (), *, servers: int = 1) -> Config:
    """Make the [optimizer] section that does on the servers what `optimizer` does in `fit`.

    `trained`: the model's trainable variables, each with the name by which the servers know it; needed
    for `exclude_from_weight_decay` only. `servers`: their number; with several, workers clip by norms
    (`worker_clips`). A LossScaleOptimizer stands for its inner optimizer. Numbers are rounded to float32, in which both
    compute. Raises TranslationError.
    """
    optimizer = unwrapped(optimizer)
    row = keras_row(optimizer)
    if row is None:
        raise TranslationError(_no_equal(optimizer))
    if optimizer.ema_overwrite_frequency:
        raise TranslationError(
            "ema_overwrite_frequency writes the average into the weights during training, and weights change on "
            "the servers only: leave it out, and use_ema alone puts the average into the model at the end of fit"
        )
    if optimizer.use_ema and optimizer.gradient_accumulation_steps:
        raise TranslationError(
            "use_ema with gradient_accumulation_steps averages the weights once per batch in Keras, also where no "
            "update was made, and servers make updates only: use one of the two"
        )
    knobs = row.read(lambda name: getattr(optimizer, name))
    config = {"name": row.rule, "learning_rate": _rate(optimizer), **knobs}
    clipping = _clipping(optimizer)
    if clipping is not None and (servers == 1 or clipping == "clipvalue"):
        config[clipping] = single(getattr(optimizer, clipping))
    if optimizer.gradient_accumulation_steps and isinstance(config["learning_rate"], Mapping):
        raise TranslationError(
            "Keras counts a LearningRateSchedule in batches and the servers in updates, which are not the same under "
            "gradient_accumulation_steps: use a constant learning rate, or larger batches without accumulation"
        )
    if optimizer.weight_decay is not None:
        config["weight_decay"] = single(optimizer.weight_decay)
        kept = [name for variable, name in trained if not optimizer._use_weight_decay(variable)]
        if kept:
            config["exclude_from_weight_decay"] = [glob.escape(name) for name in kept]
    for variable, name in trained:
        if getattr(variable, "overwrite_with_gradient", False):
            raise TranslationError(
                f"variable {name!r} takes its gradient as its new value (overwrite_with_gradient, which float8 "
                "quantization sets), and servers run the optimizer on every trained variable: use "
                'dtype="mixed_bfloat16", or train without distribute()'
            )
        if getattr(variable, "constraint", None) is not None:
            raise TranslationError(
                f"variable {name!r} has a constraint, which needs the whole variable after each update, and servers "
                "hold parts: use a regularizer, or weight_decay"
            )
    return config


def worker_clips(optimizer: Any, config: Mapping[str, Any]) -> bool:
    """Tell whether workers clip: `optimizer` does, and servers with the [optimizer] section `config` do not."""
    clipping = None if optimizer is None else _clipping(unwrapped(optimizer))
    return clipping is not None and not config.get(clipping)


def warn_of_clipping(optimizer: Any, config: Mapping[str, Any], workers: int) -> None:
    """Warn if several workers clip, each its own gradient."""
    if worker_clips(optimizer, config):
        warn_of_own_clipping(str(_clipping(unwrapped(optimizer))), workers)


def _clipping(optimizer: Any) -> str | None:
    """Name the kind of clipping that a Keras optimizer does, one of three."""
    return next((kind for kind in _CLIPPING if (getattr(optimizer, kind) or 0) > 0), None)


def keras_row(optimizer: Any) -> OptimizerRow | None:
    """Return the table's row of an optimizer; None for a class of the user's, also where it derives from Keras'."""
    # Some backends derive faster classes.
    kind = next(
        each for each in type(optimizer).__mro__ if not each.__module__.startswith("keras.src.backend.")
    )
    if getattr(keras.optimizers, kind.__name__, None) is not kind:
        return None
    return row_of("keras", kind.__name__, lambda name: getattr(optimizer, name, None))


_SCHEDULES: Mapping[str, type[Any]] = {
    "exponential": keras.optimizers.schedules.ExponentialDecay,
    "cosine": keras.optimizers.schedules.CosineDecay,
    "cosine-restarts": keras.optimizers.schedules.CosineDecayRestarts,
    "piecewise": keras.optimizers.schedules.PiecewiseConstantDecay,
    "polynomial": keras.optimizers.schedules.PolynomialDecay,
    "inverse-time": keras.optimizers.schedules.InverseTimeDecay,
}


def keras_optimizer(config: Mapping[str, Any]) -> Any:
    """Make the Keras optimizer of an [optimizer] with all its knobs; None where Keras has none.

    `exclude_from_weight_decay` is left out, because Keras' files do not keep it.
    """
    row, rate = row_for("keras", config), config["learning_rate"]
    if row is None:
        return None
    if isinstance(rate, Mapping):
        table = dict(rate)
        schedule = table.pop("schedule")
        rate = table["learning_rate"] if schedule == "constant" else _SCHEDULES[schedule](**table)
    more = {knob: config[knob] for knob in _CLIPPING if knob in config}
    if config.get("weight_decay") or row.rule == "adamw":
        more["weight_decay"] = config["weight_decay"]
    return getattr(keras.optimizers, row.kind)(learning_rate=rate, **row.settings(config), **more)


# By name: what the optimizer does that servers do not, and the nearest that they do.
_NEAREST = {
    "Muon": (
        "multiplies matrices in each step, and the bits of a product are another machine's own, where servers replay "
        "and restore to the bit",
        "keras.optimizers.AdamW, or Lamb, whose steps also have a length for each variable",
    ),
    "ScheduleFreeAdamW": (
        "keeps two sets of weights, one to train and one to evaluate, and servers hold one",
        "keras.optimizers.AdamW",
    ),
    "MultiOptimizer": (
        "has an optimizer for each group of variables, and the servers of a job run one for all",
        "a psworker.keras.RemoteOptimizer for each group, or one optimizer",
    ),
}


def _no_equal(optimizer: Any) -> str:
    name = type(optimizer).__name__
    can = ", ".join(kinds_of("keras"))
    if name in _NEAREST and type(optimizer).__module__.startswith("keras."):
        reason, nearest = _NEAREST[name]
        return (
            f"the servers have no {name}: it {reason}; the nearest that they have is {nearest} (all: {can})"
        )
    bases = (kind.__name__ for kind in type(optimizer).__mro__ if kind.__module__.startswith("keras."))
    base = next((name for name in bases if name in kinds_of("keras")), None)
    nearest = f"keras.optimizers.{base}, of which it is a subclass," if base else "one of them"
    return (
        f"the servers cannot run an optimizer of your own ({name}), only those that are known by name: {can}; use "
        f"{nearest} or train without distribute()"
    )


def _rate(optimizer: Any) -> float | Config:
    rate = optimizer._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return _schedule(rate)
    if isinstance(rate, keras.Variable):
        return float(single(beginning(float(rate.value))))
    raise TranslationError(
        f"learning_rate is a function of yours ({rate!r}), which the servers cannot run: use a number or one of "
        "keras.optimizers.schedules"
    )


def _schedule(rate: Any) -> Config:
    name = next((name for name, kind in _SCHEDULES.items() if type(rate) is kind), None)
    given = rate.get_config()
    if name is None:
        known = ", ".join(kind.__name__ for kind in _SCHEDULES.values())
        raise TranslationError(
            f"{type(rate).__name__} is a schedule of yours, which the servers cannot run; PiecewiseConstantDecay comes "
            f"near to any (all: {known})"
        )
    if name == "exponential" and rate.decay_rate > 1:
        raise TranslationError(
            f"ExponentialDecay(decay_rate={rate.decay_rate}) grows: the servers' decay by at most 1, the nearest that "
            "grows is CosineDecay with warmup_target"
        )
    if name == "cosine-restarts" and (given["t_mul"] < 1 or given["m_mul"] > 1):
        raise TranslationError(
            f"CosineDecayRestarts(t_mul={given['t_mul']}, m_mul={given['m_mul']}): the servers' cosines never get "
            "shorter or higher, expected t_mul >= 1 and m_mul <= 1"
        )
    if name == "cosine" and rate.warmup_target is None:
        given.pop("warmup_steps", None)
    knobs = {key: single(value) for key, value in given.items() if key != "name" and value is not None}
    return {"schedule": name, **knobs}
