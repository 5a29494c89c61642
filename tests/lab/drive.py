"""A local run with fake daemons as a program of its own, so that tests can interrupt it.

python -m tests.lab.drive FOLDER SERVER-BEHAVIOUR WORKER-BEHAVIOUR [CHECKPOINT-EVERY]
"""

import json
import sys
from pathlib import Path

from pslab.display.outcome import outcome_json
from pslab.display.progress import Display, JsonDisplay
from pslab.experiment import Experiment
from pslab.launch.engines.local import LocalLauncher
from pslab.launch.experiments import FinishedRun, run_real
from pslab.launch.tasks import Daemons
from tests.patience import PATIENCE

FAKE = str(Path(__file__).with_name("fake_daemon.py"))


def experiment(workers: int = 3, every: str = "", replicas: int = 1) -> Experiment:
    document = {
        "run": {"checkpoint_every": every},
        "cluster": {
            "servers": 3 if replicas == 2 else 2,
            "replicas": replicas,
            "workers": workers,
            "worker_timeout": 0.5,
        },
        "optimizer": {"name": "sgd"},
        "job": {"module": "fake:job"},
    }
    return Experiment.parse(document, "test")


def run_fakes(
    folder: Path,
    server: str = "ok",
    worker: str = "ok",
    display: Display | None = None,
    every: str = "",
    replicas: int = 1,
    **times: float,
) -> FinishedRun:
    """Short times, but for what ends by itself: fakes need none of the patience that TensorFlow does."""
    defaults = {"startup": PATIENCE, "linger": 0.5, "patience": 0.5, "farewell": PATIENCE}
    daemons = Daemons(
        server=(sys.executable, FAKE, "server", server),
        worker=(sys.executable, FAKE, "worker", worker),
        **{**defaults, **times},
    )
    chosen = experiment(every=every, replicas=replicas)
    return run_real(chosen, display or JsonDisplay(), LocalLauncher(), out=folder, daemons=daemons)


if __name__ == "__main__":
    folder, server, worker, *rest = sys.argv[1:]
    finished = run_fakes(Path(folder), server, worker, every="".join(rest), saving=PATIENCE)
    print(json.dumps(outcome_json(finished)), flush=True)
    sys.exit(int(finished.result.verdict.code))
