"""From an experiment's [job] to what trains it. Importing this module loads no TensorFlow; the call does."""

from pathlib import Path
from typing import Any

from pswire.config.experiment import Experiment
from psworker.job import JobError, load_job


def load_trainer(experiment: Experiment, device: str, *, deterministic: bool | None = None) -> Any:
    """A `psworker.tensorflow.Trainer` of the experiment's [job]: the call loads TensorFlow.

    `device`: "auto", "cpu" or "gpu:N". `deterministic`: run.deterministic where None.
    Its values are those of the file job.initial where the experiment names one.
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
    trainer = Trainer(job, device=device, seed=run.seed, deterministic=wanted)
    if experiment.job.initial:
        trainer.begin_with(Path(experiment.job.initial))
    return trainer


def requested_optimizer(trainer: Any) -> dict[str, Any] | None:
    """The [optimizer] that the trainer's job names, by a Keras optimizer or a compiled model; None for whatever
    the servers run. Raises JobError for one that servers cannot run."""
    if trainer.optimizer is None:
        return None
    from psworker.keras.translate import TranslationError, translate

    try:
        return translate(trainer.optimizer, trainer.trained)
    except TranslationError as error:
        raise JobError(f"the optimizer of job {type(trainer.job).__name__}: {error}") from error
