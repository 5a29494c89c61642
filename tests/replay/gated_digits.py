"""Digits whose workers wait in the middle of an epoch for a file: so that a run does not end before it is killed."""

import threading
from pathlib import Path

from tests.replay.dropout_digits import DropoutDigits

# For the file, in seconds.
LOOK_EVERY = 0.02


class GatedDigits(DropoutDigits):
    gate: str = ""
    before: int = 12

    def dataset(self, worker_index, worker_count, seed):
        epoch_of = super().dataset(worker_index, worker_count, seed)

        def gated(epoch):
            for number, batch in enumerate(epoch_of(epoch)):
                while number == self.before and not Path(self.gate).exists():
                    threading.Event().wait(LOOK_EVERY)
                yield batch

        return gated
