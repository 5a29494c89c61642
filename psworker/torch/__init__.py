"""PyTorch training loops on parameter servers: one line behind the optimizer.

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer = psworker.torch.distribute(optimizer, model)
    ...
    loss.backward()
    optimizer.step()

See docs/guides/loop.md. Importing this package loads PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Unpack

import torch

from psworker.backends import ModelError
from psworker.backends.torch import TorchModel
from psworker.connection import Hosts, Where
from psworker.optimizers import TranslationError
from psworker.remote import Remote, RemoteError
from psworker.torch.translate import decoupled, rate, settings, torch_row, translate

__all__ = [
    "DistributedOptimizer",
    "ModelError",
    "RemoteError",
    "TranslationError",
    "distribute",
    "translate",
]

# Where an optimizer keeps the hooks of its steps and of `state_dict()`.
_HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
)


def distribute(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    hosts: Hosts = None,
    *,
    clip_norm: float = 0.0,
    **where: Unpack[Where],
) -> DistributedOptimizer:
    """Let parameter servers run `optimizer`: what is returned takes its place in the loop.

    `model`: the module whose parameters it trains; it gets the job's first version now and the next one with every
    `step()`. `clip_norm` limits the norm of the mean gradient, as `clip_grad_norm_` does under
    DistributedDataParallel; `clip_grad_norm_` itself limits that of this worker's. `hosts`, `where`: as in
    `psworker.connect`; without any servers one is started here.

    Raises TranslationError, ModelError, and what `psworker.connect` raises.
    """
    return DistributedOptimizer(optimizer, model, hosts, clip_norm, where)


class DistributedOptimizer(Remote, torch.optim.Optimizer):
    """In the place of a torch.optim.Optimizer, with its parameter groups: `step` contributes the gradients and brings
    the next version into the model. Made by `distribute`.

    Learning rates that a scheduler sets are worker 0's for all. `close` it, or use `with`; the end of the process does
    so, too, and leaves the job's last version in the model only then. Not thread-safe.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        hosts: Hosts,
        clip_norm: float,
        where: Where,
    ) -> None:
        _check(optimizer, torch.optim.Optimizer)
        _check(model, torch.nn.Module)
        trained = [each for group in optimizer.param_groups for each in group["params"]]
        # What torch.compile made of a model: workers may differ in that.
        model = getattr(model, "_orig_mod", model)
        self._model: TorchModel = TorchModel(model, trained)
        self._names = {
            id(parameter): spec.name
            for parameter, spec in zip(self._model.parameters, self._model.specs, strict=False)
        }
        config = translate(optimizer, self._names, clip_norm)
        row = torch_row(optimizer)
        assert row is not None, "it was translated"
        self._row, self._decoupled = row, decoupled(optimizer)
        # The same dictionaries: a scheduler of either optimizer is heard.
        torch.optim.Optimizer.__init__(self, optimizer.param_groups, optimizer.defaults)
        self._settings = settings(self)
        self._group = {id(each): group for group in self.param_groups for each in group["params"]}
        # A scheduler that was made before would miss the steps of that one.
        optimizer._opt_called = True
        for kind in _HOOKS:
            setattr(self, kind, getattr(optimizer, kind))
        Remote.__init__(self, self._model, lambda servers: config, lambda version: rate(self), hosts, **where)

    def step(
        self, closure: Callable[[], Any] | None = None, *, samples: int = 1, loss: Any = math.nan
    ) -> Any:
        """Contribute the gradients of the parameters, and take up the next version, as torch's `step` does.

        `samples`, over how many the gradients were averaged, and `loss` are for the log, and for policies that weigh by
        samples. A parameter without a gradient counts as one with zeros. What is not finite, or comes too late, does
        not count. Raises JobOver where the job has ended, ModelError for a gradient that is sparse and a parameter that
        was changed, TranslationError for settings that were, and as `contribute`.
        """
        self.pulled()
        returned = None
        if closure is not None:
            with torch.enable_grad():
                returned = closure()
            loss = math.nan if returned is None else returned
        if settings(self) != self._settings:
            raise TranslationError(
                "a setting of a parameter group has changed, and only lr may change during a job (of a scheduler that "
                "cycles momentum, cycle_momentum=False)"
            )
        self._model.check_unchanged()
        with torch.no_grad():
            gradients = [self._gradient(parameter) for parameter in self._model.parameters]
        number = float(torch.as_tensor(loss).detach())
        self.contribute(gradients, samples=samples, loss=number)
        self.follow()
        return returned

    def _gradient(self, parameter: torch.Tensor) -> torch.Tensor:
        gradient, group = parameter.grad, self._group[id(parameter)]
        if gradient is None:
            return torch.zeros_like(parameter)
        if gradient.layout != torch.strided:
            raise ModelError(
                f"the gradient of {self._names[id(parameter)]!r} is sparse: expected a dense one (sparse=False)"
            )
        if group.get("maximize"):
            gradient = -gradient
        if group["weight_decay"] and not self._decoupled:
            gradient = gradient.add(parameter, alpha=float(group["weight_decay"]))
        return gradient

    def state_dict(self) -> dict[str, Any]:
        """Return torch's dict, with what the servers remember at this version: a plain torch optimizer can load it."""
        self.state.clear()
        if self.version:
            config, turn = self.config, self.turn
            names = self._row.slots(config)
            slots = self.link.pull_slots(len(names), None if turn is None else turn.grant) if names else []
            for index, parameter in enumerate(self._model.parameters):
                found = {
                    name: torch.from_numpy(arrays[index].copy()).to(parameter)
                    for name, arrays in zip(names, slots, strict=True)
                }
                if config["name"] not in ("sgd", "momentum", "nesterov"):
                    found["step"] = torch.tensor(float(self.version))
                self.state[parameter] = found
            if config["name"] == "nadam":
                self._note_products(config)
        return super().state_dict()

    def _note_products(self, config: Mapping[str, Any]) -> None:
        powers = (0.96 ** (step * config["momentum_decay"]) for step in range(1, self.version + 1))
        product = math.prod(config["beta_1"] * (1 - 0.5 * power) for power in powers)
        for found in self.state.values():
            found["mu_product"] = torch.tensor(product)

    def load_state_dict(self, state_dict: Any) -> NoReturn:
        """Raise RemoteError: servers begin without state, or with that of their checkpoints."""
        raise RemoteError(
            "load_state_dict(): the servers keep the optimizer's state, and go on from their own checkpoints"
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise RemoteError once the job has begun: its variables are those of the beginning."""
        if hasattr(self, "link"):
            raise RemoteError(
                "add_param_group(): a job's variables are those of its beginning; give the optimizer all groups before "
                "distribute(), where parameters may still be frozen, and start a new job to train others"
            )
        super().add_param_group(param_group)


def _check(found: Any, expected: type) -> None:
    if not isinstance(found, expected):
        raise ModelError(
            f"expected a torch.optim.Optimizer and a torch.nn.Module, got {type(found).__module__}."
            f"{type(found).__name__}: a Keras model takes psworker.keras.distribute(model), a pytree of JAX "
            "psworker.jax.distribute(params, optimizer)"
        )
