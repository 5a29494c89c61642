"""What only a GPU shows. `scripts/gpu` runs this file, with the conformance suite, on a machine that has one."""

from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pswire.model.plan import VariableSpec, make_plan
from psworker.backends import payloads
from psworker.data.payloads import array_of
from tests.frameworks.installed import torch_or_skip
from tests.keras.in_process import servers

pytestmark = [pytest.mark.gpu, pytest.mark.cluster]

VALUES = [np.random.default_rng(0).normal(size=shape).astype(np.float32) for shape in ((2100, 2100), (7,))]
SPECS = [VariableSpec(name, value.shape) for name, value in zip("ab", VALUES, strict=True)]
PLAIN = np.random.default_rng(1).normal(size=(64, 8)).astype(np.float32)


@cache
def gpus(framework: str) -> int:
    if framework == "torch":
        import torch

        return int(torch.cuda.device_count())
    import jax

    return sum(device.platform in ("gpu", "cuda") for device in jax.devices())


@pytest.fixture
def torch() -> Any:
    return needs("torch")


@pytest.fixture
def jax() -> Any:
    return needs("jax")


def needs(framework: str) -> Any:
    reason = f"{framework} is not installed (scripts/install {framework})"
    found = torch_or_skip() if framework == "torch" else pytest.importorskip(framework, reason=reason)
    if not gpus(framework):
        pytest.skip(f"{framework} sees no GPU: scripts/gpu runs this test on a machine with one")
    return found


def sent(model: Any, arrays: list[Any], dtype: Any) -> list[np.ndarray[Any, Any]]:
    plan = make_plan(SPECS, 2)
    flats = [array_of(each) for each in payloads(plan, model, arrays, dtype)]
    return [each.astype(np.float32) for each in plan.gather(flats, np.dtype(dtype))]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_gradients_of_torch_leave_a_gpu(torch: Any, dtype: Any) -> None:
    from psworker.backends.torch import TorchModel

    module = torch.nn.Module()
    for spec, value in zip(SPECS, VALUES, strict=True):
        module.register_parameter(spec.name, torch.nn.Parameter(torch.tensor(value, device="cuda")))
    model = TorchModel(module, list(module.parameters()))
    assert model.device == "cuda:0"
    for found, value in zip(sent(model, list(module.parameters()), dtype), VALUES, strict=True):
        np.testing.assert_array_equal(found, value.astype(dtype).astype(np.float32))
    model.put([value * 2 for value in VALUES])
    for found, value in zip(model.values(), VALUES, strict=True):
        np.testing.assert_array_equal(found, value * 2)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_gradients_of_jax_leave_a_gpu(jax: Any, dtype: Any) -> None:
    from psworker.backends.jax import JaxModel

    params = {spec.name: jax.numpy.asarray(value) for spec, value in zip(SPECS, VALUES, strict=True)}
    model = JaxModel(params)
    assert not model.device.startswith("cpu")
    for found, value in zip(sent(model, list(params.values()), dtype), VALUES, strict=True):
        np.testing.assert_array_equal(found, value.astype(dtype).astype(np.float32))
    model.put([value * 2 for value in VALUES])
    for found, value in zip(model.values(), VALUES, strict=True):
        np.testing.assert_array_equal(found, value * 2)


def test_a_loop_of_torch_on_a_gpu_is_that_of_a_cpu(torch: Any) -> None:
    import psworker.torch

    def trained(device: str) -> Any:
        torch.manual_seed(0)
        module, data = torch.nn.Linear(8, 4).to(device), torch.tensor(PLAIN, device=device)
        made = torch.optim.Adam(module.parameters(), 0.01)
        with servers() as hosts, psworker.torch.distribute(made, module, hosts) as optimizer:
            for _ in range(5):
                optimizer.zero_grad()
                module(data).square().mean().backward()
                optimizer.step()
        return module.weight.detach().cpu().numpy()

    np.testing.assert_allclose(trained("cuda"), trained("cpu"), rtol=0, atol=1e-4)


def test_a_loop_of_jax_on_a_gpu_is_that_of_a_cpu(jax: Any) -> None:
    optax = pytest.importorskip("optax", reason="optax is not installed (scripts/install jax)")
    import psworker.jax

    step: Callable[..., Any] = jax.jit(jax.grad(lambda w, x: ((x @ w) ** 2).mean()))

    def trained(device: Any) -> Any:
        # A GPU would take a shorter float32 (TF32) for products.
        precise = jax.default_matmul_precision("highest")
        with precise, jax.default_device(device), servers() as hosts:
            first = jax.device_put(np.ones((8, 4), np.float32), device)
            with psworker.jax.distribute(first, optax.adam(0.01), hosts) as job:
                for _ in range(5):
                    job.push(step(job.pull(), PLAIN))
            return np.asarray(job.params)

    gpu, cpu = jax.devices()[0], jax.devices("cpu")[0]
    np.testing.assert_allclose(trained(gpu), trained(cpu), rtol=0, atol=1e-4)
