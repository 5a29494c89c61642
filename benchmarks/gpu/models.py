"""A multilayer perceptron in plain PyTorch and in plain JAX: the step that `scripts/gpu` times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from psworker.errors import SessionError

CLASSES, RATE = 10, 1e-4


@dataclass(frozen=True)
class Size:
    """Of a model, and of a batch."""

    layers: int
    width: int
    batch: int


# 109 M parameters, and what a CPU does in a moment.
LARGE = Size(26, 2048, 8192)
SMALL = Size(2, 64, 32)


def data(size: Size) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """One batch and its labels."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(size.batch, size.width)).astype(np.float32)
    return x, draw.integers(0, CLASSES, size.batch)


@dataclass
class Loop:
    """One training loop: `step` computes and updates, `wait` ends what the device still does, `close` the job."""

    step: Callable[[], None]
    wait: Callable[[], None]
    close: Callable[[], None]
    device: str


def torch_loop(size: Size, device: str, hosts: str, wire: str) -> Loop:
    """Alone without `hosts`."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [each for _ in range(size.layers) for each in (nn.Linear(size.width, size.width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(size.width, CLASSES)).to(device)
    x, labels = (torch.tensor(each, device=device) for each in data(size))
    optimizer: Any = torch.optim.AdamW(model.parameters(), RATE)
    if hosts:
        import psworker.torch

        optimizer = psworker.torch.distribute(optimizer, model, hosts, wire_dtype=wire)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    found = str(next(model.parameters()).device)
    return Loop(step, wait, optimizer.close if hosts else lambda: None, found)


def jax_loop(size: Size, device: str, hosts: str, wire: str) -> Loop:
    """Alone without `hosts`."""
    import jax
    import jax.numpy as jnp
    import optax

    import psworker.jax

    draw, widths = np.random.default_rng(0), [size.width] * (size.layers + 1) + [CLASSES]
    shapes = zip(widths[:-1], widths[1:], strict=True)
    params: Any = [jnp.asarray(draw.normal(0, 0.02, shape).astype(np.float32)) for shape in shapes]
    x, labels = map(jnp.asarray, data(size))

    def loss(params: Any) -> Any:
        *hidden, last = params
        found = x
        for each in hidden:
            found = jax.nn.relu(found @ each)
        return optax.softmax_cross_entropy_with_integer_labels(found @ last, labels).mean()

    [place] = params[0].devices()
    found, chain, gradients = f"{place.platform}:{place.id}", optax.adamw(RATE), jax.jit(jax.grad(loss))
    if hosts:
        job = psworker.jax.distribute(params, chain, hosts, wire_dtype=wire)

        def contribute() -> None:
            pulled = job.pull()
            if pulled is None:
                raise SessionError("the job has ended")
            job.push(gradients(pulled))

        return Loop(contribute, lambda: None, job.close, found)
    state = chain.init(params)

    @jax.jit
    def update(params: Any, state: Any) -> Any:
        updates, state = chain.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    def step() -> None:
        nonlocal params, state
        params, state = update(params, state)
        jax.block_until_ready(params)

    return Loop(step, lambda: None, lambda: None, found)


LOOPS: dict[str, Callable[[Size, str, str, str], Loop]] = {"torch": torch_loop, "jax": jax_loop}
