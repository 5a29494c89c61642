"""Two towers, one for people and one for films, whose rows are sparse tables on the servers.

ps-lab run examples/two-tower.toml
"""

import keras
import numpy as np
from films_data import KINDS, films

from psworker import Job
from psworker.keras import RemoteEmbedding


class TwoTower(Job):
    data: str = "movielens"  # or "generated"
    batch_size: int = 256  # per worker
    dim: int = 16

    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    metrics = (keras.metrics.AUC(from_logits=True, name="auc"),)

    def model(self):
        user, film = (keras.Input((), dtype="int64", name=name) for name in ("user", "film"))
        kinds = keras.Input((KINDS,), dtype="int64", name="kinds")
        person = RemoteEmbedding("people", self.dim)(user)
        # The mean over a film's kinds. Masked places are zeros, and some films are of no kind.
        kept = keras.ops.sum(keras.ops.cast(kinds != 0, "float32"), axis=1, keepdims=True)
        total = keras.ops.sum(RemoteEmbedding("film_kinds", self.dim, mask_id=0)(kinds), axis=1)
        mean = total / keras.ops.maximum(kept, 1)
        work = keras.layers.Concatenate()([RemoteEmbedding("films", self.dim)(film), mean])
        towers = [
            keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(self.dim)]) for _ in range(2)
        ]
        person, work = towers[0](person), towers[1](work)
        likes = keras.layers.Dot(1)([person, work])
        likes = keras.layers.Dense(1)(keras.layers.Concatenate()([likes, person, work]))
        return keras.Model({"user": user, "film": film, "kinds": kinds}, likes)

    def dataset(self, worker_index, worker_count, seed):
        x, liked = films(self.data, "train")

        def epoch(number):
            order = np.random.default_rng([seed, number]).permutation(len(liked))[worker_index::worker_count]
            for start in range(0, len(order), self.batch_size):
                chosen = order[start : start + self.batch_size]
                yield {name: ids[chosen] for name, ids in x.items()}, liked[chosen]

        return epoch

    def heldout(self):
        return [films(self.data, "heldout")]
