"""Commands on the nodes of an engine, and how they ended: ``python -m tests.engines.codes ENGINE FOLDER [HOSTS]``

The answer is a JSON object: what was meant -> what arrived.
"""

import json
import signal
import sys
from pathlib import Path

from pslab.experiment import Experiment
from pslab.launch.engines.launcher import Task, Wanted
from pslab.launch.engines.registry import Options, launcher_for
from pslab.launch.events import EventQueue, Exited
from tests.patience import PATIENCE

CODES = (0, 2, 3, 6, 130, -signal.SIGKILL)


def main() -> None:
    engine, folder, *hosts = sys.argv[1:]
    experiment = Experiment.parse({"run": {"engine": engine}}, "test")
    launcher = launcher_for(experiment, Options(hosts=tuple(hosts)), Path.cwd())
    events: EventQueue = EventQueue()
    names = {f"worker-{number}": code for number, code in enumerate(CODES)}
    launcher.reserve([Wanted(name, "worker") for name in names])
    for name, code in names.items():
        text = f"import os; os.kill(os.getpid(), {-code})" if code < 0 else f"raise SystemExit({code})"
        task = Task(name, [sys.executable, "-c", text], {})
        launcher.start(task, Path(folder) / f"{name}.log", events)
    found = {}
    while len(found) < len(names):
        event = events.get(timeout=PATIENCE)
        if isinstance(event, Exited):
            found[names[event.name]] = event.code
    launcher.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
