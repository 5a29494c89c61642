"""Jobs on TensorFlow: `Trainer` turns a `psworker.Job` into flat payloads.

Importing this package loads TensorFlow and Keras, which takes a few seconds, and keeps them quiet. Import it before a
job's module, which may import them too.
"""

import psworker.backends.tensorflow  # noqa: F401  (first: it keeps TensorFlow quiet)
from psworker.backends import StepResult
from psworker.backends.tensorflow.variables import named_variables
from psworker.tensorflow.device import DeviceError
from psworker.tensorflow.trainer import Trainer

__all__ = ["DeviceError", "StepResult", "Trainer", "named_variables"]
