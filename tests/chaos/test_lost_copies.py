"""A job with replicas: any of its processes is killed, or stands still, and nobody goes back."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.campaign import Kind, Outcome
from tests.chaos.copies import ROLES
from tests.chaos.running import batches_of, disturbed
from tests.engines.test_own_files import certified
from tests.repetitions import FIRST_SEED, SOAK, usually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600 if SOAK else 600)]

# By which the first four disturbances come to four roles.
SEED, STRIKES = 152, 4
SERVERS = ROLES[1:]


def struck_in(folder: Path, seed: int, strikes: int, *overrides: str, **how: Any) -> list[Outcome]:
    """What a run that was disturbed so often has recovered from. No batch was computed twice by a worker that lived."""
    run, outcomes = disturbed(folder, "replicas.toml", seed, strikes, *overrides, **how)
    struck = {each.disturbance.name for each in outcomes}
    for rank, worker in enumerate(("w0", "w1")):
        committed = batches_of(run, worker)
        if f"worker-{rank}" not in struck:
            said = (run.path / "logs" / f"worker-{rank}.log").read_text().splitlines()
            (finished,) = (json.loads(line) for line in said if '"event": "finished"' in line)
            assert finished["computed"] == len(committed), "a batch was computed twice"
    return outcomes


@pytest.mark.parametrize(
    ("kind", "tls"),
    [
        ("kill", False),
        pytest.param("stop", False, marks=pytest.mark.nightly),
        pytest.param("kill", True, marks=pytest.mark.nightly),
    ],
)
def test_a_process_of_each_role_is_lost(tmp_path: Path, kind: Kind, tls: bool) -> None:
    end = tmp_path / "end-of-data"
    arguments = json.dumps(["--seconds", "0.02", "--until", str(end)])
    overrides = ["policy.name=async", f"job.arguments={arguments}"]
    if tls:
        hosts = ",".join(["localhost"] * 3)
        files = certified(tmp_path / "certs", "--servers", hosts, "--workers", "2")
        overrides += [f"security.{key}={path}" for key, path in files.items()]
    struck = struck_in(tmp_path / "run", SEED, STRIKES, *overrides, kinds=(kind,), recovered=end.touch)
    assert {each.disturbance.role for each in struck} == set(ROLES)
    assert all(each.seconds for each in struck)


@pytest.mark.nightly
@pytest.mark.parametrize("policy", usually(["sync"], ["async", "ssp", "fedbuff-timeout", "dssp"]))
def test_servers_are_lost_one_after_the_other(tmp_path: Path, policy: str) -> None:
    """With sync the weights are those of an undisturbed run. A soak loses workers, too, in half of the runs."""
    strikes, batches = (12, 1500) if SOAK else (2, 200)
    arguments = json.dumps(["--batches", str(batches), "--seconds", "0.02"])
    struck = struck_in(
        tmp_path / "run",
        FIRST_SEED % 2**31,
        strikes,
        f"policy.name={policy}",
        f"job.arguments={arguments}",
        roles=SERVERS if policy == "sync" or FIRST_SEED % 2 else ROLES,
        beside=tmp_path / "beside" if policy == "sync" else None,
    )
    print(f"{policy}: {len(struck)} disturbances")
    print([(each.disturbance.role, each.disturbance.kind, each.seconds) for each in struck])
