"""One version of a run, written out for inspection."""

import json
import math
from pathlib import Path

from pslab.replay.execution import Replay
from pslab.runs.folder import WEIGHTS, RunError
from psserver import weights_file

METRICS = "metrics.json"


def freeze(replay: Replay, folder: Path) -> dict[str, object]:
    """Write weights.safetensors and metrics.json of the version that the replay has come to.

    The metrics are the job's own, measured now, and the mean loss of the
    batches that made the version. Returns what metrics.json holds. Raises
    RunError when the folder cannot be written to.
    """
    store, result = replay.store, replay.result
    loss = result.loss if math.isfinite(result.loss) else None
    record: dict[str, object] = {
        "version": result.version,
        "loss": loss,
        "weights_sha256": store.sha256(),
        "metrics": replay.trainer.evaluate(store.flats()),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        weights_file.save(folder / WEIGHTS, store.weights())
        (folder / METRICS).write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise RunError(f"{folder}: cannot be written to: {error.strerror or error}") from error
    return record
