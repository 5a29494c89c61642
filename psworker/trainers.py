"""From an experiment's [job] to what trains it. Importing this module loads no TensorFlow; the call does."""

from typing import Any

from pswire.config.experiment import Experiment
from psworker.job import load_job


def load_trainer(experiment: Experiment, device: str, *, deterministic: bool | None = None) -> Any:
    """A `psworker.tensorflow.Trainer` of the experiment's [job]: the call loads TensorFlow.

    `device`: "auto", "cpu" or "gpu:N". `deterministic`: run.deterministic where None.
    Raises JobError and DeviceError.
    """
    import psworker.tensorflow.quiet  # noqa: F401
    from psworker.tensorflow.device import set_up
    from psworker.tensorflow.trainer import Trainer

    run = experiment.run
    wanted = run.deterministic if deterministic is None else deterministic
    # Before the job's module, which may make a metric or a layer as it is imported: then TensorFlow has started.
    set_up(device, deterministic=wanted)
    job = load_job(experiment.job.module, experiment.job.options)
    return Trainer(job, device=device, seed=run.seed, deterministic=wanted)
