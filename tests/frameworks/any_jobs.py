"""Jobs for any of Keras' backends. As a script: what a step and an evaluation of each come to, into a file."""

import sys

import keras
import numpy as np

from psworker import Job

DICE = np.random.default_rng(1)
X = DICE.normal(size=(24, 6)).astype("f")
Y = DICE.integers(0, 3, 24)


class Plain(Job):
    """Averages of layers travel; a short batch, accumulation, a hook, clipping."""

    loss = "sparse_categorical_crossentropy"
    metrics = ("accuracy",)
    optimizer = keras.optimizers.SGD(0.1, clipnorm=0.05, gradient_accumulation_steps=2)

    def model(self):
        inner = [keras.layers.Dense(5, "tanh"), keras.layers.BatchNormalization()]
        model = keras.Sequential([keras.Input((6,)), *inner, keras.layers.Dense(3, "softmax")])
        # Every backend draws other numbers.
        model.set_weights([np.linspace(0.2, 1, v.size).reshape(v.shape) for v in model.get_weights()])
        return model

    def dataset(self, worker_index, worker_count, seed):
        return [(X[:16], Y[:16]), (X[16:], Y[16:])]

    def gradients(self, gradients, variables):
        return [gradient / 2 for gradient in gradients]

    def heldout(self):
        return X, Y


class Compiled(Plain):
    """As the user compiled it; it draws."""

    loss = optimizer = None
    metrics = ()

    def model(self):
        model = super().model()
        model.add(keras.layers.Dropout(0.0))
        model.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model


class Bare(Plain):
    def loss(self, model, batch):
        x, y = batch
        return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, model(x, training=True)))


def main(out: str) -> None:
    from pswire.model.plan import make_plan
    from psworker.job import JobError
    from psworker.keras.jobs.trainer import JobTrainer

    found: dict[str, np.ndarray] = {}
    for kind in (Plain, Compiled, Bare):
        try:
            trainer = JobTrainer(kind(), device="cpu", seed=3)
        except JobError as error:
            print(error)
            continue
        plan = make_plan([spec for spec, _ in trainer.specs], 2)
        trainer.attach(plan)
        flats = plan.scatter([value for _, value in trainer.specs])
        for number, batch in trainer.batches(0, 1, 0, 1):
            result = trainer.step(flats, batch)
            name = f"{kind.__name__}/{number}"
            found[f"{name}/numbers"] = np.array([result.loss, result.norm, result.samples])
            found |= {f"{name}/{k}": part for k, part in enumerate(plan.gather(result.flats))}
        assert trainer.measures() == (["accuracy"] if kind is Bare else ["loss", "accuracy"])
        found[f"{kind.__name__}/measured"] = np.array([v for _, v in sorted(trainer.evaluate(flats).items())])
    np.savez(out, **found)


if __name__ == "__main__":
    import psworker.keras  # noqa: F401

    main(sys.argv[1])
