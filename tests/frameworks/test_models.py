"""What every `psworker.backends.Model` does: the same tests for each framework that is installed."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pswire.model.plan import make_plan
from psworker.backends import Model, ModelError, cut, payloads
from psworker.data.payloads import array_of

pytestmark = [
    pytest.mark.tensorflow,
    # Keras' own, on PyTorch.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

KERNEL = np.arange(24, dtype=np.float32).reshape(6, 4) / 8
BIAS = np.full(4, 0.5, np.float32)
MEAN = np.array([1, 2, 3], np.float32)
SCALE = np.float32(4.0)
# In the order that every framework here gives them.
VALUES = [BIAS, KERNEL, SCALE, MEAN]


@dataclass
class Case:
    """A model of the four variables, how its state moves by 1, and an array of the framework's."""

    model: Model
    move: Callable[[], object]
    array: Callable[[np.ndarray], Any]
    device: str = "cpu"


def of_numpy() -> Case:
    from psworker.backends.numpy import Arrays

    arrays = {"bias": BIAS.copy(), "kernel": KERNEL.copy(), "scale": np.array(SCALE), "mean": MEAN.copy()}

    def move() -> None:
        arrays["mean"] += 1

    return Case(Arrays(arrays, state=["mean"]), move, np.asarray)


def of_torch() -> Case:
    import torch

    from psworker.backends.torch import TorchModel

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in (("bias", BIAS), ("kernel", KERNEL), ("scale", np.array(SCALE))):
                setattr(self, name, torch.nn.Parameter(torch.tensor(value)))
            self.register_buffer("mean", torch.tensor(MEAN))
            self.register_buffer("steps", torch.tensor(0))
            self.register_buffer("cache", torch.zeros(99), persistent=False)

    net = Net()

    def move() -> None:
        # Another tensor in its place, as to(device) makes one.
        net.mean = net.mean + 1

    return Case(TorchModel(net, list(net.parameters())), move, torch.tensor)


def of_jax() -> Case:
    import jax
    import jax.numpy as jnp

    from psworker.backends.jax import JaxModel

    params = {"bias": jnp.array(BIAS), "kernel": jnp.array(KERNEL), "scale": jnp.array(SCALE)}
    model = JaxModel(params, {"mean": jnp.array(MEAN), "steps": jnp.array(0)})

    def move() -> None:
        model.state = {"mean": model.state["mean"] + 1, "steps": model.state["steps"] + 1}

    return Case(model, move, jnp.array, jax.devices()[0].platform)


def of_keras() -> Case:
    """On the backend of KERAS_BACKEND, TensorFlow by default; test_backends.py runs the others."""
    import keras

    import psworker.keras  # noqa: F401  (before Keras)
    from psworker.backends.keras.step import backend
    from psworker.backends.keras.variables import KerasModel, collect

    class Net(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            for name, value in (("bias", BIAS), ("kernel", KERNEL), ("scale", SCALE), ("mean", MEAN)):
                made = self.add_weight(
                    shape=value.shape, initializer="zeros", name=name, trainable=name != "mean"
                )
                made.assign(value)
                setattr(self, name, made)
            self.built = True

    net = Net()
    model = KerasModel(collect(net), backend().framework)
    return Case(model, lambda: net.mean.assign_add(np.ones(3, np.float32)), keras.ops.convert_to_tensor)


CASES = {"numpy": of_numpy, "torch": of_torch, "jax": of_jax, "keras": of_keras}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    name = request.param
    # The models of Keras here compute with TensorFlow.
    if find_spec("tensorflow" if name == "keras" else name) is None:
        extra = "worker" if name == "keras" else name
        pytest.skip(f"{name} is not installed (scripts/install {extra})")
    return CASES[name]()


def test_variables_have_their_names_shapes_and_kinds(case: Case) -> None:
    specs = case.model.specs
    assert [spec.name.rpartition("/")[2] for spec in specs] == ["bias", "kernel", "scale", "mean"]
    assert [spec.shape for spec in specs] == [(4,), (6, 4), (), (3,)]
    assert [spec.kind for spec in specs] == ["trainable"] * 3 + ["state"]
    assert {spec.dtype for spec in specs} == {"float32"}
    assert case.model.device.startswith(case.device)
    for found, value in zip(case.model.values(), VALUES, strict=True):
        np.testing.assert_array_equal(found, value)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("servers", [1, 3])
def test_a_version_comes_and_a_contribution_goes(case: Case, dtype: type, servers: int) -> None:
    """All numbers here are exact in 16 bits. The version's memory may only be read, and is used again."""
    plan = make_plan(case.model.specs, servers)
    flats = [flat.astype(dtype) for flat in plan.scatter([value * 2 for value in VALUES])]
    for flat in flats:
        flat.flags.writeable = False
    case.model.put(cut(plan, flats))
    for flat in flats:
        flat.flags.writeable = True
        flat[:] = -1
    for found, value in zip(case.model.values(), VALUES, strict=True):
        np.testing.assert_array_equal(found, value * 2)
    case.move()
    gradients = [case.array(value) for value in VALUES[:3]]
    made = payloads(plan, case.model, [*gradients, *case.model.changes()], dtype)
    sent = [array_of(each) for each in made]
    assert {flat.dtype for flat in sent} == {np.dtype(dtype)}
    expected = [*VALUES[:3], np.ones(3, np.float32)]
    for found, value in zip(cut(plan, sent), expected, strict=True):
        np.testing.assert_array_equal(found.astype(np.float32), value)


def test_a_gradient_is_given_where_it_lies(case: Case) -> None:
    """No copy but the one into the message or the shared memory."""
    gradient = case.array(KERNEL)
    if not case.model.device.startswith("cpu"):
        pytest.skip("of the CPU: this framework computes on a GPU here")
    first, second = (case.model.fetch(gradient, 0, 6, np.dtype(np.float32)) for _ in range(2))
    assert first().ctypes.data == second().ctypes.data


def test_another_shape_is_refused(case: Case) -> None:
    plan = make_plan(case.model.specs, 1)
    wrong = [case.array(value) for value in (BIAS, KERNEL.T.copy(), SCALE, MEAN)]
    with pytest.raises(ModelError, match=r"kernel.*expected the shape \[6, 4\], got \[4, 6\]"):
        payloads(plan, case.model, wrong, np.float32)
