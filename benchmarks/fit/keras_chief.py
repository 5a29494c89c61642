"""The chief of a ParameterServerStrategy cluster that trains the models of `scripts/bench fit`, with Adam.

Commands: as those of chief.py; `load` is the name of a case. Keras' layers compute from weights that the step has
read from the parameter server, which holds Adam's slots, too. What layers keep besides (BatchNorm's averages) stands
still: less work than `fit` has.
"""

from typing import Any

import keras
import tensorflow as tf

from benchmarks.fit.cases import CASES
from benchmarks.programs.tensorflow.chief import Chief, Running


class KerasChief(Chief):
    def prepare_case(self, load: str) -> None:
        model, x, y, batch = CASES[load]()
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        still = [variable.numpy() for variable in model.non_trainable_variables]
        with self._strategy.scope():
            # Weights, and Adam's two averages.
            held = [[tf.Variable(v.numpy()) for v in model.trainable_variables]]
            held += [[tf.Variable(tf.zeros(v.shape)) for v in model.trainable_variables] for _ in range(2)]

        @tf.function  # type: ignore[untyped-decorator]
        def step(iterator: Any) -> Any:
            # One read each: everything after works on the worker's copy.
            weights = [variable.read_value() for variable in held[0]]
            x, y = next(iterator)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weights)
                logits, _ = model.stateless_call(weights, still, x, training=True)
                loss = loss_of(y, logits)
            for w, m, v, gradient in zip(*held, tape.gradient(loss, weights), strict=True):
                with tf.device(w.device):
                    tf.raw_ops.ResourceApplyAdam(
                        var=w.handle,
                        m=m.handle,
                        v=v.handle,
                        beta1_power=0.9,
                        beta2_power=0.999,
                        lr=0.001,
                        beta1=0.9,
                        beta2=0.999,
                        epsilon=1e-7,
                        grad=gradient,
                    )
            return loss

        def dataset() -> Any:
            return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch).cache().repeat()

        data = iter(self._coordinator.create_per_worker_dataset(dataset))
        self._loads[load] = Running(step, data, 1)
        # Traced, connections warm.
        self.measure(load, 2)


if __name__ == "__main__":
    chief = KerasChief()
    chief.serve(chief.prepare_case)
