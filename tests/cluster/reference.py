"""Single-process training of `even_digits`: what a run with n workers must come to.

    python -m tests.cluster.reference RUN...

For the experiment of each run folder, in the folder:
reference-ranks.safetensors     each step: every worker's gradient of the same weights, summed by rank, times 1/n
reference-combined.safetensors  each step: one gradient of the batches of all workers as one batch
reference-keras.safetensors     the same with Keras alone: its model, its optimizer, train_on_batch
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
from safetensors.numpy import save_file

from pslab.experiment import Experiment
from pslab.runs.folder import EXPERIMENT
from psserver.optimizers import build
from pswire.model.plan import make_plan
from psworker.job import load_job
from psworker.keras.jobs.trainer import JobTrainer

Arrays = dict[str, np.ndarray]


def trained(experiment: Experiment, workers: int, batch_size: int) -> Arrays:
    """Plain gradient descent on one flat array, without any server."""
    seed = experiment.run.seed
    job = load_job(experiment.job.module, {**experiment.job.options, "batch_size": batch_size})
    trainer = JobTrainer(job, device="cpu", seed=seed, deterministic=experiment.run.deterministic)
    plan = make_plan([spec for spec, _ in trainer.specs], 1)
    trainer.attach(plan)
    (weights,) = plan.scatter([value for _, value in trainer.specs])
    optimizer = build(experiment.optimizer.config)
    state = optimizer.init(weights.size)
    parts = [trainer.batches(rank, workers, seed, experiment.job.epochs) for rank in range(workers)]
    for version, batches in enumerate(zip(*parts, strict=True)):
        gradients = [trainer.step([weights], batch).flats[0] for _, batch in batches]
        total = gradients[0].copy()
        for gradient in gradients[1:]:
            total += gradient
        total *= np.float32(1 / workers)
        following = np.empty_like(weights)
        optimizer.update(weights, total, following, state, version=version, lr_scale=1.0)
        weights = following
    names = [spec.name for spec in plan.variables]
    return dict(zip(names, plan.gather([weights]), strict=True))


def trained_by_keras(experiment: Experiment, batch_size: int) -> Arrays:
    """Nothing of ours but the job's model and data."""
    seed, config = experiment.run.seed, experiment.optimizer.config
    job = load_job(experiment.job.module, {**experiment.job.options, "batch_size": batch_size})
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    model = job.model()
    optimizer = keras.optimizers.SGD(config["learning_rate"], momentum=config["momentum"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    for x, y in epochs_of(job, seed, experiment.job.epochs):
        model.train_on_batch(x, y)
    # Without the model's own name, which depends on how many models the process has made.
    return {variable.path.partition("/")[2]: variable.numpy() for variable in model.trainable_variables}


def epochs_of(job: object, seed: int, epochs: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    epoch_of = job.dataset(0, 1, seed)
    for epoch in range(epochs):
        yield from epoch_of(epoch)


def main(run: Path) -> None:
    experiment = Experiment.load(run / EXPERIMENT)
    workers, size = experiment.cluster.workers, int(experiment.job.options["batch_size"])
    save_file(trained(experiment, workers, size), run / "reference-ranks.safetensors")
    save_file(trained(experiment, 1, workers * size), run / "reference-combined.safetensors")
    save_file(trained_by_keras(experiment, workers * size), run / "reference-keras.safetensors")


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        main(Path(folder))
