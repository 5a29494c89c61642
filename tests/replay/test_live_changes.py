"""Real processes whose policy somebody changes five times while they train: `ps-lab check` finds nothing, and
`ps-lab replay` comes to the same bits. 20 runs in a soak (`scripts/soak changes`)."""

import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from pslab.launch.status_client import ChangeRefused, StatusClient
from pslab.runs.folder import Run, secret_of
from psserver.decisions import entries
from pswire.security.credentials import Credentials
from tests.cluster.cluster import wait_until
from tests.promises import promise
from tests.repetitions import seeds
from tests.replay.test_killed_runs import ended, lab

pytestmark = [pytest.mark.cluster, pytest.mark.tensorflow, pytest.mark.timeout(600)]

CHANGES, EVERY = 5, 8
EXPERIMENT = """
[run]
seed = 8
deterministic = true
[cluster]
servers = 2
workers = 3
[policy]
name = "sync"
[optimizer]
name = "momentum"
learning_rate = 0.01
[job]
module = "tests/replay/gated_line.py:GatedLine"
options = { marks = "MARKS" }
"""
# In each run two of the first, whose timers fire, and three of all.
TIMED: tuple[tuple[str, Mapping[str, object]], ...] = (
    ("deadline-sync", {"grace": 0.001, "share": 0.0, "budget": 1.0, "patience": 0}),
    ("deadline-sync", {"rule": "pace", "least": 0.001, "most": 0.05}),
    ("fedbuff-timeout", {"aggregate": 1000, "timeout": 0.002}),
)
SHELF: tuple[tuple[str, Mapping[str, object]], ...] = (
    *TIMED,
    ("sync", {}),
    ("sync", {"backup": 1}),
    ("async", {}),
    ("ssp", {"slack": 1}),
    ("dssp", {"lower": 0, "upper": 2}),
    ("bounded", {"max_staleness": 1}),
    ("bounded", {"max_staleness": 1, "on_stale": "block"}),
    ("bounded", {"aggregate": 2, "max_staleness": 0, "on_stale": "downweight"}),
    ("k-sync", {"aggregate": 2}),
    ("k-async", {"aggregate": 2}),
    ("k-batch-async", {"aggregate": 4}),
    ("rennala", {"aggregate": 3}),
    ("softsync", {"n": 2}),
    ("fedbuff", {"aggregate": 2}),
    ("delay-adaptive", {"concurrency": 1}),
    ("ringmaster", {"threshold": 2, "stops": True}),
    ("dbw", {"noise": 1.0}),
)


def drawn(dice: random.Random) -> list[tuple[str, Mapping[str, object]]]:
    """Policies that take over one after the other, none of them from itself."""
    chosen = [*dice.sample(TIMED, 2), *dice.choices(SHELF, k=CHANGES - 2)]
    while any(one == other for one, other in zip([("sync", {}), *chosen], chosen, strict=False)):
        dice.shuffle(chosen)
        chosen[dice.randrange(2, CHANGES)] = dice.choice(SHELF)
    return chosen


@promise("A run with five changes of policy replays to the bit.")
@pytest.mark.parametrize("seed", list(seeds(1, soak=20)))
def test_a_run_with_five_live_changes(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    out, marks, file = tmp_path / "run", tmp_path / "marks", tmp_path / "experiment.toml"
    marks.mkdir()
    file.write_text(EXPERIMENT.replace("MARKS", str(marks)))
    policies = drawn(dice)
    with lab("run", file, "--out", out, "--quiet") as launcher:
        wait_until((out / "address").is_file, "a server is ready")
        credentials = Credentials(job_secret=secret_of(out))
        client = StatusClient((out / "address").read_text().split()[0], credentials=credentials)
        for number, (name, knobs) in enumerate(policies, start=1):
            # The fastest worker goes on to the gate, so it comes by; what others do meanwhile is chance.
            batch = EVERY * (number - 1) + dice.randrange(1, EVERY)
            wait_until((marks / f"batch-{batch}").is_file, f"a worker comes to batch {batch}")

            def changed(name: str = name, knobs: Mapping[str, object] = knobs, number: int = number) -> bool:
                try:
                    return bool(client.change_policy(name, knobs, f"number {number}"))
                except ChangeRefused as refusal:
                    # The change before waits for an update.
                    assert "waits" in str(refusal), refusal
                    return False

            wait_until(changed, f"{name} may take over")
            (marks / f"gate-{number}").touch()
        client.close()
        ended(launcher)
    run = Run(out)
    with lab("check", out) as process:
        ended(process)
    found = [entry.fact for entry in run.decisions()]
    changes = [fact for fact in found if isinstance(fact, entries.Policy)]
    assert [change.policy["name"] for change in changes] == [name for name, _ in policies]
    assert [change.why for change in changes] == [f"number {n}" for n in range(1, CHANGES + 1)]
    timers = sum(isinstance(fact, entries.Timer) for fact in found)
    with lab("replay", out, "--json") as process:
        replayed = json.loads(ended(process))
    assert replayed["equal"] is True and replayed["first_difference"] is None
    assert replayed["weights_sha256"] == run.summary.weights_sha256 is not None
    print(f"seed {seed}: {', '.join(name for name, _ in policies)}: {timers} timers, {len(found)} entries")
