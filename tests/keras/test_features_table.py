"""Small models and scripts as people write them for Keras, each in three places: alone, with a server of its own; with
three workers; on two servers. Each case says what each of these has to come to.

Under KERAS_BACKEND=jax or torch these tests run on that backend; `test_backends.py` does so.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.keras.in_process import in_threads, servers
from tests.probes import pretend_strategy
from tests.repetitions import SOAK, usually

pytestmark = [
    pytest.mark.usefixtures("jobs_end"),
    pytest.mark.tensorflow,
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
]

pk = pytest.importorskip("psworker.keras")
keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from tests.keras.steps import OwnStep, teacher  # noqa: E402
from tests.keras.test_features import Peak, assert_same_state, several_outputs  # noqa: E402
from tests.keras.test_phases import Unbuilt, thousand  # noqa: E402

WORKERS, BATCH, EPOCHS = 3, 8, 2
X = np.random.default_rng(0).normal(size=(72, 8)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 4, 72)
IDS = np.random.default_rng(2).integers(0, 9, (72, 4))

# What a cell comes to: weights, logs and the optimizer's state, beside plain `fit` on the same data, which of three
# workers is the combined batches.
BIT, NEAR = "to the bit", "within 1e-5"
LOOSE = "trains; all workers end with the same weights"
OWN_PEAK = "within 1e-5; `peak` is each worker's own"
OWN_LOSS = "within 1e-5; `loss` is each worker's own"
SERVERS_RUN = 'refused: "servers run already"'
KERAS_REFUSES = 'refused: "only supported with the TensorFlow"'
EMPTY = "Keras itself takes no empty data"
NONE = "-"
BACKEND = keras.backend.backend()
PLACES = ("alone", "three workers", "two servers")[: 3 if BACKEND == "tensorflow" else 2]


@dataclass(frozen=True)
class Data:
    """What one script gives `fit`; `part`: of how many workers it is which."""

    x: Any
    y: Any
    batch: int
    part: tuple[int, int]
    folder: Path

    def cut(self, values: Any) -> Any:
        index, count = self.part
        return values[index::count]


Script = Callable[[Any, Data], Any]


def fit(**more: Any) -> Script:
    """A call of `fit`. What is callable is made anew for each, of its data."""

    def script(model: Any, data: Data) -> Any:
        told = {name: value(data) if callable(value) else value for name, value in more.items()}
        told = {"x": data.x, "y": data.y, "batch_size": data.batch, "epochs": EPOCHS} | told
        return model.fit(**{"shuffle": False, "verbose": 0} | told).history

    return script


def sequential(optimizer: Any = "adam", *layers: Any, **more: Any) -> Any:
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(4)])
    return compiled(model, optimizer, **more)


def compiled(model: Any, optimizer: Any = "adam", **more: Any) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, **{"loss": loss, "metrics": ["accuracy"], **more})
    return model


@dataclass(frozen=True)
class Case:
    make: Callable[[], Any]
    script: Script = field(default_factory=fit)
    cells: tuple[str, str, str] = (BIT, NEAR, BIT)
    # On other backends alone and with three workers, where that is not as near as on TensorFlow, or within 1e-5.
    jax: tuple[str, str] | None = None
    torch: tuple[str, str] | None = None
    # Arguments of `distribute`.
    told: dict[str, Any] = field(default_factory=dict)
    # The data of a worker; by default its third of all.
    data: Callable[[Data], tuple[Any, Any]] = lambda d: (d.cut(X), d.cut(Y))

    def on(self, backend: str) -> tuple[str, ...]:
        """What each place comes to on a backend."""
        if backend == "tensorflow":
            return self.cells
        own: tuple[str, str] | None = getattr(self, backend)
        return own or tuple(NEAR if cell == BIT else cell for cell in self.cells[:2])


def embedding(optimizer: Any) -> Any:
    layers = [keras.layers.Embedding(9, 3), keras.layers.Flatten(), keras.layers.Dense(4)]
    return compiled(keras.Sequential([keras.Input((4,), dtype="int32"), *layers]), optimizer)


def recurrent() -> Any:
    layers = [keras.layers.Reshape((4, 2)), keras.layers.SimpleRNN(3), keras.layers.Dense(4)]
    return compiled(keras.Sequential([keras.Input((8,)), *layers]))


def half() -> Any:
    dense = keras.layers.Dense(4, dtype=keras.DTypePolicy("mixed_bfloat16"))
    return compiled(keras.Sequential([keras.Input((8,)), dense]))


def two_optimizers() -> Any:
    model = sequential()
    model.other = keras.optimizers.SGD()
    return model


def of_a_strategy() -> Any:
    model = sequential()
    pretend_strategy(model, tf.distribute.OneDeviceStrategy("/cpu:0"))
    return model


def twice(model: Any, data: Data) -> Any:
    return [fit()(model, data), fit()(model, data)]


def other_loss(model: Any, data: Data) -> Any:
    first = fit()(model, data)
    compiled(model, model.optimizer, loss=thousand)
    return [first, fit()(model, data)]


def checkpoint(data: Data) -> list[Any]:
    return [keras.callbacks.ModelCheckpoint(data.folder / "epoch-{epoch}.keras")]


def goes_on(model: Any, data: Data) -> Any:
    """A file of the first epoch, trained in plain Keras."""
    found = [fit(callbacks=checkpoint)(model, data)]
    if data.part[0] == 0:
        loaded = keras.models.load_model(data.folder / "epoch-1.keras")
        loaded.run_eagerly = True
        loaded.fit(X, Y, batch_size=24, shuffle=False, verbose=0)
        np.testing.assert_allclose(
            loaded.evaluate(X, Y, verbose=0), model.evaluate(X, Y, verbose=0), atol=1e-5
        )
    return found


def batches(data: Data) -> Any:
    return tf.data.Dataset.from_tensor_slices((data.x, data.y)).batch(data.batch)


def callbacks(*make: Callable[[], Any]) -> Callable[[Data], list[Any]]:
    return lambda data: [each() for each in make]


EARLY = functools.partial(keras.callbacks.EarlyStopping, "loss", patience=0, min_delta=9.0)
PLATEAU = functools.partial(keras.callbacks.ReduceLROnPlateau, "loss", patience=1, min_delta=9.0, factor=0.5)
WARM = functools.partial(keras.callbacks.LearningRateScheduler, lambda epoch: 0.05 * epoch)
SGD, ADAM = keras.optimizers.SGD, keras.optimizers.Adam
DECAY = keras.optimizers.schedules.ExponentialDecay
NORM, DROP = keras.layers.BatchNormalization, keras.layers.Dropout
ROUNDED, NOT_FIRST, APART = (NEAR, NEAR, NEAR), (BIT, LOOSE, BIT), (NEAR, LOOSE, NEAR)

CASES: dict[str, Case] = {
    "`Sequential`": Case(sequential),
    "functional, several outputs, `loss_weights`": Case(
        several_outputs, data=lambda d: (d.cut(X), {"kind": d.cut(Y), "size": d.cut(X)[:, :1]})
    ),
    "subclassed, no variables before its first batch": Case(lambda: compiled(Unbuilt())),
    "a `train_step` of your own": Case(lambda: compiled(OwnStep(), "sgd", metrics=None), fit(epochs=1)),
    "`BatchNormalization`": Case(lambda: sequential("adam", NORM()), cells=NOT_FIRST),
    "`BatchNormalization(synchronized=True)`": Case(
        lambda: sequential("adam", NORM(synchronized=True)),
        cells=(BIT, 'refused: "expected synchronized=False"', 'refused: "expected synchronized=False"'),
        jax=(KERAS_REFUSES,) * 2,
        torch=(KERAS_REFUSES,) * 2,
    ),
    "`Dropout`": Case(lambda: sequential("adam", DROP(0.5, seed=3)), cells=NOT_FIRST),
    "`Embedding` under `SGD`": Case(
        lambda: embedding(SGD(0.1)), data=lambda d: (d.cut(IDS), d.cut(Y)), cells=ROUNDED
    ),
    "`Embedding` under `Adam`, ids repeated in a batch": Case(
        lambda: embedding("adam"), data=lambda d: (d.cut(IDS), d.cut(Y)), cells=(LOOSE, LOOSE, LOOSE)
    ),
    "`SimpleRNN`": Case(recurrent),
    "`mixed_bfloat16`": Case(half, cells=NOT_FIRST),
    "`EarlyStopping`": Case(sequential, fit(epochs=4, callbacks=callbacks(EARLY))),
    "`ModelCheckpoint`; plain Keras goes on from its file": Case(sequential, goes_on),
    "`ReduceLROnPlateau`": Case(lambda: sequential(SGD(0.1)), fit(epochs=3, callbacks=callbacks(PLATEAU))),
    "`LearningRateScheduler` that begins at 0": Case(
        lambda: sequential(SGD(0.1)), fit(epochs=3, callbacks=callbacks(WARM)), cells=ROUNDED
    ),
    "`ExponentialDecay`, `AdamW`": Case(
        lambda: sequential(keras.optimizers.AdamW(DECAY(0.1, 3, 0.5))), cells=ROUNDED
    ),
    "`use_ema`": Case(lambda: sequential(SGD(0.1, use_ema=True, ema_momentum=0.9))),
    "`gradient_accumulation_steps`": Case(lambda: sequential(ADAM(0.01, gradient_accumulation_steps=3))),
    "`gradient_accumulation_steps` with `BatchNormalization`": Case(
        lambda: sequential(SGD(0.1, gradient_accumulation_steps=3), NORM()), cells=APART
    ),
    "`global_clipnorm`": Case(lambda: sequential(SGD(0.1, global_clipnorm=0.05)), cells=ROUNDED),
    "`class_weight`": Case(sequential, fit(class_weight={0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0})),
    "`sample_weight`": Case(sequential, fit(sample_weight=lambda d: np.abs(d.x[:, 0]))),
    "`validation_data`": Case(sequential, fit(validation_data=(X, Y))),
    "`tf.data.Dataset`": Case(sequential, fit(x=batches, y=None, batch_size=None)),
    "`steps_per_execution`": Case(
        lambda: sequential(steps_per_execution=3), torch=('refused: "expected 1"',) * 2
    ),
    # Of three workers the first has a batch more, of one sample.
    "unequal numbers of samples": Case(sequential, data=lambda d: (d.cut(X[:49]), d.cut(Y[:49]))),
    "the last of three workers has no samples": Case(
        sequential,
        data=lambda d: (X[:0], Y[:0]) if d.part == (2, 3) else (d.cut(X), d.cut(Y)),
        cells=NOT_FIRST,
        jax=(NEAR, EMPTY),
        torch=(NEAR, EMPTY),
    ),
    '`sharding="auto"`, the same data for all': Case(
        sequential, told={"sharding": "auto"}, data=lambda d: (X, Y)
    ),
    "a metric of your own that is a maximum": Case(
        lambda: sequential(metrics=[Peak()]), cells=(BIT, OWN_PEAK, BIT)
    ),
    "`fit` twice": Case(sequential, twice),
    "compiled again with the same optimizer and another loss": Case(sequential, other_loss),
    "a mean teacher at the beginning of `train_step`": Case(lambda: teacher(), cells=(BIT, OWN_LOSS, BIT)),
    "two optimizers in a model": Case(two_optimizers, cells=('refused: "RemoteOptimizer"',) * 3),
    "a model of a `tf.distribute` strategy": Case(
        of_a_strategy, cells=('refused: "OneDeviceStrategy"',) * 3, jax=(NONE, NONE), torch=(NONE, NONE)
    ),
    '`distribute(model, policy="async")`': Case(
        sequential, told={"policy": "async"}, cells=(BIT, SERVERS_RUN, SERVERS_RUN)
    ),
    "`distribute(model, policy=)` of a name that no policy has": Case(
        sequential, told={"policy": "snyc"}, cells=('refused: "snyc"', SERVERS_RUN, SERVERS_RUN)
    ),
}


def made(case: Case, place: str) -> Any:
    keras.utils.clear_session()
    keras.utils.set_random_seed(5)
    model = case.make()
    # TensorFlow would compile for most of a cell's time; test_fit.py has what is compiled, to the bit.
    model.run_eagerly = BACKEND == "tensorflow" and (place != "alone" or not SOAK)
    return model


def given(case: Case, folder: Path, index: int = 0, count: int = 1) -> Data:
    empty = Data(None, None, BATCH * WORKERS // count, (index, count), folder)
    x, y = case.data(empty)
    return Data(x, y, empty.batch, empty.part, folder)


def plain(name: str, place: str, folder: Path) -> tuple[Any, Any]:
    """Its model and what its script returned, without servers."""
    case = CASES[name]
    model = made(case, place)
    return model, case.script(model, given(case, folder))


@pytest.fixture(scope="module")
def plain_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plain")


def run(case: Case, place: str, folder: Path) -> tuple[list[Any], list[Any]]:
    """Of each worker its model, and what its script returned."""
    if place == "alone":
        model = made(case, place)
        with pk.distribute(model, **case.told):
            return [model], [case.script(model, given(case, folder))]
    count = WORKERS if place == "three workers" else 1
    models = [made(case, place) for _ in range(count)]
    with servers(2 if place == "two servers" else 1, workers=count) as hosts:

        def work(index: int) -> Any:
            with pk.distribute(models[index], hosts, task_index=index, **case.told):
                return case.script(models[index], given(case, folder, index, count))

        return models, in_threads(work, count)


CELLS = [(name, place) for name in CASES for place in PLACES]
# Rows of which another file tries the same, daily: test_fit.py, test_features.py, test_phases.py.
ELSEWHERE = {
    *("`Sequential`", "functional, several outputs, `loss_weights`"),
    "`ReduceLROnPlateau`",
    *("`LearningRateScheduler` that begins at 0", "`use_ema`"),
    *("`Dropout`", "`class_weight`", "`validation_data`", "`tf.data.Dataset`"),
    *("a metric of your own that is a maximum", "`fit` twice"),
    "compiled again with the same optimizer and another loss",
}
# A cell of every row, on other backends of every eighth; refusals cost nothing.
STRIDE = 3 if BACKEND == "tensorflow" else 24
FEW = [
    pytest.param(name, place, marks=pytest.mark.nightly if name in ELSEWHERE else ())
    for row, (name, case) in enumerate(CASES.items())
    for column, place in enumerate(PLACES)
    if row % STRIDE == column * STRIDE // 3 or case.on(BACKEND)[column].startswith("refused")
]


@pytest.mark.parametrize(("name", "place"), usually(FEW, CELLS))
def test_what_becomes_of_it(name: str, place: str, tmp_path: Path, plain_files: Path) -> None:
    case = CASES[name]
    cell = case.on(BACKEND)[PLACES.index(place)]
    if cell == NONE:
        return
    if cell == EMPTY:
        with pytest.raises((StopIteration, ValueError)):
            run(case, place, tmp_path)
        return
    if cell.startswith("refused"):
        with pytest.raises(Exception, match=cell.split('"')[1]):
            run(case, place, tmp_path)
        return
    models, found = run(case, place, tmp_path)
    weights = [model.get_weights() for model in models]
    for each in weights[1:]:
        for one, other in zip(weights[0], each, strict=True):
            np.testing.assert_array_equal(one, other)
    if cell == LOOSE:
        begun = made(case, place).get_weights()
        assert all(np.isfinite(each).all() for each in weights[0])
        assert any((a != b).any() for a, b in zip(begun, weights[0], strict=True))
        return
    reference, expected = plain(name, place, plain_files)
    if cell == BIT:
        assert found == [expected]
    elif cell in (OWN_PEAK, OWN_LOSS):
        name, over = ("peak", np.max) if cell == OWN_PEAK else ("loss", np.mean)
        own = over([each[name] for each in found], axis=0)
        for each in found:
            assert_near(each | {name: own}, expected)
    else:
        for each in found:
            assert_near(each, expected)
    for one, other in zip(weights[0], reference.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=0 if cell == BIT else 1e-5)
    for model in models:
        assert_same_state(reference.optimizer, model.optimizer)


def assert_near(found: Any, expected: Any) -> None:
    if isinstance(expected, list) and expected and isinstance(expected[0], dict):
        for one, other in zip(found, expected, strict=True):
            assert_near(one, other)
        return
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-5, atol=1e-5, err_msg=key)
