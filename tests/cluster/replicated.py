"""Verbs for jobs with replicas whose servers a test starts itself."""

import json
from pathlib import Path

from pslab.launch.status_client import StatusClient, StatusError
from tests.cluster.cluster import Cluster, entries_of, wait_until

BATCHES, GATE = 16, 8
# A job in which two servers die has a second gate, and as many batches behind it.
LATER, MORE = 16, 24
SAVING = "--checkpoint-every", "3 versions"


def options(cluster: Cluster, policy: str, *knobs: str) -> tuple[str, ...]:
    chosen = ("--workers", "2", "--policy", policy, "--optimizer", "adam", "--out", str(cluster.out))
    return chosen + tuple(f"--set=policy.{knob}" for knob in knobs)


def start(
    cluster: Cluster,
    policy: str,
    *knobs: str,
    replicas: int = 2,
    servers: int = 3,
    batches: int = BATCHES,
    elements: int = 1000,
    timeout: float = 60.0,
    more: tuple[str, ...] = (),
    worker: tuple[str, ...] = (),
) -> None:
    """Two workers, which stand still before their step number `GATE` until there is the file `gate`, and before number
    `LATER` until there is `later`. `worker`: their options."""
    cluster.start_servers(
        servers if replicas == 2 else 1,
        timeout=timeout,
        every=(*options(cluster, policy, *knobs), "--replicas", str(replicas), *more),
    )
    gates = (
        "--gate",
        str(GATE),
        str(cluster.folder / "gate"),
        "--gate",
        str(LATER),
        str(cluster.folder / "later"),
    )
    for rank in range(2):
        sized = "--batches", str(batches), "--elements", str(elements), *worker
        cluster.start_worker("--task-index", str(rank), *sized, *gates)


def killed_and_started_again(cluster: Cluster, number: int, policy: str, *more: str) -> None:
    """Kill a server, and start it once the other one that has a copy knows."""
    cluster.servers[number].kill()
    wait_state(cluster, 1 - number, number, "lost")
    start_again(cluster, number, policy, *more)


def command(cluster: Cluster, number: int, policy: str, *more: str) -> tuple[str, ...]:
    """With which a server was started; of options that come twice the later counts."""
    where = ("--ps-hosts", cluster.hosts, "--task-index", str(number), "--worker-timeout", "60.0")
    return ("-m", "psserver", *where, *options(cluster, policy), "--replicas", "2", "--json", *more)


def start_again(cluster: Cluster, number: int, policy: str, *more: str) -> None:
    """Start a server that was killed, with its command of before."""
    cluster.servers[number].close()
    cluster.servers[number] = cluster.launch(
        f"server-{number}-again", *command(cluster, number, policy, *more)
    )


def wait_state(cluster: Cluster, leader: int, number: int, state: str) -> None:
    """Until the server that leads says so of another one."""
    client = StatusClient(cluster.addresses[leader])

    def found() -> bool:
        try:
            return client.ask().servers[number].state == state
        except StatusError:
            return False

    try:
        wait_until(found, f"server {number} {state}")
    finally:
        client.close()


def wait_for_the_gate(cluster: Cluster, versions: int) -> None:
    cluster.wait_for(
        lambda status: status.version == versions and all(w.state == "computing" for w in status.workers),
        "both workers at the gate",
    )


def sha256(cluster: Cluster) -> str:
    found = json.loads((cluster.out / "summary.json").read_text())
    assert found["success"] and found["versions"] == len(entries_of(cluster.checked_run(), "apply"))
    return str(found["weights_sha256"])


def open_gates(cluster: Cluster, *names: str) -> None:
    for name in names or ("gate", "later"):
        (cluster.folder / name).touch()


def end(cluster: Cluster, lost: int | None = None) -> None:
    """Everybody but a lost server ends well."""
    open_gates(cluster)
    assert [worker.wait_exit() for worker in cluster.workers] == [0, 0], cluster.workers[0].errors
    left = [server for number, server in enumerate(cluster.servers) if number != lost]
    assert [server.wait_exit() for server in left] == [0] * len(left), [server.errors for server in left]


def committed_once(cluster: Cluster, batches: int = BATCHES) -> None:
    """Each batch of each worker counts once, and was worked on once."""
    run = cluster.checked_run()
    commits = [(entry["worker"], entry["batch"]) for entry in entries_of(run, "commit") if entry["samples"]]
    assert sorted(commits) == [(f"w{rank}", batch) for rank in range(2) for batch in range(batches)]
    assert not entries_of(run, "restore")
    for worker in cluster.workers:
        assert worker.wait_event("finished")["computed"] == batches


def undisturbed(folder: Path, elements: int, batches: int) -> str:
    """The digest of the weights that one server makes alone."""
    folder.mkdir()
    with Cluster(folder) as cluster:
        open_gates(cluster)
        start(cluster, "sync", replicas=1, batches=batches, elements=elements)
        cluster.wait_end()
        return sha256(cluster)


def saved(out: Path) -> list[int]:
    """The versions of all complete checkpoints."""
    found = (json.loads(file.read_text()) for file in out.glob("checkpoints/*/manifest.json"))
    return sorted(each["manifest"]["version"] for each in found)
