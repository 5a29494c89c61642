"""Models of Flax linen, Flax NNX and Equinox in a loop of `psworker.jax`: each is what Optax makes of it alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.keras.in_process import servers

jax = pytest.importorskip("jax", reason="jax is not installed (scripts/install jax)")
optax = pytest.importorskip("optax", reason="optax is not installed (scripts/install jax)")
pj = pytest.importorskip("psworker.jax")

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

X = np.random.default_rng(0).normal(size=(48, 6)).astype(np.float32)
Y = X[:, :1] * 2 - X[:, 1:2]
STEPS = 6


def batch(k: int) -> tuple[Any, Any]:
    return X[8 * k : 8 * k + 8], Y[8 * k : 8 * k + 8]


def check(params: Any, gradients_of: Callable[..., Any]) -> None:
    """`gradients_of(params, x, y)`: a tree as `params`."""
    chain, step = optax.adamw(1e-2, weight_decay=0.1), jax.jit(gradients_of)
    alone, memory = params, chain.init(params)
    for k in range(STEPS):
        updates, memory = chain.update(step(alone, *batch(k)), memory, alone)
        alone = optax.apply_updates(alone, updates)
    with servers() as hosts, pj.distribute(params, chain, hosts) as job:
        for k in range(STEPS):
            job.push(step(job.pull(), *batch(k)))
    assert jax.tree.structure(job.params) == jax.tree.structure(params)
    assert jax.tree.leaves(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=0, atol=2e-6), alone, job.params)


def test_flax_linen_with_averages() -> None:
    linen = pytest.importorskip("flax.linen", reason="flax is not installed (pip install flax)")

    class Net(linen.Module):  # type: ignore[misc, name-defined]
        @linen.compact
        def __call__(self, x: Any) -> Any:
            x = linen.BatchNorm(use_running_average=False, momentum=0.5)(linen.Dense(8)(x))
            return linen.Dense(1)(linen.tanh(x))

    net = Net()
    variables = net.init(jax.random.key(0), X[:1])
    params, averages = variables["params"], variables["batch_stats"]

    def loss(params: Any, averages: Any, x: Any, y: Any) -> Any:
        found, moved = net.apply({"params": params, "batch_stats": averages}, x, mutable=["batch_stats"])
        return ((found - y) ** 2).mean(), moved["batch_stats"]

    step = jax.jit(jax.grad(loss, has_aux=True))
    expected = averages
    chain = optax.sgd(0.1)
    alone, memory = params, chain.init(params)
    for k in range(STEPS):
        gradients, expected = step(alone, expected, *batch(k))
        updates, memory = chain.update(gradients, memory, alone)
        alone = optax.apply_updates(alone, updates)
    with servers() as hosts, pj.distribute(params, chain, hosts, state=averages) as job:
        for k in range(STEPS):
            pulled = job.pull()
            gradients, moved = step(pulled, job.state, *batch(k))
            job.push(gradients, state=moved)
    for ours, theirs in ((job.params, alone), (job.state, expected)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=0, atol=2e-6), theirs, ours)


def test_flax_nnx() -> None:
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed (pip install flax)")
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(6, 8, rngs=rngs), jax.numpy.tanh, nnx.Linear(8, 1, rngs=rngs))
    definition, params = nnx.split(model, nnx.Param)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return ((nnx.merge(definition, params)(x) - y) ** 2).mean()

    check(params, jax.grad(loss))


def test_equinox() -> None:
    eqx = pytest.importorskip("equinox", reason="equinox is not installed (pip install equinox)")
    model = eqx.nn.MLP(6, 1, 8, 1, activation=jax.numpy.tanh, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return ((jax.vmap(eqx.combine(params, static))(x) - y) ** 2).mean()

    check(params, jax.grad(loss))
