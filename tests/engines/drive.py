"""A run by keepers as a program of its own, so that tests can interrupt and kill it.

python -m tests.engines.drive FOLDER SERVER-BEHAVIOUR WORKER-BEHAVIOUR
"""

import json
import sys
from pathlib import Path

from pslab.display.outcome import outcome_json
from pslab.display.progress import JsonDisplay
from tests.engines.here import fakes, run_here

if __name__ == "__main__":
    finished = run_here(Path(sys.argv[1]), fakes(sys.argv[2], sys.argv[3]), display=JsonDisplay())
    print(json.dumps(outcome_json(finished)), flush=True)
    sys.exit(int(finished.result.verdict.code))
