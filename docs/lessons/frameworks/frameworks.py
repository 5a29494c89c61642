"""One worker of the lesson: the gradients of one model on one batch after the other, by one framework.

Worker k takes the k-th framework that is installed. All take the same batches, from the same versions. FOLDER gets the
gradients of each, and worker 0 says at the end how far they are from each other.
"""

import os
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import psworker

STEPS, RATE = 200, 0.5
EXTRAS = {"tensorflow": "worker", "jax": "jax", "torch": "torch"}
NAMES = tuple(EXTRAS)
draw = np.random.default_rng(0)
X = draw.normal(size=(STEPS, 64, 20)).astype(np.float32)
Y = np.tanh(X[:, :, :3].sum(axis=2)) + X[:, :, 3] * X[:, :, 4]
FIRST = {
    "w": draw.normal(0, 0.3, (20, 32)).astype(np.float32),
    "v": draw.normal(0, 0.3, 32).astype(np.float32),
}
Arrays = dict[str, Any]


def exact(weights: Arrays, x: Any, y: Any) -> Arrays:
    """In float64, by hand: the loss is the mean of (tanh(x w) v - y)²."""
    w, v, x, y = (np.asarray(each, np.float64) for each in (weights["w"], weights["v"], x, y))
    hidden = np.tanh(x @ w)
    error = 2 * (hidden @ v - y) / len(x)
    return {"w": x.T @ (np.outer(error, v) * (1 - hidden**2)), "v": hidden.T @ error}


def by_tensorflow(weights: Arrays, x: Any, y: Any) -> Arrays:
    import tensorflow as tf

    tensors = {name: tf.constant(each) for name, each in weights.items()}
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        hidden = tf.tanh(tf.matmul(x, tensors["w"]))
        loss = tf.reduce_mean((tf.linalg.matvec(hidden, tensors["v"]) - y) ** 2)
    return {name: each.numpy() for name, each in tape.gradient(loss, tensors).items()}


def by_jax(weights: Arrays, x: Any, y: Any) -> Arrays:
    import jax
    import jax.numpy as jnp

    def loss(at: Arrays) -> Any:
        return ((jnp.tanh(x @ at["w"]) @ at["v"] - y) ** 2).mean()

    return {name: np.asarray(each) for name, each in jax.grad(loss)(weights).items()}


def by_torch(weights: Arrays, x: Any, y: Any) -> Arrays:
    import torch

    tensors = {name: torch.tensor(each, requires_grad=True) for name, each in weights.items()}
    hidden = torch.tanh(torch.tensor(x) @ tensors["w"])
    ((hidden @ tensors["v"] - torch.tensor(y)) ** 2).mean().backward()
    return {name: each.grad.numpy() for name, each in tensors.items()}


GRADIENTS: dict[str, Callable[[Arrays, Any, Any], Arrays]] = {
    "tensorflow": by_tensorflow,
    "jax": by_jax,
    "torch": by_torch,
}


def flat(arrays: Arrays) -> Any:
    return np.concatenate([np.ravel(arrays[name]) for name in ("w", "v")])


def work(framework: str, session: psworker.Session) -> Arrays:
    """The gradients of each step, how far each is from float64, and where the worker would be without servers."""
    gradients_of = GRADIENTS[framework]
    found, errors, alone = [], [], dict(FIRST)
    for turn in session.turns(range(STEPS)):
        x, y, weights = X[turn.batch], Y[turn.batch].astype(np.float32), turn.weights
        gradients = gradients_of(weights, x, y)
        turn.send(gradients, samples=len(x), loss=0.0)
        reference = flat(exact(weights, x, y))
        found.append(flat(gradients))
        errors.append(np.linalg.norm(flat(gradients) - reference) / np.linalg.norm(reference))
        alone = {
            name: alone[name] - np.float32(RATE) * each for name, each in gradients_of(alone, x, y).items()
        }
    return {"gradients": found, "errors": errors, "alone": flat(alone), "servers": flat(session.weights())}


def write(file: Path, found: dict[str, Any]) -> None:
    """Write whole or not at all: worker 0 reads what the others write."""
    part = file.with_suffix(".part.npz")
    np.savez(part, **found)
    part.rename(file)


def awaited(file: Path) -> Path:
    """Return the file once its worker has written it, which it does after the job's end."""
    end = time.monotonic() + 60
    while not file.exists():
        if time.monotonic() > end:
            raise SystemExit(f"{file} has not come: its worker has failed")
        time.sleep(0.1)
    return file


def compare(folder: Path, frameworks: tuple[str, ...]) -> None:
    found = {name: np.load(awaited(folder / f"{name}.npz")) for name in frameworks}
    for name, each in found.items():
        errors = each["errors"]
        print(f"{name}: from float64 {np.median(errors):.1e}, at most {errors.max():.1e}, of the gradient")
    for place, one in enumerate(frameworks):
        for other in frameworks[place + 1 :]:
            a, b = found[one], found[other]
            equal = np.mean(a["gradients"] == b["gradients"])
            apart = {key: np.abs(a[key] - b[key]).max() for key in ("alone", "servers")}
            print(
                f"{one} and {other}: {equal:.0%} of the numbers are equal to the bit; after {STEPS} steps alone "
                f"weights differ by {apart['alone']:.1e}, on the server by {apart['servers']:.0f}"
            )


def main(folder: Path) -> None:
    frameworks = tuple(name for name in NAMES if find_spec(name) is not None)
    sgd = {"name": "sgd", "learning_rate": RATE}
    # As `ps-lab run` numbers its workers.
    index = int(os.environ.get("PS_TASK_INDEX", "0"))
    framework = frameworks[index % len(frameworks)]
    file = folder / f"{framework}.npz"
    folder.mkdir(parents=True, exist_ok=True)
    if index < len(frameworks):
        # That of an earlier run.
        file.unlink(missing_ok=True)
    with psworker.connect(variables=FIRST, optimizer=sgd, computes=f"{framework} on the CPU") as session:
        found = work(framework, session)
        if index < len(frameworks):
            write(file, found)
    if index == 0:
        for name in NAMES:
            if name not in frameworks:
                print(f"{name} is not installed (scripts/install {EXTRAS[name]}): left out")
        compare(folder, frameworks)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
