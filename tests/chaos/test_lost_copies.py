"""``ps-lab chaos`` on a job with replicas: any of its processes is killed, or stands still, and nobody goes back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pslab.chaos.campaign import Disturbance, Kind, Progress
from pslab.chaos.copies import CopiesCampaign
from pslab.runs.folder import Run
from tests.cluster.cluster import ROOT, entries_of
from tests.engines.test_own_files import certified
from tests.forking import popen
from tests.repetitions import FIRST_SEED, SOAK, usually
from tests.replay.command import ps_lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600 if SOAK else 600)]

# By which the first four disturbances come to four roles.
SEED, STRIKES = 152, 4
SERVERS = ("leader", "follower", "voter")


@pytest.fixture(autouse=True, scope="module")
def forks() -> Iterator[None]:
    """Also in a soak, which is for kills."""
    with popen.forking(in_soak=True):
        yield


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def disturbed(folder: Path, seed: int, strikes: int, *options: str) -> list[dict[str, Any]]:
    """A run that is disturbed so often; what the report says of it. Everything is as promised."""
    chosen = [
        "--out",
        str(folder),
        "--runs",
        "1",
        "--kills",
        str(strikes),
        "--every",
        "8",
        "--seed",
        str(seed),
    ]
    done = ps_lab("chaos", Path(__file__).with_name("replicas.toml"), *chosen, "--json", *options)
    (told,) = json.loads(done.out.splitlines()[-1])["rounds"]
    assert told["problems"] == [] and done.code == 0, (told["problems"], done.err)
    assert told["versions_undone"] == told["batches_computed_again"] == 0
    run = Run(folder / "run-1")
    struck = {each["name"] for each in told["disturbances"]}
    for rank, worker in enumerate(("w0", "w1")):
        commits = [entry for entry in entries_of(run, "commit") if entry["worker"] == worker]
        assert sorted(entry["batch"] for entry in commits) == list(range(len(commits))) and commits
        if f"worker-{rank}" not in struck:
            said = (run.path / "logs" / f"worker-{rank}.log").read_text().splitlines()
            (finished,) = (json.loads(line) for line in said if '"event": "finished"' in line)
            assert finished["computed"] == len(commits), "a batch was computed twice"
    return list(told["disturbances"])


@pytest.mark.parametrize(("kind", "tls"), [("kill", False), ("stop", False), ("kill", True)])
def test_a_process_of_each_role_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, tls: bool
) -> None:
    end_of_data, see = tmp_path / "end-of-data", CopiesCampaign.see

    def watched(
        campaign: CopiesCampaign, now: float, seen: Progress | None, more: bool = True
    ) -> Disturbance | None:
        due = see(campaign, now, seen, more)
        if sum(each.seconds is not None for each in campaign.outcomes) == STRIKES:
            end_of_data.touch()
        return due

    monkeypatch.setattr(CopiesCampaign, "see", watched)
    arguments = json.dumps(["--seconds", "0.02", "--until", str(end_of_data)])
    options = ["--no-reference", "--kind", kind, "--set", "policy.name=async"]
    options += ["--set", f"job.arguments={arguments}"]
    if tls:
        hosts = ",".join(["localhost"] * 3)
        files = certified(tmp_path / "certs", "--servers", hosts, "--workers", "2")
        options += [word for key, path in files.items() for word in ("--set", f"security.{key}={path}")]
    struck = disturbed(tmp_path / "out", SEED, STRIKES, *options)
    assert [each["kind"] for each in struck] == [kind] * STRIKES
    assert {each["role"] for each in struck} == {"worker", *SERVERS}
    assert all(each["seconds_to_next_version"] > 0 for each in struck)


@pytest.mark.parametrize("policy", usually(["sync"], ["async", "ssp", "fedbuff-timeout", "dssp"]))
def test_servers_are_lost_one_after_the_other(tmp_path: Path, policy: str) -> None:
    """With sync the weights are those of an undisturbed run. A soak loses workers, too, in half of the runs."""
    strikes, batches = (12, 1500) if SOAK else (2, 200)
    arguments = json.dumps(["--batches", str(batches), "--seconds", "0.02"])
    options = ["--set", f"policy.name={policy}", "--set", f"job.arguments={arguments}"]
    if policy != "sync":
        options += ["--no-reference"]
    if policy == "sync" or FIRST_SEED % 2:
        options += [f"--role={role}" for role in SERVERS]
    struck = disturbed(tmp_path / "out", FIRST_SEED % 2**31, strikes, *options)
    print(f"{policy}: {len(struck)} disturbances")
    print([(each["role"], each["kind"], each["seconds_to_next_version"]) for each in struck])
