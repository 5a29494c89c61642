"""The plateau rule of a `Job` beside Keras' own callback."""

import keras
import numpy as np
import pytest

from psworker.evaluating import Plateau, Watched

pytestmark = [
    pytest.mark.tensorflow,
    # Between Keras and numpy, when a callback reads the rate.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


@pytest.mark.parametrize(("patience", "minimum"), [(1, 0.0), (2, 0.0), (3, 2.0**-5)])
def test_the_rates_are_those_of_keras(patience: int, minimum: float) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    for seed in range(5):
        model.compile(keras.optimizers.SGD(0.5), loss="mse")
        theirs = keras.callbacks.ReduceLROnPlateau(
            "loss", factor=0.5, patience=patience, mode="min", min_delta=0.0, min_lr=minimum
        )
        theirs.set_model(model)
        theirs.on_train_begin()
        watched, plateau, rate = Watched("loss"), Plateau(patience, 0.5, minimum), 0.5
        changes = 0
        # Losses of few different values: equal ones are not better.
        for version, loss in enumerate(np.random.default_rng(seed).integers(0, 20, 40)):
            theirs.on_epoch_end(version, {"loss": float(loss)})
            lower = plateau.add(watched.add(version, {"loss": float(loss)}), rate)
            rate, changes = lower or rate, changes + (lower is not None)
            assert float(model.optimizer.learning_rate) == rate
        assert changes
