"""`psworker.jax.distribute`: Optax itself is the oracle, on one worker and on two."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import pslab.cli
from psserver.optimizers import build
from psworker.errors import SessionError
from tests.keras.in_process import in_threads, servers

jax = pytest.importorskip("jax", reason="jax is not installed (scripts/install jax)")
optax = pytest.importorskip("optax", reason="optax is not installed (scripts/install jax)")
pj = pytest.importorskip("psworker.jax")

from psworker.jax.translate import links_of  # noqa: E402
from psworker.optimizers import OPTIMIZERS  # noqa: E402

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

jnp = jax.numpy
X = np.random.default_rng(0).normal(size=(96, 6)).astype(np.float32)
Y = X[:, :1] * 2 - X[:, 1:2]
PARAMS = {
    "inner": {"w": np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4), "b": np.zeros(4, np.float32)},
    "out": np.ones((4, 1), np.float32),
}


@jax.jit
@jax.value_and_grad
def loss_and_gradients(params: Any, x: Any, y: Any) -> Any:
    return ((jnp.tanh(x @ params["inner"]["w"] + params["inner"]["b"]) @ params["out"] - y) ** 2).mean()


def at(params: Any, k: int, size: int = 8) -> tuple[Any, Any]:
    part = slice(k * size, (k + 1) * size)
    return loss_and_gradients(params, X[part], Y[part])


def by_optax(chain: Any, steps: int, size: int) -> Any:
    params, memory = PARAMS, chain.init(PARAMS)
    for k in range(steps):
        updates, memory = chain.update(at(params, k, size)[1], memory, params)
        params = optax.apply_updates(params, updates)
    return params


def assert_near(one: Any, other: Any, atol: float = 1e-6) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-6, atol=atol), one, other)


# Optax corrects Adam's means in float32, servers in float64: hence the smaller rate.
CHAINS = [
    optax.sgd(0.1),
    optax.sgd(0.01, 0.9),
    optax.sgd(0.01, 0.9, nesterov=True),
    optax.adam(1e-3),
    optax.adamw(1e-3, eps=1e-2, weight_decay=0.1),
    optax.rmsprop(0.01),
    optax.rmsprop(0.01, eps=1e-2, momentum=0.9),
    optax.rmsprop(0.01, centered=True, eps=1e-2, eps_in_sqrt=False),
    optax.adagrad(0.1),
    optax.adadelta(1.0),
    optax.adamax(0.01, eps=1e-2),
    optax.lion(1e-3, weight_decay=0.1),
    optax.chain(optax.scale_by_rms(), optax.trace(0.9), optax.scale(-0.01)),
]


def test_every_row_of_the_table_is_tried() -> None:
    names = {link.name for chain in CHAINS for link in links_of(chain.init, chain.update)}
    assert {row.kind for row in OPTIMIZERS["optax"]} <= names


@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_of_optax_is_the_servers_rule(chain: Any) -> None:
    """100 steps with gradients of all sizes."""
    draw = np.random.default_rng(0)
    sizes = np.float32(10.0) ** draw.integers(-3, 1, size=40).astype(np.float32)
    params = x = np.linspace(-1, 1, 40, dtype=np.float32)
    rule = build(pj.translate(chain, params, ["w"]).config)
    memory, slots, update = chain.init(params), rule.init(40), jax.jit(chain.update)
    for k, gradient in enumerate(draw.normal(size=(100, 40)).astype(np.float32) * sizes):
        updates, memory = update(gradient, memory, params)
        params, out = optax.apply_updates(params, updates), np.empty_like(x)
        rule.update(x, gradient.copy(), out, slots, version=k, lr_scale=1.0)
        x = out
    np.testing.assert_allclose(x, params, rtol=1e-6, atol=1e-6)


def test_a_loop_is_the_loop_without_servers() -> None:
    """With a schedule, a mask, clipping by the server, and state beside the parameters."""
    chain = optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.adamw(
            optax.warmup_cosine_decay_schedule(0.0, 1e-2, 3, 8),
            weight_decay=0.1,
            mask={"inner": {"w": True, "b": False}, "out": True},
        ),
    )
    state = {"mean": np.zeros(6, np.float32), "steps": np.int32(0)}
    with servers() as hosts, pj.distribute(PARAMS, chain, hosts, state=state) as job:
        assert job.config["exclude_from_weight_decay"] == ["inner/b"]
        assert job.config["global_clipnorm"] == 0.5
        for k in range(8):
            params = job.pull()
            loss, gradients = at(params, k)
            mean = 0.9 * job.state["mean"] + 0.1 * X[8 * k : 8 * k + 8].mean(axis=0)
            moved = {"mean": mean, "steps": job.state["steps"] + 1}
            assert job.push(gradients, state=moved, samples=8, loss=loss)
    assert (job.version, job.fates, int(job.state["steps"])) == (7, {"applied": 8}, 8)
    assert_near(by_optax(chain, 8, 8), job.params, 2e-6)
    expected = np.zeros(6, np.float32)
    for k in range(8):
        expected = 0.9 * expected + 0.1 * X[8 * k : 8 * k + 8].mean(axis=0)
    np.testing.assert_allclose(job.state["mean"], expected, atol=1e-6)


def test_two_workers_are_one_process_with_both_batches(tmp_path: Path) -> None:
    """What one of them makes of NaN does not count."""
    chain = optax.chain(optax.clip_by_global_norm(0.7), optax.sgd(0.1, 0.9))

    def work(index: int) -> Any:
        with pj.distribute(PARAMS, chain, hosts, task_index=index) as job:
            if index:
                bad = jax.tree.map(lambda leaf: leaf * jnp.nan, job.pull())
                assert not job.push(bad, samples=8)
            for k in range(5):
                job.push(at(job.pull(), 2 * k + index)[1], samples=8)
        return job.params

    with servers(workers=2, out=tmp_path / "run") as hosts:
        found = in_threads(work, 2)
    for params in found:
        assert_near(by_optax(chain, 5, 16), params)
    checked = CliRunner().invoke(pslab.cli.cli, ["check", str(tmp_path / "run")])
    assert checked.exit_code == 0, checked.output


def test_several_servers_and_what_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    """The worker clips then; a gradient that is not finite, or of another tree, is not taken."""
    chain = optax.chain(optax.clip_by_global_norm(0.5), optax.add_decayed_weights(0.1), optax.sgd(0.1))
    with servers(2) as hosts, pj.distribute(PARAMS, chain, hosts, wire_dtype="float32") as job:
        assert job.config == {"name": "sgd", "learning_rate": 0.1}
        with pytest.raises(pj.RemoteError, match="without pull"):
            job.push(PARAMS)
        bad = jax.tree.map(lambda leaf: leaf * jnp.nan, PARAMS)
        params = job.pull()
        with pytest.raises(pj.ModelError, match="gradients: expected a tree as"):
            job.push(params["inner"])
        assert not job.push(bad)
        for k in range(4):
            assert job.push(at(job.pull(), k)[1])
        with pytest.raises(SessionError, match="10 batches in a row gave no finite gradient"):
            for _ in range(10):
                job.pull()
                job.push(bad)
        job.pull()
        assert job.version == 4
    assert_near(by_optax(chain, 4, 8), job.params)


def test_a_step_may_take_the_memory_of_what_was_pulled() -> None:
    """donate_argnums, as many loops have it."""
    chain, state = optax.sgd(0.1), {"mean": jnp.zeros(2)}

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any) -> Any:
        return jax.tree.map(lambda leaf: 2 * leaf, params), {"mean": state["mean"] + 1}

    with servers() as hosts, pj.distribute({"w": jnp.ones(3)}, chain, hosts, state=state) as job:
        for _ in range(3):
            gradients, moved = step(job.pull(), job.state)
            assert job.push(gradients, state=moved)
        gradients, _ = step(job.pull(), job.state)
        with pytest.raises(pj.ModelError, match="state was donated to a step .* expected push"):
            job.push(gradients)
    np.testing.assert_allclose(job.params["w"], 0.8**3 * np.ones(3), rtol=1e-6)
    np.testing.assert_array_equal(job.state["mean"], [3, 3])
    decaying = optax.chain(optax.add_decayed_weights(0.1), chain)
    with servers() as hosts, pj.distribute({"w": jnp.ones(3)}, decaying, hosts, state=state) as job:
        gradients, moved = step(job.pull(), job.state)
        with pytest.raises(pj.ModelError, match="params was donated .* reads them"):
            job.push(gradients, state=moved)


@pytest.mark.parametrize(
    ("gradient", "moved", "words"),
    [
        (np.ones(2, np.complex64), np.zeros(3, np.float32), "gradient of 'w': expected floating.* complex64"),
        (np.ones(2, np.int32), np.zeros(3, np.float32), "gradient of 'w': expected floating numbers.* int32"),
        (
            np.ones(2, np.float32),
            np.zeros(1, np.float32),
            r"'state/mean': expected the shape \[3\], got \[1\]",
        ),
    ],
)
def test_other_arrays_than_those_of_the_job_are_refused(gradient: Any, moved: Any, words: str) -> None:
    params, state = {"w": jnp.ones(2)}, {"mean": jnp.zeros(3)}
    with servers() as hosts, pj.distribute(params, optax.sgd(0.1), hosts, state=state) as job:
        job.pull()
        with pytest.raises(pj.ModelError, match=words):
            job.push({"w": gradient}, state={"mean": moved})


def test_bfloat16_parameters_are_float32_on_the_servers() -> None:
    params = {"w": jnp.ones(4, jnp.bfloat16)}
    with servers() as hosts, pj.distribute(params, optax.sgd(2.0**-12), hosts, wire_dtype="bfloat16") as job:
        for _ in range(64):
            held = job.pull()
            assert held["w"].dtype == jnp.bfloat16
            job.push({"w": jnp.ones(4, jnp.bfloat16)})
    np.testing.assert_array_equal(job.params["w"].astype(np.float32), 1 - 64 * 2.0**-12)


@pytest.mark.parametrize(
    ("wire", "steps"),
    [("int8/int8", 20), ("int4/int4", 20), pytest.param("top-k/int8", 200, marks=pytest.mark.nightly)],
)
def test_codecs_take_nothing_from_gradients_that_are_pushed_again_and_again(wire: str, steps: int) -> None:
    """What is not sent is added to the next one, so the sum is off by what one payload leaves out at most."""
    gradient = np.random.default_rng(1).normal(size=(8, 64)).astype(np.float32)
    params = {"w": np.zeros((8, 64), np.float32)}
    with servers(2) as hosts, pj.distribute(params, optax.sgd(0.01), hosts, wire_dtype=wire) as job:
        for _ in range(steps):
            assert job.pull()["w"].dtype == jnp.float32
            job.push({"w": jnp.asarray(gradient)})
    error = np.abs(np.asarray(job.params["w"]) / -0.01 - steps * gradient).max() / np.abs(gradient).max()
    # In numbers of gradients; of top-k's payloads each has one of 64 numbers of a row.
    assert error < (80 if wire.startswith("top-k") else 1)


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        (lambda: optax.nadam(0.1), "scale_by_adam.nesterov=True.: expected False"),
        (lambda: optax.amsgrad(0.1), "cannot do scale_by_amsgrad at its place"),
        (lambda: optax.lamb(0.1), "cannot do scale_by_trust_ratio at its place"),
        (lambda: optax.scale_by_adam(), "sets no learning rate"),
        (lambda: optax.scale(0.1), "a learning rate of -0.1"),
        (lambda: optax.sgd(float("inf")), "a learning rate of inf"),
        (
            lambda: optax.chain(optax.clip_by_global_norm(0.0), optax.sgd(0.1)),
            "norm.0.: expected a number above 0",
        ),
        (
            lambda: optax.chain(optax.clip(0.0), optax.clip(1.0), optax.sgd(0.1)),
            "clip.0.: expected a number above 0",
        ),
        (lambda: optax.chain(optax.sgd(0.1), optax.clip(1.0)), "cannot do clip at its place"),
        (lambda: optax.inject_hyperparams(optax.adam)(0.1), "cannot do inject_hyperparams"),
        (lambda: optax.MultiSteps(optax.sgd(0.1), 2), "cannot do MultiSteps.update"),
        (lambda: optax.rmsprop(0.1, bias_correction=True), "bias_correction=True"),
        (lambda: optax.GradientTransformation(lambda p: None, lambda u, s, p: (u, s)), "cannot do"),
        (lambda: "adam", "expected an Optax optimizer, got str"),
    ],
)
def test_other_chains_are_refused_with_the_list(chain: Callable[[], Any], words: str) -> None:
    with pytest.raises(pj.TranslationError, match=words):
        pj.translate(chain(), PARAMS, ["inner/b", "inner/w", "out"])


@pytest.mark.parametrize(
    ("leaf", "words"),
    [
        (np.ones(2), "'extra' has dtype float64"),
        (np.ones(2, np.complex64), "'extra' has dtype complex64"),
        (np.ones(2, np.int32), "'extra': expected an array of float32.*got int32"),
        (2.0, "'extra': expected an array of float32.*got float"),
    ],
)
def test_parameters_that_servers_cannot_hold_are_refused(leaf: Any, words: str) -> None:
    with pytest.raises(pj.ModelError, match=words):
        pj.distribute({**PARAMS, "extra": leaf}, optax.sgd(0.1), "127.0.0.1:1")
