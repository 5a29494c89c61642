"""`model.fit` on parameter servers: one line after `compile`.

    model.compile(optimizer="adam", loss="mse")
    psworker.keras.distribute(model)
    model.fit(x, y, epochs=5)

See docs/keras.md. Importing this package loads TensorFlow and Keras.
"""

import psworker.tensorflow  # noqa: F401  (before Keras: chooses its backend, keeps both quiet)
from psworker.keras.distribution import distribute
from psworker.keras.errors import FitError
from psworker.keras.fit.distributed import Distributed
from psworker.keras.optimizer import RemoteOptimizer
from psworker.keras.remote import Remote
from psworker.keras.translate import translate
from psworker.remote import RemoteError
from psworker.servers import EmbeddedServerError
from psworker.translating import TranslationError

__all__ = [
    "Distributed",
    "EmbeddedServerError",
    "FitError",
    "Remote",
    "RemoteError",
    "RemoteOptimizer",
    "TranslationError",
    "distribute",
    "translate",
]
