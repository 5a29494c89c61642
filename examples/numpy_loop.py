"""Softmax regression on handwritten digits in a training loop of one's own: numpy, no TensorFlow.

ps-server --ps-hosts 127.0.0.1:7070 --task-index 0    (in another terminal)
python examples/numpy_loop.py 127.0.0.1:7070
"""

import sys

import numpy as np
from digits_data import digits, shuffled_batches

import psworker


def gradients(weights, images, labels):
    """The mean cross-entropy of a batch, and its gradients by variable name."""
    scores = images @ weights["w"] + weights["b"]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    error = odds / odds.sum(axis=1, keepdims=True)  # becomes probability - target
    loss = -np.log(error[np.arange(len(labels)), labels]).mean()
    error[np.arange(len(labels)), labels] -= 1
    return float(loss), {"w": images.T @ error / len(labels), "b": error.mean(axis=0)}


def main(hosts):
    start = {"w": np.zeros((64, 10), np.float32), "b": np.zeros(10, np.float32)}
    with psworker.connect(hosts, start) as session:
        batches = shuffled_batches(
            digits("train"), session.rank, session.size, session.info.seed, batch_size=32
        )
        loss = float("nan")  # a restarted worker may have nothing left to do
        for turn in session.turns(batches(0)):
            images, labels = turn.batch
            loss, by_name = gradients(turn.weights, images, labels)
            turn.send(by_name, samples=len(labels), loss=loss)
        over = session.over
        print(f"{session.info.worker}: {over.reason} at version {over.version}, last loss {loss:.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
