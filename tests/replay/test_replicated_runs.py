"""Real processes whose leading server is killed between changes of the policy: with replicas nothing is rolled back,
`ps-lab check` finds nothing, and `ps-lab replay` comes to the same bits."""

import json
import signal
from pathlib import Path

import pytest

from pslab.launch.status_client import ChangeRefused, StatusClient, StatusError
from pslab.runs.folder import Run, secret_of
from pswire.decisions import entries
from pswire.security.credentials import Credentials
from tests.cluster.cluster import wait_until
from tests.cluster.launched import servers
from tests.cluster.replicated_run import whole
from tests.replay.test_killed_runs import ended, lab

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.tensorflow, pytest.mark.timeout(600)]

EVERY = 8
EXPERIMENT = """
[run]
seed = 8
deterministic = true
[cluster]
servers = 3
workers = 3
worker_timeout = 60.0
replicas = 2
[policy]
POLICY
[optimizer]
name = "momentum"
learning_rate = 0.01
[job]
module = "tests/replay/gated_line.py:GatedLine"
options = { marks = "MARKS", gates = 3 }
"""


def changed(out: Path, name: str) -> bool:
    """Whether the server that leads let that policy take over, now."""
    credentials = Credentials(job_secret=secret_of(out))
    client = StatusClient((out / "address").read_text().split()[0], credentials=credentials)
    try:
        return bool(client.change_policy(name, {}, "a change"))
    except ChangeRefused as refusal:
        # The change before waits for an update.
        assert "waits" in str(refusal), refusal
        return False
    except StatusError:
        return False
    finally:
        client.close()


@pytest.mark.parametrize(
    ("policy", "change"),
    [
        ('name = "sync"', "ssp"),
        ('name = "easgd"', ""),
        ('name = "k-sync"\naggregate = 2\n[policy.adapt]\nname = "noise-scale"', ""),
    ],
    ids=lambda text: str(text).split('"')[1] if '"' in str(text) else str(text),
)
def test_the_leading_server_is_killed_twice(tmp_path: Path, policy: str, change: str) -> None:
    out, marks, file = tmp_path / "run", tmp_path / "marks", tmp_path / "experiment.toml"
    marks.mkdir()
    file.write_text(EXPERIMENT.replace("MARKS", str(marks)).replace("POLICY", policy))
    with lab("run", file, "--out", out, "--quiet") as launcher:
        for number in (1, 2, 3):
            batch = EVERY * (number - 1) + 1
            wait_until((marks / f"batch-{batch}").is_file, f"a worker comes to batch {batch}")
            if number == 2 and change:
                wait_until(lambda: changed(out, change), f"{change} may take over")
            if number != 3:
                wait_until(lambda: whole(out, 0), "two copies")
                servers(launcher.pid, out / "decisions.jsonl")[0].send_signal(signal.SIGKILL)
            (marks / f"gate-{number}").touch()
        ended(launcher)
    found = replays(out)
    assert len(list(out.glob("decisions.before-epoch-*.jsonl"))) == 2
    if change:
        assert [fact for fact in found if isinstance(fact, entries.Policy)]


def replays(out: Path) -> list[entries.Entry]:
    """The entries of the run, which `ps-lab check` and `replay` find to be right."""
    run = Run(out)
    with lab("check", out) as process:
        ended(process)
    with lab("replay", out, "--json") as process:
        replayed = json.loads(ended(process))
    assert replayed["equal"] is True and replayed["first_difference"] is None
    assert replayed["weights_sha256"] == run.summary.weights_sha256 is not None
    found = [entry.fact for entry in run.decisions()]
    assert not [fact for fact in found if isinstance(fact, entries.Restore)]
    return found
