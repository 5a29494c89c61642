"""Decide, write, tell: wherever one of the three fails, the job ends with a sentence and its log has no gap."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from psserver.coordinator.ledger import Ledger
from psserver.coordinator.outputs import Record
from psserver.service.job import log_file
from psserver.service.job.log_file import JsonLines, LogError
from psserver.service.job.outbox import Outboxes
from psserver.service.job.routes import Routes
from psserver.service.life import job_loop
from psserver.weights_file import load
from pswire.exits import ExitCode
from pswire.v1 import coordinator_pb2 as pb
from tests.promises import promise
from tests.service.peer import Peer, Stream
from tests.service.serving import VARIABLES, Cluster, serving

FULL = OSError(28, "No space left on device")
# The kinds of entries, by a policy under which the scenario below makes them.
KINDS = {
    "job": "async",
    "join": "async",
    "start": "async",
    "initialise": "async",
    "install": "async",
    "grant": "async",
    "commit": "async",
    "fold": "sync",
    "apply": "async",
    "nonfinite": "too large",
    "drop": "bounded",
    "cancel": "sync with a backup",
    "abandon": "async",
    "lost": "async",
    "back": "async",
    "leave": "async",
    "done": "async",
    "stop": "async",
}
ONES = [np.ones(spec.shape, np.float32) for spec in VARIABLES]
POLICIES = {
    "async": ("async", []),
    "sync": ("sync", []),
    "bounded": ("bounded", ["policy.max_staleness=0", "policy.aggregate=1"]),
    "sync with a backup": ("sync", ["policy.backup=1"]),
    "too large": ("async", ["optimizer.name=adam"]),
}


@pytest.fixture(autouse=True)
def short_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers below do not leave when a job stops."""
    monkeypatch.setattr(job_loop, "LEAVING", 0.1)


def log_of(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "decisions.jsonl").read_text(encoding="utf-8")
    assert text == "" or text.endswith("\n")
    entries = [json.loads(line) for line in text.splitlines()]
    assert [entry["i"] for entry in entries] == list(range(len(entries)))
    return entries


def play(cluster: Cluster, policy: str, *, stays: bool = False) -> None:
    """Two workers: steps, a late gradient, an abandoned ticket, a broken session; one leaves, one is done.

    Under "too large" the last gradient is so large that adam's square of it is infinite.
    `stays`: that one's session stands when the job stops.
    """
    last = [array * 1e25 for array in ONES] if policy == "too large" else ONES
    one, two = Peer(cluster, "one"), Peer(cluster, "two")
    one.send(ready=pb.Ready())
    first = one.receive("grant")
    assert first.initialise
    one.commit(first.ticket, one.push(first, ONES))
    # The job starts when both are ready.
    two.send(ready=pb.Ready())
    one.ready()
    two.grant = two.receive("grant")
    for peer, gradient in ((one, ONES), (two, ONES), (one, last)):
        grant = peer.ready()
        peer.grant = None
        # Refused where the policy has cancelled the ticket.
        with suppress(grpc.RpcError):
            peer.commit(grant.ticket, peer.push(grant, gradient))
    two.send(abandon=pb.Abandon(ticket=two.ready().ticket, reason="test"))
    two.stream.close()
    two.stream = Stream(cluster, two.hello())
    # Both streams end here: what was said on them is taken when the job is looked at.
    two.leave()
    one.send(done=pb.Done())
    if not stays:
        one.stream.close()


# What a policy decides.
DECIDED = ("grant", "fold", "apply", "drop", "cancel")
# An entry fails as it is made, as it is written, or as a worker is told of it; "metric": its line in metrics.jsonl.
CASES = [
    *((kind, "write") for kind in KINDS),
    *((kind, "record") for kind in (*DECIDED, "join", "stop")),
    *((kind, "post") for kind in ("grant", "apply")),
    ("apply", "metric"),
]


@promise(
    "A failed write ends the job with a sentence and exit code 11; the log has no gap, and nobody waits in "
    "silence."
)
@pytest.mark.parametrize(("kind", "where"), CASES)
def test_a_failure_anywhere_ends_the_job_with_a_log_without_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, where: str
) -> None:
    reached = inject(monkeypatch, kind, where)
    out = tmp_path / "run"
    name, knobs = POLICIES[KINDS[kind]]
    with serving(1, workers=2, policy=name, overrides=knobs, out=out) as cluster:
        # What a worker sees of a job that ends in the middle is not the point here.
        with suppress(Exception):
            play(cluster, KINDS[kind], stays=kind == "stop")
        server = cluster.servers[0]
        if reached:
            # The server's end waits for calls, but not for those of a client that has gone.
            cluster.close()
        # Of a job that was stopped in order, workers take their leave; these do not.
        if kind == "stop" or not reached or (where == "record" and kind in DECIDED):
            server.interrupt()
        code = server.ended()
    assert reached, f"the scenario made no {kind}"
    if where == "record" and kind in DECIDED:
        # Whatever fails while a policy's decision is carried out ends the job as the policy's failure, in the log too.
        assert code == ExitCode.JOB_FAILED
        assert kind not in [entry["kind"] for entry in log_of(out)] or kind in ("drop", "cancel")
        assert check_run(Run(out)).ok
        return
    storage = where in ("write", "metric")
    assert code == (ExitCode.STORAGE if storage else ExitCode.INTERNAL)
    kinds = [entry["kind"] for entry in log_of(out)]
    if where in ("record", "write"):
        assert kind not in kinds, "an entry that the writer did not take stands in the log"
    else:
        assert kind in kinds, "what may have been sent does not stand in the log"
    assert not (out / "summary.json").exists()


def is_metric(_: object, line: Callable[[], str]) -> bool:
    return '"kind":"train"' in line()


def inject(patch: pytest.MonkeyPatch, kind: str, where: str) -> list[str]:
    """The first entry of `kind` fails at `where`. What is returned is filled when that happened."""
    reached: list[str] = []

    def failing(function: Any, wanted: Callable[..., bool], error: Exception) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not reached and wanted(*args):
                reached.append(where)
                raise error
            return function(*args, **kwargs)

        return call

    bug = RuntimeError("planted")
    match where:
        case "record":

            def made(_: Ledger, entry: Any, now: float) -> bool:
                return bool(entry.kind == kind)

            patch.setattr(Ledger, "record", failing(Ledger.record, made, bug))
        case "metric":
            patch.setattr(JsonLines, "take", failing(JsonLines.take, is_metric, LogError("planted")))
        case "write":
            # Every line goes to the file at once, so that the write of this one fails.
            patch.setattr(log_file, "BUFFERED", 1)
            ours = f'"kind":"{kind}"'.encode()
            patch.setattr(log_file.os, "write", failing(os.write, lambda _, data: ours in data, FULL))
        case "post":
            now_sent = sending(patch, kind)
            patch.setattr(Outboxes, "post", failing(Outboxes.post, lambda *_: bool(now_sent), bug))
    return reached


def sending(patch: pytest.MonkeyPatch, kind: str) -> list[str]:
    """Filled while outputs are sent that have an entry of `kind`."""
    now_sent: list[str] = []
    written: list[str] = []
    write, send = Routes.write, Routes.send

    def wrote(self: Routes, outputs: list[Any]) -> Any:
        written[:] = [o.entry.kind for o in outputs if isinstance(o, Record) and o.entry.kind == kind]
        return write(self, outputs)

    def sent(self: Routes, *arguments: Any) -> None:
        now_sent.extend(written)
        try:
            send(self, *arguments)
        finally:
            now_sent.clear()

    patch.setattr(Routes, "write", wrote)
    patch.setattr(Routes, "send", sent)
    return now_sent


def test_the_last_told_version_is_written_when_the_log_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with serving(1, workers=1, out=out) as cluster:
        peer = Peer(cluster, "a")
        peer.step(value=0.25)
        monkeypatch.setattr(
            JsonLines, "take", lambda self, line: (_ for _ in ()).throw(LogError("the disk is gone"))
        )
        peer.send(ready=pb.Ready())
        assert peer.receive("stop").reason == "the disk is gone"
        assert cluster.servers[0].ended() == ExitCode.STORAGE
    arrays = load(out / "weights.safetensors").arrays
    assert np.array_equal(arrays["dense/bias"], np.full(4, 0.75, np.float32))
