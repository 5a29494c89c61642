"""Handwritten digits in a JAX loop of one's own, with an Optax chain that parameter servers run.

python examples/jax_loop.py                                        alone
ps-lab run --script examples/jax_loop.py --workers 2 --servers 1   with two workers
"""

import jax
import jax.numpy as jnp
import optax
from digits_data import digits, shuffled_batches

import psworker.jax


def scores(params, images):
    return jax.nn.relu(images @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


@jax.jit
@jax.value_and_grad
def gradients_of(params, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, images), labels).mean()


one, two = jax.random.split(jax.random.key(0))
params = {
    **{"w1": jax.random.normal(one, (64, 32)) / 8, "b1": jnp.zeros(32)},
    **{"w2": jax.random.normal(two, (32, 10)) / 6, "b2": jnp.zeros(10)},
}
chain = optax.chain(optax.clip_by_global_norm(5.0), optax.adamw(optax.cosine_decay_schedule(0.01, 130)))
with psworker.jax.distribute(params, chain) as job:
    session = job.session
    batches = shuffled_batches(digits("train"), session.rank, session.size, session.info.seed, batch_size=32)
    for epoch in range(3):
        for images, labels in batches(epoch):
            loss, gradients = gradients_of(job.pull(), images, labels)
            job.push(gradients, samples=len(images), loss=loss)

images, labels = digits("heldout")
accuracy = (scores(job.params, images).argmax(axis=1) == labels).mean()
print(f"{session.info.worker}: version {session.over.version}, accuracy {accuracy:.3f}")
