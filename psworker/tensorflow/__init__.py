"""The TensorFlow side of a worker: the only place, beside users' jobs, that imports TensorFlow.

`Trainer` turns a `psworker.Job` into flat payloads. Importing this package
loads TensorFlow and Keras, which takes a few seconds, and keeps them quiet; so
import it before a job's module, which may import them too.
"""

import os

from psworker.tensorflow.quiet import hush, without_chatter

hush()
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
try:
    with without_chatter():
        import tensorflow  # noqa: F401  (the first import is the one that talks)
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}: a worker that trains with TensorFlow needs pip install 'paramserver[worker]'"
    ) from error

from psworker.tensorflow.device import DeviceError  # noqa: E402
from psworker.tensorflow.step import StepResult  # noqa: E402
from psworker.tensorflow.trainer import Trainer  # noqa: E402
from psworker.tensorflow.variables import named_variables  # noqa: E402

__all__ = ["DeviceError", "StepResult", "Trainer", "named_variables"]
