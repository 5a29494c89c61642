"""From an experiment to what trains its job. TensorFlow is loaded by the call, not by the import."""

from typing import Any

from pswire.config.experiment import Experiment
from psworker.job import load_job


def tensorflow_trainer(experiment: Experiment, device: str) -> Any:
    """A `psworker.tensorflow.Trainer` of the [job]. Raises JobError and DeviceError."""
    import psworker.tensorflow.quiet  # noqa: F401
    from psworker.tensorflow.trainer import Trainer

    job, run = load_job(experiment.job.module, experiment.job.options), experiment.run
    return Trainer(job, device=device, seed=run.seed, deterministic=run.deterministic)
