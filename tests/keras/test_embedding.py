"""`RemoteEmbedding`: what layers look up, against plain Keras on gradients that are made dense."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import psworker.keras
from pswire.model.initial_rows import initial_rows
from pswire.model.tables import TableSpec, mix, unique
from psworker.backends import ModelError
from psworker.backends.tensorflow.rows import LayerTables
from psworker.keras import RemoteEmbedding
from tests.keras.in_process import in_threads, servers
from tests.promises import promise
from tests.repetitions import usually

pytestmark = [pytest.mark.usefixtures("jobs_end"), pytest.mark.tensorflow, pytest.mark.cluster]

USERS, ITEMS, DIM = 40, 60, 4
DICE = np.random.default_rng(3)
# Ids come several times in a batch, and in both of two columns.
DATA = (
    {"user": DICE.integers(0, USERS, 256), "few": DICE.integers(0, ITEMS, (256, 3))},
    DICE.normal(size=256).astype(np.float32),
)
BATCHES = {"batch_size": 64, "shuffle": False, "verbose": 0}


def model(users, items):
    """Two towers: one a model of its own."""
    keras.utils.set_random_seed(1)
    user, few = keras.Input((), dtype="int64", name="user"), keras.Input((3,), dtype="int64", name="few")
    tower = keras.Sequential([keras.Input((), dtype="int64"), users, keras.layers.Dense(8, "relu")])
    both = keras.layers.Concatenate()([tower(user), keras.layers.Flatten()(items(few))])
    made = keras.Model([user, few], keras.layers.Dense(1)(both))
    return with_weights(made)


def with_weights(made):
    """Dense layers begin the same, whatever was drawn before."""
    for kernel in made.trainable_variables:
        if kernel.name == "kernel":
            kernel.assign(np.linspace(-0.5, 0.5, kernel.shape[0] * kernel.shape[1]).reshape(kernel.shape))
    return made


def remote():
    return model(RemoteEmbedding("users", DIM), RemoteEmbedding("items", DIM))


def plain():
    users, items = (
        keras.layers.Embedding(n, DIM, name=name) for n, name in ((USERS, "users"), (ITEMS, "items"))
    )
    made = model(users, items)
    for layer in (users, items):
        layer.embeddings.assign(initial_rows(TableSpec(layer.name, DIM), mix(np.arange(layer.input_dim))))
    return made, users, items


def densified(optimizer):
    """The optimizer on dense gradients: on slices Keras' own Adagrad squares the gradients of a row one by one."""

    class Dense(type(optimizer)):
        def apply(self, grads, trainable_variables=None):
            return super().apply([tf.convert_to_tensor(each) for each in grads], trainable_variables)

    return Dense.from_config(optimizer.get_config())


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "clipped": lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.3),
    "each clipped": lambda: keras.optimizers.SGD(0.5, clipnorm=0.1),
}


@promise("Sync with several workers is one Keras process on the combined batch.")
@pytest.mark.parametrize("optimizer", usually(["adagrad"], soak=list(OPTIMIZERS)))
def test_a_fit_with_remote_tables_is_that_of_plain_keras(optimizer):
    alone, users, items = plain()
    alone.compile(densified(OPTIMIZERS[optimizer]()), "mse", metrics=["mae"], run_eagerly=True)
    expected = alone.fit(*DATA, epochs=2, **BATCHES).history
    trained = remote()
    trained.compile(OPTIMIZERS[optimizer](), "mse", metrics=["mae"])
    with psworker.keras.distribute(trained) as job:
        found = trained.fit(*DATA, epochs=2, **BATCHES).history
        rows = {
            name: job.session.lookup(name, np.arange(n))[0]
            for name, n in (("users", USERS), ("items", ITEMS))
        }
        evaluated = trained.evaluate(*DATA, verbose=0)
        exported = job.export()
    print(np.abs(rows["users"] - users.embeddings.numpy()).max(), found, expected)
    np.testing.assert_allclose(rows["users"], users.embeddings.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rows["items"], items.embeddings.numpy(), rtol=1e-5, atol=1e-6)
    for one, other in zip(
        trained.trainable_variables,
        [v for v in alone.trainable_variables if v.name != "embeddings"],
        strict=True,
    ):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
    for measured in (evaluated, exported.evaluate(*DATA, verbose=0)):
        np.testing.assert_allclose(measured, alone.evaluate(*DATA, verbose=0), rtol=1e-5)


def test_two_workers_on_three_servers_train_the_rows_of_one():
    alone, users, _ = plain()
    alone.compile(densified(keras.optimizers.SGD(0.1)), "mse", run_eagerly=True)
    with servers(3, workers=2) as hosts:

        def work(index):
            trained = remote()
            trained.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
            half = ({name: ids[index::2] for name, ids in DATA[0].items()}, DATA[1][index::2])
            with psworker.keras.distribute(trained, hosts, task_index=index, name=f"w{index}") as job:
                trained.fit(*half, **{**BATCHES, "batch_size": 32})
                return job.session.lookup("users", np.arange(USERS))

        found = in_threads(work, 2)
    alone.fit(*DATA, **BATCHES)
    assert [version for _, version in found] == [4, 4]
    for rows, _ in found:
        np.testing.assert_allclose(rows, users.embeddings.numpy(), rtol=1e-4, atol=1e-6)


# Which ids a step looks up


def found_by(layers, objective, batch):
    return LayerTables(layers).finder(objective)(batch)()


def of_model(made):
    """An objective that calls a model, and no more."""
    return lambda batch: (None, tf.reduce_sum(made(batch)), [])


def test_ids_are_found_behind_layers_that_make_them_and_in_models_of_models():
    words = keras.Input((2,), dtype="string")
    known = keras.layers.StringLookup(vocabulary=["a", "b", "c"])(words)
    hashed = keras.layers.Hashing(10)(words)
    shared, other = RemoteEmbedding("words", 2), RemoteEmbedding("more", 3, table="hashes")
    inner = keras.Sequential([keras.Input((2,), dtype="int64"), other, keras.layers.Dropout(0.5)])
    made = keras.Model(words, keras.layers.Concatenate()([shared(known), inner(hashed), shared(hashed)]))
    batch = tf.constant([["a", "c"], ["x", "a"]])
    looked_up = found_by([shared, other], of_model(made), batch)
    first = keras.layers.StringLookup(vocabulary=["a", "b", "c"])(batch).numpy()
    second = keras.layers.Hashing(10)(batch).numpy()
    keys, inverse = unique(np.concatenate([first.ravel(), second.ravel()]))
    assert np.array_equal(looked_up.keys["words"], keys)
    assert np.array_equal(looked_up.places[0], inverse)
    assert np.array_equal(looked_up.keys["hashes"], unique(second)[0])


def test_a_model_of_ones_own_needs_no_list_of_its_ids():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.rows, self.last = RemoteEmbedding("own", 2), keras.layers.Dense(1)

        def call(self, inputs):
            return self.last(self.rows(inputs["ids"] + 7)) if isinstance(inputs, dict) else None

    made = Own()
    made.compile("sgd", "mse", run_eagerly=True)
    ids = np.array([1, 1, 5, -3], np.int64)
    with psworker.keras.distribute(made) as job:
        made.fit({"ids": ids}, np.ones(4), epochs=2, verbose=0)
        begun = initial_rows(TableSpec("own", 2), mix(ids + 7))
        rows, _ = job.session.lookup("own", ids + 7)
        untouched, _ = job.session.lookup("own", ids)
    assert (rows != begun).all()
    assert np.array_equal(untouched, initial_rows(TableSpec("own", 2), mix(ids)))


def looping(layer):
    def objective(batch):
        tf.while_loop(lambda k: k < 2, lambda k: (k + tf.size(layer(batch)) * 0 + 1,), [0])

    return objective


def by_rows(layer):
    return lambda batch: layer(tf.cast(layer(batch)[:, 0], tf.int64))


def at_random(layer):
    return lambda batch: layer(batch + tf.random.uniform([4], 0, 5, tf.int64))


def by_weights(layer):
    weights = tf.Variable(tf.ones(4))
    return lambda batch: layer(batch + tf.cast(weights, tf.int64))


@pytest.mark.parametrize("objective", [looping, by_rows, at_random, by_weights])
def test_ids_that_nobody_knows_before_the_step_are_refused(objective, sentences):
    layer = RemoteEmbedding("late", 2)
    with pytest.raises(ModelError) as refused:
        found_by([layer], objective(layer), np.arange(4))
    sentences.check(refused)


# What a layer does with rows


def answering(layer):
    """Rows that are their ids, as float32 [*, dim]."""

    def reader(name, ids):
        assert name == layer.remote.table.name
        return np.repeat(np.asarray(ids, np.float32)[..., None], layer.remote.table.dim, -1), 3

    layer.remote.reader = reader
    return layer


IDS = np.array([[3, 9, 0], [0, 0, 0], [5, 5, 7]])


def test_masked_ids_are_zeros_and_keras_sees_the_mask():
    layer = answering(RemoteEmbedding("t", 2, mask_id=9))
    found = layer(IDS)
    assert np.array_equal(found[..., 0], np.where(IDS == 9, 0, IDS))
    assert np.array_equal(layer.compute_mask(IDS), IDS != 9)
    ragged = tf.ragged.constant([[3, 9], [], [5]], dtype=tf.int64)
    assert layer(ragged)[..., 0].to_list() == [[3, 0], [], [5]]


def test_a_frozen_table_is_read_and_not_trained():
    frozen = RemoteEmbedding("frozen", DIM)
    frozen.trainable = False
    made = model(frozen, RemoteEmbedding("items", DIM))
    made.compile("sgd", "mse", run_eagerly=True)
    with psworker.keras.distribute(made) as job:
        made.fit(*DATA, **BATCHES)
        rows, _ = job.session.lookup("frozen", np.arange(USERS))
        moved, _ = job.session.lookup("items", np.arange(ITEMS))
    assert np.array_equal(rows, initial_rows(TableSpec("frozen", DIM), mix(np.arange(USERS))))
    assert not np.array_equal(moved, initial_rows(TableSpec("items", DIM), mix(np.arange(ITEMS))))


def test_the_step_is_traced_once_however_many_rows_a_batch_has():
    traced = []

    class Counted(keras.layers.Layer):
        def call(self, inputs):
            traced.append(inputs.shape)
            return inputs

    made = keras.Sequential(
        [keras.Input((), dtype="int64"), RemoteEmbedding("t", 2), Counted(), keras.layers.Dense(1)]
    )
    made.compile("sgd", "mse")
    rising = np.concatenate([np.arange(8) % (k + 1) for k in range(8)])
    with psworker.keras.distribute(made):
        made.fit(rising[:8], np.ones(8), batch_size=8, verbose=0)
        before = len(traced)
        made.fit(rising, np.ones(64), batch_size=8, shuffle=False, verbose=0)
    assert len(traced) == before


# A layer as Keras keeps it


@pytest.mark.parametrize(
    "given",
    [
        {"initializer": keras.initializers.RandomUniform(-1.0, 0.5, seed=4)},
        {"initializer": keras.initializers.RandomNormal(stddev=0.2), "mask_id": -1, "table": "shared"},
        {"initializer": "zeros", "optimizer": {"name": "rowwise-adagrad", "learning_rate": 0.5}, "seed": 3},
        {"optimizer": keras.optimizers.Adagrad(0.5)},
        {"admit": 0.5, "evict": {"age": 100, "every": 7}},
    ],
)
def test_a_layer_is_made_again_from_its_configuration(given, tmp_path):
    layer = RemoteEmbedding("ids", 6, **given)
    again = RemoteEmbedding.from_config(layer.get_config())
    made = keras.Sequential([keras.Input((2,), dtype="int64"), layer])
    made.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras").layers[-1]
    for each in (again, loaded):
        assert each.get_config() == layer.get_config()
        assert each.remote.table == layer.remote.table
        assert not each.weights


def other_initializer():
    RemoteEmbedding("t", 2, initializer=keras.initializers.GlorotUniform())


def clipping_optimizer():
    RemoteEmbedding("t", 2, optimizer=keras.optimizers.SGD(clipnorm=1.0))


def no_reader():
    RemoteEmbedding("t", 2)(np.arange(3))


def sparse_ids():
    RemoteEmbedding("t", 2)(tf.sparse.from_dense(np.eye(2, dtype=np.int64)))


def two_shapes_of_one_table():
    LayerTables([RemoteEmbedding("t", 2), RemoteEmbedding("other", 3, table="t")])


def compiled(callbacks=(), **how):
    made = keras.Sequential([keras.Input((), dtype="int64"), RemoteEmbedding("t", 2), keras.layers.Dense(1)])
    made.compile(**{"optimizer": "sgd", "loss": "mse", **how})
    with psworker.keras.distribute(made):
        made.fit(np.arange(4), np.ones(4), verbose=0, callbacks=list(callbacks))


def in_a_loop():
    psworker.keras.RemoteOptimizer(remote(), "sgd")


def early_export():
    made = remote()
    made.compile("sgd", "mse")
    with psworker.keras.distribute(made) as job:
        job.export()


def averaging():
    compiled(optimizer=keras.optimizers.SGD(use_ema=True))


def bringing_back():
    compiled([keras.callbacks.EarlyStopping("loss", restore_best_weights=True)])


def accumulating():
    compiled(optimizer=keras.optimizers.SGD(gradient_accumulation_steps=2))


def partly_frozen():
    frozen = RemoteEmbedding("t", 2)
    frozen.trainable = False
    LayerTables([frozen, RemoteEmbedding("other", 2, table="t")])


@pytest.mark.parametrize(
    "refused",
    [
        *(other_initializer, clipping_optimizer, no_reader, sparse_ids),
        *(two_shapes_of_one_table, accumulating, partly_frozen, averaging),
        *(in_a_loop, early_export, bringing_back),
    ],
)
def test_what_cannot_be_is_refused(refused, sentences):
    with pytest.raises(
        (ValueError, ModelError, psworker.keras.FitError, psworker.keras.RemoteError)
    ) as error:
        refused()
    sentences.check(error)


@promise("Examples: in two towers a film of no kind counts as any other.")
def test_two_towers_skip_no_batch(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    from films_data import films
    from two_tower import TwoTower

    x, liked = films("generated", "heldout")
    assert not x["kinds"][:512].any(axis=1).all()
    made = TwoTower().model()
    made.compile("adagrad", TwoTower.loss)
    with psworker.keras.distribute(made) as job:
        made.fit({name: ids[:512] for name, ids in x.items()}, liked[:512], batch_size=128, verbose=0)
        assert job.fates == {"applied": 4}
        assert np.isfinite(made.predict({name: ids[:512] for name, ids in x.items()}, verbose=0)).all()


# Exported


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(
    "how",
    [{}, {"mask_id": 0}],
)
def test_an_exported_model_needs_no_servers(how, tmp_path):
    layer = RemoteEmbedding("t", 3, **how)
    given = keras.Input((4,), dtype="int64")
    kept = keras.ops.sum(keras.ops.cast(given != 0, "float32"), axis=1, keepdims=True)
    mean = keras.ops.sum(layer(given), axis=1) / keras.ops.maximum(kept, 1)
    inner = keras.Model(given, mean)
    outer = keras.Input((4,), dtype="int64")
    made = keras.Model(outer, keras.layers.Dense(2)(inner(outer)))
    ids, dice = np.array([-5, 7, 2**62, 1, 0]), np.random.default_rng(1)
    rows = dice.normal(size=(5, 3)).astype(np.float32)

    def reader(name, wanted):
        known = dict(zip(ids.tolist(), rows, strict=True))
        return np.array([known.get(each, np.zeros(3)) for each in np.ravel(wanted).tolist()], np.float32), 1

    psworker.keras.read_rows(made, reader)
    asked = np.array([[-5, 7, 0, 9], [2**62, 1, 1, 7], [0, 0, 0, 1], [0, 0, 0, 0]])
    expected = made.predict(asked, verbose=0)
    psworker.keras.export(made, lambda table: (ids, rows)).save(tmp_path / "plain.keras")
    found = keras.models.load_model(tmp_path / "plain.keras")
    assert "RemoteEmbedding" not in found.to_json()
    np.testing.assert_allclose(found.predict(asked, verbose=0), expected, rtol=1e-6, atol=1e-7)
