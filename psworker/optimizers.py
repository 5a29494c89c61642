"""One table of optimizers, read in both directions: what Keras, PyTorch and Optax have, and the servers' rules for it.

A framework's translation finds the row of an optimizer and reads the rule's knobs from its settings. Whatever goes back
to a framework finds the row of a rule, with the settings that make the same optimizer and the names of its slots.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from pswire.logs.events import event
from psworker.errors import Unsupported

log = logging.getLogger("ps-worker")

Config = dict[str, Any]
# Returns a setting of an optimizer by its name; None if it has none of that name.
Setting = Callable[[str], Any]
LEAST = float(np.finfo(np.float32).tiny)
# Keys of an [optimizer] beside the knobs of its formula.
_BESIDE = frozenset(
    ("name", "learning_rate", "weight_decay", "exclude_from_weight_decay")
    + ("clipnorm", "global_clipnorm", "clipvalue")
)


class TranslationError(Unsupported, ValueError):
    """The optimizer has no equivalent on the servers; the text names the nearest that has one."""


@dataclass(frozen=True, slots=True)
class OptimizerRow:
    """A class of a framework and the rule that does the same. Of Optax, a transformation, by its function's name.

    `reads`: the rule's knobs by `KNOB=SETTING`, or one word where both have one name; `betas.0` is the first of a pair,
    `!NAME` the opposite of a flag. `keeps`: where the framework keeps the rule's slots, in the rule's order;
    `SLOT?KNOB` exists only with that knob. `when`: settings that choose between rows of a class; the first row that
    fits is the one. `fixed`: knobs that the framework's formula needs. `only`: settings that the rule lacks, with the
    value that they must have.
    """

    kind: str
    rule: str
    reads: str = ""
    keeps: str = ""
    when: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)

    @property
    def knobs(self) -> dict[str, str]:
        """The rule's knobs, each with the setting that gives it."""
        pairs = (each.partition("=") for each in self.reads.split())
        return {knob: setting or knob for knob, _, setting in pairs}

    def read(self, setting: Setting) -> Config:
        """Return the rule's knobs. Raises TranslationError for a setting that the rule lacks."""
        for name, value in self.only.items():
            got = setting(name)
            if got is not None and got != value:
                reason = _REASONS.get(name, "the servers have no knob for it")
                raise TranslationError(f"{self.kind}({name}={got!r}): expected {value!r}, because {reason}")
        found = {knob: single(_read(setting, source)) for knob, source in self.knobs.items()}
        return {**found, **self.fixed}

    def settings(self, config: Mapping[str, Any]) -> Config:
        """Return the settings that make this optimizer from a rule's knobs: the inverse of `read`."""
        return {
            **self.when,
            **{source: config[knob] for knob, source in self.knobs.items() if knob in config},
        }

    def slots(self, config: Mapping[str, Any]) -> list[str]:
        """Return the names of the slots that this optimizer has with these knobs, in the rule's order."""
        pairs = (each.partition("?") for each in self.keeps.split())
        return [slot for slot, _, knob in pairs if not knob or config.get(knob)]


def _read(setting: Setting, source: str) -> Any:
    if source.startswith("!"):
        return not setting(source[1:])
    name, _, place = source.partition(".")
    return setting(name)[int(place)] if place else setting(name)


def row_of(framework: str, kind: str, setting: Setting) -> OptimizerRow | None:
    """Return the row of an optimizer of this class with these settings; None if the servers have no rule for it."""
    fits = (row for row in OPTIMIZERS[framework] if row.kind == kind)
    return next((row for row in fits if all(setting(k) == v for k, v in row.when.items())), None)


def row_for(framework: str, config: Mapping[str, Any]) -> OptimizerRow | None:
    """Return the row of the optimizer that does what an [optimizer] does; None if the framework has none."""
    for row in OPTIMIZERS[framework]:
        more = {knob: config[knob] for knob in config.keys() - row.knobs.keys() - _BESIDE}
        if row.rule == config["name"] and more.items() <= row.fixed.items():
            return row
    return None


def kinds_of(framework: str) -> list[str]:
    """Return the names of a framework's classes in the table."""
    return list(dict.fromkeys(row.kind for row in OPTIMIZERS[framework]))


_ADAM, _MEANS = "beta_1 beta_2 epsilon", "_momentums _velocities"
_BETAS, _AVERAGES = "beta_1=betas.0 beta_2=betas.1 epsilon=eps", "exp_avg exp_avg_sq"
_RMS = "rho=decay epsilon=eps epsilon_outside=!eps_in_sqrt"
_PLAIN_RMS = {"bias_correction": False, "initial_scale": 0.0}

OPTIMIZERS: Final[Mapping[str, tuple[OptimizerRow, ...]]] = {
    "keras": (
        OptimizerRow("SGD", "sgd", when={"momentum": 0.0}),
        OptimizerRow("SGD", "momentum", "momentum", "momentums", {"nesterov": False}),
        OptimizerRow("SGD", "nesterov", "momentum", "momentums", {"nesterov": True}),
        OptimizerRow("Adam", "adam", f"{_ADAM} amsgrad", f"{_MEANS} _velocity_hats?amsgrad"),
        OptimizerRow("AdamW", "adamw", f"{_ADAM} amsgrad", f"{_MEANS} _velocity_hats?amsgrad"),
        OptimizerRow("Nadam", "nadam", _ADAM, _MEANS),
        OptimizerRow("Adamax", "adamax", _ADAM, "_m _u"),
        OptimizerRow("Adagrad", "adagrad", "initial_accumulator_value epsilon", "_accumulators"),
        OptimizerRow("Adadelta", "adadelta", "rho epsilon", "_accumulated_grads _accumulated_delta_vars"),
        OptimizerRow(
            "RMSprop",
            "rmsprop",
            "rho momentum epsilon centered",
            "_velocities _momentums?momentum _average_gradients?centered",
        ),
        OptimizerRow("Lion", "lion", "beta_1 beta_2", "_momentums"),
        OptimizerRow(
            "Ftrl",
            "ftrl",
            "l1_regularization_strength l2_regularization_strength beta initial_accumulator_value "
            "l2_shrinkage_regularization_strength",
            "_accumulators _linears",
            only={"learning_rate_power": -0.5},
        ),
        OptimizerRow("Lamb", "lamb", _ADAM, _MEANS),
        # Rows and columns of a matrix; a vector has `_v` in place of rows. In Keras `relative_step` changes nothing.
        OptimizerRow("Adafactor", "adafactor", "beta_2_decay epsilon_1 epsilon_2 clip_threshold", "_r _c"),
    ),
    "torch": (
        OptimizerRow("SGD", "sgd", when={"momentum": 0}, only={"dampening": 0}),
        *(
            OptimizerRow(
                *("SGD", rule, "momentum", "momentum_buffer", {"nesterov": rule == "nesterov"}),
                fixed={"rate_outside": True},
                only={"dampening": 0},
            )
            for rule in ("momentum", "nesterov")
        ),
        *(
            OptimizerRow(
                *(kind, kind.lower(), f"{_BETAS} amsgrad", f"{_AVERAGES} max_exp_avg_sq?amsgrad"),
                fixed={"epsilon_outside": True},
            )
            for kind in ("Adam", "AdamW")
        ),
        OptimizerRow(
            "RMSprop",
            "rmsprop",
            "rho=alpha momentum centered epsilon=eps",
            "square_avg momentum_buffer?momentum grad_avg?centered",
            fixed={"rate_outside": True, "epsilon_outside": True},
        ),
        OptimizerRow(
            *("Adagrad", "adagrad", "initial_accumulator_value epsilon=eps", "sum"),
            fixed={"epsilon_outside": True},
            only={"lr_decay": 0},
        ),
        OptimizerRow("Adadelta", "adadelta", "rho epsilon=eps", "square_avg acc_delta"),
        OptimizerRow("Adamax", "adamax", _BETAS, "exp_avg exp_inf", fixed={"epsilon_inside": True}),
        OptimizerRow("NAdam", "nadam", f"{_BETAS} momentum_decay", _AVERAGES),
    ),
    "optax": (
        *(
            OptimizerRow(
                *("trace", rule, "momentum=decay", "", {"nesterov": rule == "nesterov"}),
                fixed={"rate_outside": True},
                only={"accumulator_dtype": None},
            )
            for rule in ("momentum", "nesterov")
        ),
        OptimizerRow(
            *("scale_by_adam", "adam", "beta_1=b1 beta_2=b2 epsilon=eps"),
            fixed={"epsilon_outside": True},
            only={"eps_root": 0.0, "mu_dtype": None, "nesterov": False},
        ),
        OptimizerRow(
            *("scale_by_adamax", "adamax", "beta_1=b1 beta_2=b2 epsilon=eps"), fixed={"epsilon_inside": True}
        ),
        OptimizerRow("scale_by_rms", "rmsprop", _RMS, fixed={"centered": False}, only=_PLAIN_RMS),
        OptimizerRow("scale_by_stddev", "rmsprop", _RMS, fixed={"centered": True}, only=_PLAIN_RMS),
        OptimizerRow("scale_by_rss", "adagrad", "initial_accumulator_value epsilon=eps"),
        OptimizerRow("scale_by_adadelta", "adadelta", "rho epsilon=eps"),
        OptimizerRow("scale_by_lion", "lion", "beta_1=b1 beta_2=b2", only={"mode": "hard", "mu_dtype": None}),
    ),
}

# Why a setting must have its value, if not only because servers have no knob for it.
_REASONS: Final = {
    "learning_rate_power": "it is the paper's and Keras' default, and a square root has the same bits on every machine",
    "dampening": "a smaller lr has the same effect on all steps but the first, which leaves it out",
    "lr_decay": "a scheduler of torch.optim.lr_scheduler lowers the rate",
}


# What all translations do


def beginning(rate: float) -> float:
    """Return the learning rate for a job to begin with.

    Later rates are multiples of it, so 0, the beginning of a warm-up, becomes the least normal float32: it moves
    nothing.
    """
    return rate or LEAST


def single(value: Any) -> Any:
    """Return a plain number or list; a float becomes the shortest decimal with the same float32."""
    if isinstance(value, list | tuple):
        return [single(each) for each in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    return float(str(np.float32(value)))


def warn_of_own_clipping(what: str, workers: int) -> None:
    """Warn if several workers clip, each its own gradient."""
    if workers > 1:
        log.warning(
            "each worker clips its own gradient (%s), because several servers have no norm of the mean; with one "
            "server the mean is clipped, as one process on all batches does it",
            what,
            extra=event("workers_clip"),
        )
