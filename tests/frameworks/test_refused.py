"""What frameworks can do and workers cannot, each against the real thing, on other backends in a process of its own."""

import io
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from importlib.util import find_spec

import pytest

from pswire.addresses import Address
from tests.frameworks.test_backends import ROOT, environment, require
from tests.keras.processes import PATIENCE
from tests.promises import promise
from tests.sentences import Recorder

pytestmark = [pytest.mark.tensorflow, pytest.mark.cluster, pytest.mark.timeout(600)]

MODEL = """
import psworker.keras, keras
def model(**more):
    made = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, **more)])
    made.compile("sgd", "mse")
    return made
def refused(function, *arguments, **more):
    try:
        function(*arguments, **more)
    except Exception as error:
        print("REFUSED", type(error).__name__, error)
    else:
        print("TAKEN")
"""


def said(script: str, backend: str, **more: str) -> list[str]:
    """What the script was refused, as "TYPE sentence"."""
    if backend == os.environ["KERAS_BACKEND"] and not more:
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(script)
            file.flush()
            with redirect_stdout(io.StringIO()) as out:
                runpy.run_path(file.name)
        return refusals(out.getvalue())
    [process] = started(script, backend, [[]], **more)
    return ended(process)


def started(
    script: str, backend: str, arguments: list[list[str]], **more: str
) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, "-c", script, *each],
            cwd=ROOT,
            env={**environment(backend), **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for each in arguments
    ]


def ended(process: subprocess.Popen[str]) -> list[str]:
    try:
        out, error = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0, error[-2000:]
    return refusals(out)


def refusals(said: str) -> list[str]:
    lines = [line for line in said.splitlines() if line.startswith(("REFUSED ", "TAKEN"))]
    return [line.removeprefix("REFUSED ") for line in lines]


def sentences_of(sentences: Recorder, found: list[str], *kinds: str) -> None:
    assert [each.partition(" ")[0] for each in found] == list(kinds), found
    sentences.check(*(each.partition(" ")[2] for each in found))


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(Address(*free.getsockname()))


@pytest.mark.nightly
def test_processes_that_jax_has_joined(sentences: Recorder) -> None:
    require("jax")
    script = (
        "import sys, jax\njax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))"
        + MODEL
        + """
import numpy, optax, psworker.jax
refused(psworker.keras.distribute, model())
refused(psworker.jax.distribute, {"w": numpy.ones(3, numpy.float32)}, optax.sgd(0.1))
"""
    )
    address = free_address()
    both = started(script, "jax", [[address, "0"], [address, "1"]])
    try:
        found = [ended(process) for process in both]
    finally:
        for process in both:
            process.kill()
            with process:
                pass
    assert found[0] == found[1]
    sentences_of(sentences, found[0], "FitError", "ModelError")


NUMBERS = """
refused(psworker.keras.distribute, model(dtype="float64"))
class Complex(keras.layers.Layer):
    def build(self, shape):
        self.w = self.add_weight(shape=(8, 4), dtype="complex64", initializer="zeros", name="w")
    def call(self, x):
        return keras.ops.real(keras.ops.matmul(keras.ops.cast(x, "complex64"), self.w))
made = keras.Sequential([keras.Input((8,)), Complex()])
made.compile("sgd", "mse")
refused(psworker.keras.distribute, made)
"""
DEVICES = """
import jax, numpy as np, optax, psworker.jax
one, other = jax.devices()
spread = jax.sharding.NamedSharding(jax.make_mesh((2,), ("x",)), jax.sharding.PartitionSpec("x"))
ones = np.ones(4, np.float32)
refused(psworker.jax.distribute, {"w": jax.device_put(ones, spread)}, optax.sgd(0.1))
with psworker.jax.distribute({"w": jax.device_put(ones, other), "v": jax.device_put(ones, one)}, optax.sgd(0.5)) as job:
    job.pull()
    refused(job.push, {"w": jax.device_put(ones, spread), "v": ones})
    job.push({"w": jax.device_put(ones, one), "v": jax.device_put(ones, other)})
    job.pull()
    assert job.params["w"].devices() == {other} and job.params["v"].devices() == {one}
    assert float(job.params["w"].sum() + jax.device_put(job.params["v"], other).sum()) == 4.0
keras.distribution.set_distribution(keras.distribution.DataParallel())
refused(psworker.keras.distribute, model())
"""


@pytest.fixture(scope="module")
def on_jax() -> list[str]:
    """What one process of JAX with two devices and float64 is refused, for its numbers and then for its devices."""
    require("jax")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_ENABLE_X64": "true"}
    return said(MODEL + NUMBERS + DEVICES, "jax", **flags)


@pytest.mark.nightly
def test_several_devices_of_one_process(on_jax: list[str], sentences: Recorder) -> None:
    """An array of one of them may be anywhere."""
    sentences_of(sentences, on_jax[2:], "ModelError", "ModelError", "FitError")


def test_kerass_nnx_mode(sentences: Recorder) -> None:
    require("jax")
    if find_spec("flax") is None:
        pytest.skip("flax is not installed (pip install flax)")
    found = said(MODEL + "refused(psworker.keras.distribute, model())", "jax", KERAS_NNX_ENABLED="true")
    sentences_of(sentences, found, "FitError")


@promise("What a framework can do and servers cannot is refused, never approximated in silence.")
@pytest.mark.parametrize(
    "backend", ["tensorflow", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("jax", "torch"))]
)
def test_numbers_that_servers_do_not_hold_in_fit(
    backend: str, sentences: Recorder, request: pytest.FixtureRequest
) -> None:
    require(backend)
    on_jax = backend == "jax" and request.getfixturevalue("on_jax")[:2]
    sentences_of(sentences, on_jax or said(MODEL + NUMBERS, backend), "ModelError", "ModelError")


def test_models_of_another_framework(sentences: Recorder) -> None:
    for backend in ("jax", "torch"):
        require(backend)
    script = (
        "import torch\n"
        + MODEL
        + """
import optax, psworker.jax, psworker.torch
module = torch.nn.Linear(2, 2)
refused(psworker.torch.distribute, keras.optimizers.SGD(), module)
refused(psworker.torch.distribute, torch.optim.SGD(module.parameters()), model())
refused(psworker.jax.distribute, dict(module.named_parameters()), optax.sgd(0.1))
refused(psworker.jax.distribute, model(), optax.sgd(0.1))
refused(psworker.keras.distribute, module)
"""
    )
    kinds = ("ModelError", "ModelError", "ModelError", "ModelError", "FitError")
    sentences_of(sentences, said(script, "jax"), *kinds)
