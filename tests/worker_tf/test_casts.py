"""Casts in the graph give the bits of the casts on the host; a step answers in the dtype that its weights came in."""

from functools import partial

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from pswire.transport.codecs import ElementDecoder
from pswire.transport.wire import codec_named
from psworker.backends.tensorflow.flats import payload_of, rounded, tensor_of, widened
from psworker.data.payloads import array_of
from tests.probes import traces_of
from tests.promises import promise

pytestmark = pytest.mark.tensorflow

NARROW = ["bfloat16", "float16"]
RANDOM = np.random.default_rng(5)


def numbers():
    """Of every size, both signs; halfway between neighbours of either 16-bit type; subnormal, also in float32."""
    bits = RANDOM.integers(0, 2**32, 200_000, dtype=np.uint32)
    ties = (np.arange(0, 2**16, dtype=np.uint32) << 16) | 0x8000
    halves = np.arange(0x7BFF, dtype=np.uint16).view(np.float16).astype(np.float64)
    between = ((halves[:-1] + halves[1:]) / 2).astype(np.float32)
    subnormal = RANDOM.integers(0, 2**23, 20_000, dtype=np.uint32)
    found = np.concatenate([bits, ties, subnormal]).view(np.float32)
    return np.concatenate([found[np.isfinite(found)], between, -between])


def array_dtype(name):
    return codec_named(name).array_dtype


def on_host(values, dtype):
    with np.errstate(over="ignore"):
        return codec_named(dtype).encode(values).view(array_dtype(dtype))


@promise("Rounding in the graph gives the bits of rounding on the host.")
@pytest.mark.parametrize("dtype", ["float32", *NARROW])
def test_rounding_in_the_graph_gives_the_bits_of_rounding_on_the_host(dtype):
    values = numbers()
    kind = tensor_of(np.zeros(1, array_dtype(dtype))).dtype
    tensor = tf.function(partial(rounded, dtype=kind))(tf.constant(values))
    array = array_of(payload_of([tensor]))
    assert array.dtype == array_dtype(dtype)
    expected = on_host(values, dtype)
    assert array.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", NARROW)
def test_every_number_is_widened_in_the_graph_as_on_the_host(dtype):
    every = np.arange(2**16, dtype=np.uint16).view(array_dtype(dtype))
    every = every[np.isfinite(every.astype(np.float32))]
    expected = np.zeros(every.size, np.float32)
    ElementDecoder(codec_named(dtype), expected).feed(codec_named(dtype).encode(every).data)
    found = tf.function(widened)(tensor_of(every)).numpy()
    assert found.tobytes() == expected.tobytes()


def cnn():
    layers = keras.layers
    body = [layers.Conv2D(4, 3), layers.BatchNormalization(momentum=0.5), layers.ReLU(), layers.Flatten()]
    return keras.Sequential([keras.Input((8, 8, 1)), *body, layers.Dense(3)])


@pytest.mark.parametrize(("dtype", "servers"), [("bfloat16", 1), ("float16", 3)])
def test_a_narrow_step_is_the_wide_step_rounded(trained, dtype, servers):
    """Gradient, state deltas, loss and norm; the norm is that of the gradient before it was rounded."""
    batch = RANDOM.normal(size=(12, 8, 8, 1)).astype("f"), RANDOM.normal(size=(12, 3)).astype("f")
    trainer, _, weights = trained(cnn, servers=servers)
    narrow = [on_host(flat, dtype) for flat in weights]
    wide = trainer.step([flat.astype(np.float32) for flat in narrow], batch)
    found = trainer.step(narrow, batch)
    assert [flat.tobytes() for flat in found.flats] == [on_host(f, dtype).tobytes() for f in wide.flats]
    assert (found.loss, found.norm) == (wide.loss, wide.norm)


def test_each_server_gets_the_dtype_that_it_gave(trained):
    """Shared memory is float32, while another server's payloads are narrow."""
    batch = RANDOM.normal(size=(12, 8, 8, 1)).astype("f"), RANDOM.normal(size=(12, 3)).astype("f")
    trainer, _, (one, two) = trained(cnn, servers=2)
    result = trainer.step([one, two.astype(ml_dtypes.bfloat16)], batch)
    assert [flat.dtype for flat in result.flats] == [np.float32, ml_dtypes.bfloat16]


def test_the_first_step_of_the_announced_dtypes_is_traced_beforehand(trained):
    batch = RANDOM.normal(size=(12, 8, 8, 1)).astype("f"), RANDOM.normal(size=(12, 3)).astype("f")
    trainer, plan, weights = trained(cnn, batches=[batch])
    trainer.attach(plan, ("bfloat16", "float32"))
    (_, first), *_ = trainer.batches(0, 1, 0, 1)
    traces = traces_of(trainer)
    trainer.step([flat.astype(ml_dtypes.bfloat16) for flat in weights], first)
    trainer.step(weights, first)
    assert traces_of(trainer) == traces == 2


def test_a_result_in_the_processors_memory_is_not_copied():
    tensor = tf.constant([1.0, 2.0])
    payload = payload_of([tensor])
    assert array_of(payload).ctypes.data == array_of(payload).ctypes.data


@pytest.mark.parametrize("shift", [0, 1, 3])
@pytest.mark.parametrize("elements", [10, 600_000])
def test_a_tensor_keeps_its_numbers_when_the_payload_is_used_again(shift: int, elements: int) -> None:
    """However the payload lies in memory, and where it may only be read."""
    payload = np.arange(elements + 4, dtype=np.float32)[shift : shift + elements]
    shown = payload.view()
    shown.flags.writeable = False
    expected, found = payload.copy(), tensor_of(shown)
    payload[:] = -1
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("dtype", ["float32", *NARROW])
def test_a_result_in_parts_is_what_they_are_one_behind_the_other(dtype):
    values = numbers()[:1000]
    kind = tensor_of(np.zeros(1, array_dtype(dtype))).dtype
    whole = tf.function(partial(rounded, dtype=kind))(tf.constant(values))
    payload = payload_of(tf.split(whole, [300, 1, 699]))
    assert payload.shape == (1000,) and payload.dtype == array_dtype(dtype)
    joined = array_of(payload_of([whole]))
    assert array_of(payload).tobytes() == joined.tobytes() == on_host(values, dtype).tobytes()
