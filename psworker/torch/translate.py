"""An optimizer of torch.optim as the servers' [optimizer].

Weight decay that torch adds to the gradient, and `maximize`, are the worker's: they are part of the gradient of what is
minimised. Weight decay of the weights (AdamW) is the servers'.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Mapping
from typing import Any

import torch

from psworker.optimizers import Config, OptimizerRow, TranslationError, beginning, kinds_of, row_of, single


def translate(optimizer: torch.optim.Optimizer, names: Mapping[int, str], clipnorm: float = 0.0) -> Config:
    """Write the [optimizer] that does on the servers what `optimizer` does. Raises TranslationError.

    `names`: of the trained parameters, by their id. `clipnorm`: limit of the norm of the mean gradient.
    """
    kind = type(optimizer)
    row = torch_row(optimizer)
    if row is None:
        raise TranslationError(
            f"the servers have no {kind.__name__}: expected one of torch.optim's {', '.join(kinds_of('torch'))}, not a "
            "class derived from one"
        )
    # Adagrad has its sums from the beginning.
    if any(float(found.get("step", 1)) for found in optimizer.state.values()):
        raise TranslationError(
            f"this {kind.__name__} has taken steps or loaded state, and servers begin without: distribute() a new "
            "one; a job goes on from the checkpoints of its servers"
        )
    groups = optimizer.param_groups
    first = groups[0]
    for key, value in settings(optimizer)[0].items():
        if key == "weight_decay":
            continue
        for group in groups:
            if group[key] != value:
                raise TranslationError(
                    f"parameter groups with {key}={value} and {key}={group[key]}: the servers run one rule for all; "
                    "expected groups that differ in weight_decay only"
                )
    if first.get("differentiable"):
        raise TranslationError("differentiable=True: no gradient goes through the servers' update")
    config = {"name": row.rule, "learning_rate": single(beginning(rate(optimizer))), **row.read(first.get)}
    if decoupled(optimizer):
        decays = {float(group["weight_decay"]) for group in groups} - {0.0}
        if len(decays) > 1:
            raise TranslationError(
                f"parameter groups with weight_decay={' and '.join(map(str, sorted(decays)))}: expected one value, "
                "and 0 for parameters that do not decay"
            )
        config["weight_decay"] = single(decays.pop() if decays else 0.0)
        kept = [
            names[id(each)]
            for group in groups
            if not group["weight_decay"]
            for each in group["params"]
            if id(each) in names
        ]
        if kept and config["weight_decay"]:
            config["exclude_from_weight_decay"] = [glob.escape(each) for each in kept]
    if clipnorm:
        config["global_clipnorm"] = single(clipnorm)
    return config


def torch_row(optimizer: torch.optim.Optimizer) -> OptimizerRow | None:
    """Return the table's row of an optimizer; None for a class of the user's, also where it derives from torch's."""
    kind = type(optimizer)
    if getattr(torch.optim, kind.__name__, None) is not kind:
        return None
    return row_of("torch", kind.__name__, optimizer.param_groups[0].get)


def rate(optimizer: torch.optim.Optimizer) -> float:
    """Return the learning rate. Raises TranslationError where parameter groups have several, or it is none."""
    rates = {float(group["lr"]) for group in optimizer.param_groups}
    if len(rates) > 1:
        raise TranslationError(
            f"parameter groups with lr={' and '.join(map(str, sorted(rates)))}: the servers have one learning rate for "
            "all; expected the same in every group"
        )
    found = rates.pop()
    if not 0 <= found < math.inf:
        raise TranslationError(f"a learning rate of {found:g}: expected a number from 0")
    return found


def settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return what no step may change: everything of each group but its rate, and what schedulers note there."""
    return [
        {key: group[key] for key in optimizer.defaults if key != "lr"} for group in optimizer.param_groups
    ]


def decoupled(optimizer: torch.optim.Optimizer) -> bool:
    """Its weight decay is of the weights, not added to the gradient."""
    return bool(
        isinstance(optimizer, torch.optim.AdamW) or optimizer.param_groups[0].get("decoupled_weight_decay")
    )
