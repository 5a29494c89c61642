"""From an experiment's [job] to what trains it. Importing this module loads no TensorFlow; the call does."""

from collections.abc import Mapping
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
    import psworker.backends.tensorflow.quiet  # noqa: F401
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


def requested_optimizer(trainer: Any, servers: int = 1) -> dict[str, Any] | None:
    """The [optimizer] that the trainer's job names for so many servers, by a Keras optimizer or a compiled model; None
    for whatever they run. The trainer leaves clipping to them where they clip. Raises JobError for one that servers
    cannot run."""
    if trainer.optimizer is None:
        return None
    from psworker.keras.translate import translate
    from psworker.translating import TranslationError

    try:
        config = translate(trainer.optimizer, trainer.trained, servers=servers)
    except TranslationError as error:
        raise JobError(f"the optimizer of job {type(trainer.job).__name__}: {error}") from error
    leave_clipping(trainer, config)
    return config


def leave_clipping(trainer: Any, optimizer: Mapping[str, object]) -> None:
    """The trainer clips gradients only where servers with this [optimizer] do not."""
    from psworker.keras.translate import worker_clips

    trainer.clip(here=worker_clips(trainer.optimizer, optimizer))
