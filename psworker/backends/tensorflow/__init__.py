"""The TensorFlow backend. Importing this package loads TensorFlow and Keras and keeps their start-up quiet.

step       batches to gradients in one traced function, for jobs and for `fit`
flats      payloads as tensors
variables  variables of what is no Keras model
bare       a function of model and batch as a Keras model
device     the device and threads of this process
quiet      start-up chatter, filtered
"""

import os

from pswire.extras import how_to_install
from psworker.backends.tensorflow.quiet import hush, without_chatter

hush()
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
# Two workers may share a GPU: its memory is taken as it is needed.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
try:
    with without_chatter():
        import tensorflow  # noqa: F401  (the first import is the one that talks)
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}: a worker that trains with TensorFlow needs {how_to_install('worker')}"
    ) from error
