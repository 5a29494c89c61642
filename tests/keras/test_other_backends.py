"""What is of JAX and PyTorch only. `tests/frameworks/test_backends.py` runs this file with KERAS_BACKEND set."""

import sys
from typing import Any

import numpy as np
import pytest

from tests.probes import traces

pytestmark = [
    pytest.mark.usefixtures("jobs_end"),
    pytest.mark.tensorflow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

pk = pytest.importorskip("psworker.keras")
keras = pytest.importorskip("keras")

from tests.keras.steps import OwnStep  # noqa: E402

BACKEND = keras.backend.backend()
jax_only = pytest.mark.skipif(BACKEND != "jax", reason="of JAX: test_backends.py runs it")
torch_only = pytest.mark.skipif(BACKEND != "torch", reason="of PyTorch: test_backends.py runs it")
others_only = pytest.mark.skipif(
    BACKEND == "tensorflow", reason="of other backends: test_backends.py runs it"
)

X = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 4, 40)


def compiled(model: Any, **more: Any) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss=loss, **more)
    return model


def build(*layers: Any, **more: Any) -> Any:
    keras.utils.clear_session()
    keras.utils.set_random_seed(5)
    return compiled(keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(4)]), **more)


@jax_only
def test_data_that_keep_their_shape_are_traced_once() -> None:
    model = build()
    with pk.distribute(model) as job:
        model.fit(X, Y, batch_size=8, epochs=3, verbose=0)
        assert job.version == 15
        assert traces(job) == 1
        model.fit(X[:36], Y[:36], batch_size=8, verbose=0)
        # The last batch is smaller.
        assert traces(job) == 2


@jax_only
def test_what_jax_cannot_do_here_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    with monkeypatch.context() as patch:
        patch.setattr(jax, "process_count", lambda: 2)
        with pytest.raises(pk.FitError, match="leave jax.distributed.initialize.. out"):
            pk.distribute(build())
    with monkeypatch.context() as patch:
        patch.setattr(keras.config, "is_nnx_enabled", lambda: True)
        with pytest.raises(pk.FitError, match="NNX mode"):
            pk.distribute(build())


@jax_only
def test_a_model_that_is_spread_over_devices_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mesh:
        devices = np.arange(2)

    class Spread:
        device_mesh = Mesh()

    model = build()
    monkeypatch.setattr(keras.distribution, "distribution", Spread)
    with pytest.raises(pk.FitError, match="spreads the model over 2 devices.*a worker for each device"):
        pk.distribute(model)


@torch_only
def test_what_pytorch_cannot_do_here_is_said() -> None:
    with pytest.raises(pk.FitError, match="steps_per_execution.*expected 1"):
        pk.distribute(build(steps_per_execution=2))


@torch_only
def test_a_module_of_torch_has_a_distribute_of_its_own() -> None:
    import torch

    with pytest.raises(pk.FitError, match=r"torch.nn.Module Linear: .* psworker.torch.distribute"):
        pk.distribute(torch.nn.Linear(2, 2))


@torch_only
def test_a_step_that_is_compiled_trains_as_an_eager_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """jit_compile=True has `torch.compile` make the step; here with the compiler that needs no C++."""
    import torch

    compile_step = torch.compile
    asked = []

    def eager(function: Any) -> Any:
        asked.append(function)
        return compile_step(function, backend="eager")

    monkeypatch.setattr(torch, "compile", eager)
    weights = []
    for jit in (False, True):
        model = build(jit_compile=jit)
        with pk.distribute(model):
            model.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
        weights.append(model.get_weights())
    assert len(asked) == 1
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


class Clipping(OwnStep):
    """Sets its weights in its step, as in a WGAN; in its first steps they are within the bounds."""

    def before(self) -> None:
        self.dense.kernel.assign(keras.ops.clip(self.dense.kernel.value, -1.0, 1.0))


@torch_only
def test_a_step_that_assigns_weights_is_refused() -> None:
    model = compiled(Clipping())
    model(X[:1])
    model.dense.kernel.assign(0.1 * model.dense.kernel)
    with pk.distribute(model), pytest.raises(Exception, match="assigns a value to 'dense/kernel'"):
        model.fit(X, Y, batch_size=8, verbose=0)


@others_only
def test_a_step_takes_few_calls_more_than_keras_own() -> None:
    """Of Python, which short steps consist of. A call for each variable or layer would be seen here."""

    def calls(model: Any) -> int:
        model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
        counted = 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            model.fit(X, Y, batch_size=8, epochs=4, verbose=0)
        finally:
            sys.setprofile(None)
        return counted // 20

    layers = [keras.layers.Dense(8) for _ in range(10)]
    plain = calls(build(*layers, metrics=["accuracy"]))
    layers = [keras.layers.Dense(8) for _ in range(10)]
    model = build(*layers, metrics=["accuracy"])
    with pk.distribute(model, stay=True):
        ours = calls(model)
    assert ours - plain < {"jax": 2000, "torch": 6000}[BACKEND]


class Twice(OwnStep):
    """Applies the same gradients a second time."""

    def _backward(self, data: Any) -> Any:
        found = super()._backward(data)
        gradients = [each.value.grad for each in self.trainable_variables]
        self.optimizer.apply(gradients, self.trainable_variables)
        return found

    def _stateless(self, state: Any, data: Any) -> Any:
        logs, (trained, others, memory, metrics) = super()._stateless(state, data)
        self.optimizer.stateless_apply(memory, state[0], state[0])
        return logs, (trained, others, memory, metrics)


class Never(OwnStep):
    """Applies none."""

    def train_step(self, *args: Any) -> Any:
        if BACKEND == "jax":
            return {}, args[0]
        return {}


@others_only
@pytest.mark.parametrize(("kind", "words"), [(Twice, "twice"), (Never, "applied no gradients")])
def test_a_step_that_is_no_single_update_is_refused(kind: Any, words: str) -> None:
    model = compiled(kind())
    model(X[:1])
    with pk.distribute(model), pytest.raises(Exception, match=words):
        model.fit(X, Y, batch_size=8, verbose=0)


@others_only
def test_a_gradient_that_is_not_finite_is_skipped() -> None:
    bad = X.copy()
    bad[8:16] = np.nan
    model = build()
    with pk.distribute(model) as job:
        model.fit(bad, Y, batch_size=8, verbose=0, shuffle=False)
        assert job.version == 4
    assert all(np.isfinite(each).all() for each in model.get_weights())


@others_only
def test_a_remote_optimizer_takes_the_place_of_kerass() -> None:
    """In a loop of one's own, with gradients from anywhere."""
    model = build()
    before = model.get_weights()
    with pk.RemoteOptimizer(model, keras.optimizers.SGD(0.5)) as optimizer:
        ones = [keras.ops.ones(each.shape) for each in model.trainable_variables]
        for version in (1, 2):
            optimizer.apply(ones, model.trainable_variables)
            assert optimizer.version == version
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_allclose(one - 1.0, other, atol=1e-6)
