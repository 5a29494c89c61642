"""`model.fit` on parameter servers: one line after `compile`.

    model.compile(optimizer="adam", loss="mse")
    psworker.keras.distribute(model)
    model.fit(x, y, epochs=5)

See docs/keras.md. Importing this package loads Keras with the backend that KERAS_BACKEND names, TensorFlow by default.
"""

import os

if os.environ.setdefault("KERAS_BACKEND", "tensorflow") == "tensorflow":
    import psworker.backends.tensorflow
elif os.environ["KERAS_BACKEND"] == "jax":
    import psworker.backends.jax  # noqa: F401  (sets how JAX takes memory)
from psworker.backends.keras.step import FitError
from psworker.backends.keras.variables import named_variables
from psworker.keras.distribution import distribute
from psworker.keras.embedding import RemoteEmbedding, read_rows
from psworker.keras.exporting import export
from psworker.keras.fit.distributed import Distributed
from psworker.keras.optimizer import RemoteOptimizer
from psworker.keras.translate import translate
from psworker.optimizers import TranslationError
from psworker.remote import RemoteError
from psworker.servers import EmbeddedServerError

__all__ = [
    "Distributed",
    "EmbeddedServerError",
    "FitError",
    "RemoteEmbedding",
    "RemoteError",
    "RemoteOptimizer",
    "TranslationError",
    "distribute",
    "export",
    "named_variables",
    "read_rows",
    "translate",
]
