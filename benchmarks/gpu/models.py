"""A language model in plain PyTorch and in plain JAX: the step that `scripts/gpu` times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from psworker.errors import SessionError


@dataclass(frozen=True)
class Size:
    """Of a transformer, and of a batch of token sequences."""

    layers: int
    width: int
    words: int
    length: int
    batch: int

    @property
    def parameters(self) -> int:
        """How many there are, norms and biases aside."""
        return self.words * self.width + 12 * self.layers * self.width**2


# 111 M parameters, and what a CPU does in a moment.
LARGE = Size(12, 768, 32_000, 256, 16)
SMALL = Size(2, 64, 512, 32, 4)


def tokens(size: Size) -> np.ndarray[Any, Any]:
    """Sixteen batches; the next word is what is to be learned."""
    draw = np.random.default_rng(0)
    return draw.integers(0, size.words, (16, size.batch, size.length + 1))


@dataclass
class Loop:
    """One training loop: `step` computes and updates, `wait` ends what the device still does, `close` the job."""

    step: Callable[[int], None]
    wait: Callable[[], None]
    close: Callable[[], None]
    device: str


def torch_loop(size: Size, device: str, hosts: str, wire: str) -> Loop:
    """Alone without `hosts`."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        size.width, 8, 4 * size.width, dropout=0.0, batch_first=True, norm_first=True
    )
    model = nn.ModuleDict(
        {
            "words": nn.Embedding(size.words, size.width),
            "body": nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False),
        }
    ).to(device)
    mask = nn.Transformer.generate_square_subsequent_mask(size.length, device=device)
    data = torch.tensor(tokens(size), device=device)
    optimizer: Any = torch.optim.AdamW(model.parameters(), 1e-4)
    if hosts:
        import psworker.torch

        optimizer = psworker.torch.distribute(optimizer, model, hosts, wire_dtype=wire)

    def step(number: int) -> None:
        words = data[number % len(data)]
        hidden = model["body"](model["words"](words[:, :-1]), mask=mask, is_causal=True)
        logits = hidden @ model["words"].weight.T
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
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

    params, data = _drawn(size), jnp.asarray(tokens(size))
    gradients_of = jax.jit(jax.grad(_loss))
    chain = optax.adamw(1e-4)
    if hosts:
        job = psworker.jax.distribute(params, chain, hosts, wire_dtype=wire)

        def contribute(number: int) -> None:
            pulled = job.pull()
            if pulled is None:
                raise SessionError("the job has ended")
            job.push(gradients_of(pulled, data[number % len(data)]))

        return Loop(contribute, lambda: None, job.close, _device(params))
    state = chain.init(params)

    @jax.jit
    def update(params: Any, state: Any, words: Any) -> Any:
        updates, state = chain.update(jax.grad(_loss)(params, words), state, params)
        return optax.apply_updates(params, updates), state

    def step(number: int) -> None:
        nonlocal params, state
        params, state = update(params, state, data[number % len(data)])
        jax.block_until_ready(params)

    return Loop(step, lambda: None, lambda: None, _device(params))


def _device(params: Any) -> str:
    [device] = params["words"].devices()
    return f"{device.platform}:{device.id}"


def _drawn(size: Size) -> Any:
    import jax.numpy as jnp

    draw, d = np.random.default_rng(0), size.width
    shapes = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
    blocks = [
        {name: jnp.asarray(draw.normal(0, 0.02, shape).astype(np.float32)) for name, shape in shapes.items()}
        for _ in range(size.layers)
    ]
    return {
        "words": jnp.asarray(draw.normal(0, 0.02, (size.words, d)).astype(np.float32)),
        "blocks": blocks,
    }


def _loss(params: Any, words: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def normed(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    x = params["words"][words[:, :-1]]
    count, length, width = x.shape
    causal = jnp.tril(jnp.ones((length, length), bool))
    for block in params["blocks"]:
        q, k, v = (
            each.reshape(count, length, 8, width // 8)
            for each in jnp.split(normed(x) @ block["qkv"], 3, axis=-1)
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // 8) ** -0.5
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e30))
        x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ block["out"]
        x = x + jax.nn.gelu(normed(x) @ block["up"]) @ block["down"]
    logits = normed(x) @ params["words"].T
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), words[:, 1:, None], -1).mean()


LOOPS: dict[str, Callable[[Size, str, str, str], Loop]] = {"torch": torch_loop, "jax": jax_loop}
