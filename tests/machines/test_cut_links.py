"""A cable that is pulled and put back, and a data port that a firewall drops, change no bits, whatever the codec."""

import threading
from pathlib import Path

import pytest

from pslab.runs.folder import Run
from psworker import loop
from tests.cluster.cluster import PATIENCE, entries_of, wait_until
from tests.cluster.numpy_worker import Hold, Trainer, initial_values
from tests.links import connect_link
from tests.machines.machines import Machines
from tests.machines.test_machines import WORKER, ended, start_server
from tests.promises import promise
from tests.repetitions import usually
from tests.service.serving import serving

pytestmark = [pytest.mark.nightly, pytest.mark.cluster]

ELEMENTS, BATCHES = 40_000, 12
# Seconds without a cable. Nobody is given up within them: a worker has `TIMEOUT` of them.
TIMEOUT = 1.5
CUTS = usually([2.0], [5.0, 60.0])
# Steps at which workers wait for the cable to be pulled, and for the firewall.
STEPS = (4, 8)
WIRES = usually(["top-k/int4"], ["float32", "int8/int8", "int4/int4", "top-k/top-k"])


def undisturbed(folder: Path, wire: str) -> str:
    """The digest of the same job in one process."""

    def work(index: int) -> None:
        trainer = Trainer(Hold("", -1), lambda number: number < BATCHES, 0.0, False)
        start = initial_values(ELEMENTS, wire)
        with connect_link(hosts, start, task_index=index, wire_dtype=wire, transport="socket") as session:
            loop.train(session, trainer, 1, lambda *_: None)

    with serving(workers=2, policy="sync", out=folder, overrides=["optimizer.learning_rate=0.3"]) as cluster:
        hosts = cluster.hosts
        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return str(Run(folder).summary.weights_sha256)


def wait_version(folder: Path, version: int) -> None:
    """Until the log has it: every worker then waits at its gate."""
    log = folder / "run" / "decisions.jsonl"
    made = f'"kind":"apply","version":{version},'
    wait_until(lambda: log.exists() and made in log.read_text(encoding="utf-8"), f"version {version}")


@promise("Cut links and dropped data ports change no bits.")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds", CUTS)
@pytest.mark.parametrize("wire", WIRES)
def test_a_cut_and_a_dropped_port_change_no_bits(
    wire: str, seconds: float, two: Machines, tmp_path: Path
) -> None:
    """w1's cable is out when it sends; later a firewall drops what its socket receives, and it goes on over gRPC."""
    here = two[0].address
    server, address = start_server(
        two[0],
        tmp_path,
        *("--bind", here, "--insecure", "--ps-hosts", f"{here}:0", "--workers", "2", "--policy", "sync"),
        *("--learning-rate", "0.3", "--worker-timeout", str(TIMEOUT * seconds + 3)),
    )
    gates = [tmp_path / "cut", tmp_path / "dropped"]
    common = (*WORKER, "--ps-hosts", address, "--wire-dtype", wire, "--elements", str(ELEMENTS))
    common += ("--batches", str(BATCHES), "--server-timeout", str(2 * seconds + PATIENCE))
    for step, gate in zip(STEPS, gates, strict=True):
        common += ("--gate", str(step), str(gate))
    workers = [
        two[index].python(f"w{index}", tmp_path / f"{index}.log", *common, "--task-index", str(index))
        for index in range(2)
    ]
    wait_version(tmp_path, STEPS[0])
    two.cut(1)
    gates[0].touch()
    # Not to wait for anything: this is how long the cable is out.
    threading.Event().wait(seconds)
    two.mend(1)
    wait_version(tmp_path, STEPS[1])
    two.drop(0, int(server.errors.partition("payloads on port ")[2].split()[0]))
    gates[1].touch()
    # It is noticed within two pings, of which there are three within a worker's timeout.
    wait_until(lambda: "a socket is not available" in workers[1].errors, "w1 to notice", PATIENCE + seconds)
    run = ended(tmp_path, server, *workers)
    for worker in ("w0", "w1"):
        assert run.summary.contributions[worker].applied == BATCHES
    assert len(entries_of(run, "join")) == 2
    assert run.summary.weights_sha256 == undisturbed(tmp_path / "undisturbed", wire)
