"""AdaSync: more gradients per update as the loss falls. A program that reads the log, and changes the policy.

ps-lab run FILE --set policy.name=k-sync --set policy.aggregate=1 --out run    (in another terminal)
python examples/adasync.py run

K^2 / (P - K) is that at the start times the quotient of the first loss and the present one, with P workers (Dutta et
al. 2020, Slow and Stale Gradients Can Win the Race). A loss is the median over workers of their means of 20 versions.
"""

import json
import math
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median

EVERY = 20  # versions between two decisions


def wanted(began, workers, quotient):
    """Return K with ``K**2 / (P - K) = began**2 / (P - began) * quotient``."""
    if began >= workers:
        return workers
    right = began * began / (workers - began) * quotient
    return 2 * workers / (1 + math.sqrt(1 + 4 * workers / right))


def entries(log):
    """Yield the entries of a log that grows, up to the stop."""
    line = ""
    while True:
        line += log.readline()
        if not line.endswith("\n"):
            time.sleep(0.2)
            continue
        entry, line = json.loads(line), ""
        yield entry
        if entry["kind"] == "stop":
            return


def changes(log):
    """Yield each value of `aggregate` that the losses call for, with the reason."""
    losses, first, due = defaultdict(list), None, EVERY
    for entry in entries(log):
        match entry["kind"]:
            case "job":
                k = began = entry["policy"]["aggregate"]
                workers = entry["workers"]
            case "commit" if entry.get("loss") is not None:
                losses[entry["worker"]].append(entry["loss"])
            case "apply" if entry["version"] >= due and losses:
                due = entry["version"] + EVERY
                loss = median(fmean(each) for each in losses.values())
                losses.clear()
                first = first or loss
                target = min(workers, round(wanted(began, workers, first / loss)))
                if target > k:
                    k = target
                    yield k, f"the loss is {loss:.3g}, and was {first:.3g}"


if __name__ == "__main__":
    run = Path(sys.argv[1])
    with (run / "decisions.jsonl").open() as log:
        for k, why in changes(log):
            subprocess.run(
                ["ps-lab", "policy", run, "--set", f"policy.aggregate={k}", "--why", why], check=True
            )
