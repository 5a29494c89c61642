"""Which variables travel, under which names."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from psworker.backends import ModelError
from psworker.backends.keras.step import backend
from psworker.backends.keras.variables import KerasModel
from psworker.backends.tensorflow.variables import collect

pytestmark = pytest.mark.tensorflow

layers = keras.layers


def names(model):
    return [(spec.name, spec.kind) for spec in collect(model).specs]


def test_keras_trainable_first_then_state_and_seeds_stay():
    keras.utils.clear_session()
    body = [layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(2)]
    found = collect(keras.Sequential([keras.Input((3,)), *body]))
    assert [(spec.name, spec.kind) for spec in found.specs] == [
        ("batch_normalization/gamma", "trainable"),
        ("batch_normalization/beta", "trainable"),
        ("dense/kernel", "trainable"),
        ("dense/bias", "trainable"),
        ("batch_normalization/moving_mean", "state"),
        ("batch_normalization/moving_variance", "state"),
    ]
    assert len(found.seeds) == 1


def test_frozen_layers_travel_as_state():
    frozen = layers.Dense(2, name="frozen")
    model = keras.Sequential([keras.Input((3,)), frozen, layers.Dense(1, name="free")])
    frozen.trainable = False
    assert [kind for _, kind in names(model)] == ["trainable", "trainable", "state", "state"]


def test_module_nest_and_object():
    class Layer(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable([1.0])
            self.steps = tf.Variable(0, dtype=tf.int64, trainable=False)

    class Net(tf.Module):
        def __init__(self):
            super().__init__()
            self.parts = [Layer(), Layer()]
            self.mean = tf.Variable(0.0, trainable=False)

    assert names(Net()) == [("parts/0/w", "trainable"), ("parts/1/w", "trainable"), ("mean", "state")]
    shared = tf.Variable(1.0)
    assert names([shared, {"again": shared, "b": tf.Variable(2.0)}]) == [
        ("0", "trainable"),
        ("1/b", "trainable"),
    ]
    assert names(SimpleNamespace(w=tf.Variable(1.0), data=np.zeros(3), size=3)) == [("w", "trainable")]
    assert names({"head": layers.Dense, "w": tf.Variable(1.0)}) == [("w", "trainable")]


def test_a_keras_layer_inside_an_object():
    dense = layers.Dense(1, name="inner")
    dense.build((None, 2))
    assert names(SimpleNamespace(body=dense)) == [
        ("body/inner/kernel", "trainable"),
        ("body/inner/bias", "trainable"),
    ]


def test_an_object_that_holds_itself():
    node = SimpleNamespace(w=tf.Variable(1.0))
    node.me = node
    assert names(node) == [("w", "trainable")]


def test_equal_names_are_told_apart_in_order():
    def part(name):
        dense = layers.Dense(1, use_bias=False, name=name)
        dense.build((None, 1))
        return dense

    class Parts(layers.Layer):
        def __init__(self, *parts):
            super().__init__()
            self.parts, self.built = list(parts), True

    found = names(Parts(part("same"), part("same"), part("same#1"), part("same")))
    assert [name for name, _ in found] == [
        "parts/same/kernel",
        "parts/same/kernel#1",
        "parts/same#1/kernel",
        "parts/same/kernel#2",
    ]


def test_values_round_trip_in_the_variables_own_dtype():
    found = collect(
        [tf.Variable(np.linspace(0, 1, 7), dtype=tf.float16), tf.Variable(1 / 3, dtype=tf.float64)]
    )
    assert [spec.dtype for spec in found.specs] == ["float16", "float64"]
    model = KerasModel(found, backend().framework)
    before = found.values()
    model.put([value + 1 for value in before])
    np.testing.assert_allclose(found.values()[0], before[0] + 1, atol=1e-3)
    assert all(value.dtype == np.float32 for value in found.values())


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({}, "dict has no trainable floating variable"),
        ([tf.Variable(1.0, trainable=False)], "has no trainable"),
        ([tf.Variable(1, dtype=tf.int32)], "has no trainable"),
        ([tf.Variable(1j)], "complex"),
        ([tf.Variable(np.zeros((2, 2)), shape=[None, 2])], "every size must be known"),
        (keras.Sequential([layers.Dense(3)]), "is not built yet.*keras.Input"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_words(model, words):
    with pytest.raises(ModelError, match=words):
        collect(model)
