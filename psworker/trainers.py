"""The trainer of an experiment's [job], and the optimizer that it asks for. Only the calls load Keras."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pswire.config.experiment import Experiment
from psworker.job import JobError, load_job


def load_trainer(
    experiment: Experiment,
    device: str,
    *,
    deterministic: bool | None = None,
    optimizer: Mapping[str, object] | None = None,
) -> Any:
    """Return a `psworker.keras.jobs.trainer.JobTrainer` of the experiment's [job], with the weights of job.initial if
    that is set. Keras computes with the backend that KERAS_BACKEND names, TensorFlow by default.

    `device`: "auto", "cpu" or "gpu:N". `deterministic`: run.deterministic if None. `optimizer`: the servers', which may
    clip in its place. Raises JobError and DeviceError.
    """
    from psworker.keras.jobs.trainer import JobTrainer, set_up

    run = experiment.run
    wanted = run.deterministic if deterministic is None else deterministic
    # Before the import of the job's module, which may make a metric or a layer and thus start TensorFlow.
    set_up(device, deterministic=wanted)
    job = load_job(experiment.job.module, experiment.job.options)
    trainer = JobTrainer(job, device=device, seed=run.seed, deterministic=wanted)
    if experiment.job.initial:
        trainer.begin_with(Path(experiment.job.initial))
    if optimizer is not None:
        trainer.clip_beside(optimizer)
    return trainer


def requested_optimizer(trainer: Any, servers: int = 1) -> dict[str, Any] | None:
    """Return the [optimizer] that the job asks of its `servers`, by a Keras optimizer or a compiled model; None if
    none.

    The trainer leaves clipping to servers that clip. Raises JobError for an optimizer that servers cannot run.
    """
    if trainer.optimizer is None:
        return None
    from psworker.keras.translate import translate
    from psworker.optimizers import TranslationError

    try:
        # Nobody but the worker has the norm of a gradient that is rows in part.
        servers = max(servers, 2) if trainer.tables else servers
        config = translate(trainer.optimizer, trainer.trained, servers=servers)
    except TranslationError as error:
        raise JobError(f"the optimizer of job {type(trainer.job).__name__}: {error}") from error
    trainer.clip_beside(config)
    return config
