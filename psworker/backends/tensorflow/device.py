"""Choose the device of this process, once, before TensorFlow starts using any."""

from __future__ import annotations

import logging
from functools import cache

import tensorflow as tf

from pswire.logs.events import event
from psworker.backends import DeviceError, gpu_number
from psworker.backends.tensorflow.quiet import without_chatter

log = logging.getLogger("ps-worker")


def set_up(device: str, *, deterministic: bool) -> str:
    """Device and threads of this process, as far as nothing has settled them; returns the device's name.

    May be called again with the same arguments. A warning says where the
    process cannot be deterministic any more. Raises DeviceError.
    """
    fallen_back = make_deterministic() if deterministic else None
    if fallen_back is not None:
        _warn(fallen_back)
    return choose_device(device)


@cache
def _warn(sentence: str) -> None:
    """Once, however many trainers are made in this process."""
    log.warning("%s", sentence, extra=event("not_deterministic"))


def choose_device(wanted: str) -> str:
    """Make only `wanted` visible to TensorFlow; returns its name, "cpu" or "gpu:N".

    "auto" is the first GPU that TensorFlow sees, else the CPU. A GPU's memory
    is taken as it is needed (memory growth), so that several workers can share
    one. Where TensorFlow has been set up already, "auto" is what it was set up
    with. Raises DeviceError when gpu:N is not there, naming what is, and when
    another device than the present one is wanted too late.
    """
    with without_chatter():
        gpus = tf.config.list_physical_devices("GPU")
        index = gpu_number(wanted, len(gpus), "TensorFlow")
        chosen = [] if index is None else [gpus[index]]
        try:
            tf.config.set_visible_devices(chosen, "GPU")
            for gpu in chosen:
                tf.config.experimental.set_memory_growth(gpu, True)
        except RuntimeError as error:
            if gpus and wanted != "auto":
                raise DeviceError(f"cannot switch to {wanted!r}, TensorFlow is in use: {error}") from error
            # It keeps the device that it was set up with.
            index = 0 if tf.config.list_logical_devices("GPU") else None
    return "cpu" if index is None else f"gpu:{index}"


def make_deterministic() -> str | None:
    """Make the same inputs give the same bits, on any number of cores: in this process, from now on.

    Measured on TensorFlow 2.21, CPU (tests/worker_tf/test_determinism.py):
    reruns with one intra-op thread are bit-equal. With more threads, kernels
    split their reductions by the number of threads, so the bits depend on the
    machine's cores; a run computes about as fast as one core does. Op determinism
    is needed beside that on GPUs, and it makes an operation without a
    deterministic kernel an error instead of a surprise.

    Both are properties of the process. Where TensorFlow has already started
    with more threads they stay, and a sentence about that is returned.
    """
    tf.config.experimental.enable_op_determinism()
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:
        return (
            "TensorFlow has already started in this process, so it keeps its threads: operations are deterministic, "
            "but bits may depend on the number of cores, and a replay may differ in them; for one thread make the "
            "Trainer before anything else uses TensorFlow"
        )
    return None
