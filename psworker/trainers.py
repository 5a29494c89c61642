"""From an experiment's [job] to what trains it. Importing this module loads no TensorFlow; the call does."""

from typing import Any

from pswire.config.experiment import Experiment
from psworker.job import load_job


def load_trainer(experiment: Experiment, device: str) -> Any:
    """A `psworker.tensorflow.Trainer` of the experiment's [job]: the call loads TensorFlow.

    `device`: "auto", "cpu" or "gpu:N". Raises JobError and DeviceError.
    """
    import psworker.tensorflow.quiet  # noqa: F401
    from psworker.tensorflow.trainer import Trainer

    job, run = load_job(experiment.job.module, experiment.job.options), experiment.run
    return Trainer(job, device=device, seed=run.seed, deterministic=run.deterministic)
