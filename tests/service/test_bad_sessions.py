"""Joins, hellos, commits and reports that make no sense: refused in words, and nobody else notices."""

import json
import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from psserver.service.job import outbox as outbox_module
from pswire.messages import specs_to_wire
from pswire.model.plan import VariableSpec, make_plan
from pswire.model.variables import MAX_DIMENSIONS
from pswire.transport.connecting import stub_of
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import model_pb2
from tests.sentences import Recorder
from tests.service.conftest import Steady, Unharmed
from tests.service.peer import Peer, join_request
from tests.service.serving import PATIENCE, VARIABLES, Cluster, refused, serving, wait_until

KINDS = "ready, abandon, done, leave, report, extent or carriers"
INVALID = grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION

PLAN = make_plan(VARIABLES, 2)


def specs(*variables: VariableSpec) -> list[model_pb2.VariableSpec]:
    return specs_to_wire(variables)


# Join

JOINS: dict[str, tuple[dict[str, Any], grpc.StatusCode, list[str]]] = {
    "another number of servers": (
        {"servers": 3},
        PRECONDITION,
        ["expected a worker of 2 servers, got one of 3", "--ps-hosts"],
    ),
    "another plan": (
        {"plan": "0123"},
        PRECONDITION,
        [f"plan fingerprint: expected {PLAN.fingerprint}", "got '0123'"],
    ),
    "another model": (
        {
            "variables": specs(VariableSpec("dense/kernel", (7, 4)), *VARIABLES[1:]),
            "plan": make_plan([VariableSpec("dense/kernel", (7, 4)), *VARIABLES[1:]], 2).fingerprint,
        },
        PRECONDITION,
        [
            "trains another model: variable 0: expected 'dense/kernel' float32[6, 4]",
            "got 'dense/kernel' float32[7, 4]",
        ],
    ),
    "another model with this one's fingerprint": (
        {"variables": specs(VariableSpec("other", (1,))), "plan": PLAN.fingerprint},
        PRECONDITION,
        ["plan fingerprint"],
    ),
    "no variables": ({"variables": []}, INVALID, ["expected at least one variable, got none"]),
    "a name twice": (
        {"variables": specs(VARIABLES[0], VARIABLES[0])},
        INVALID,
        ["variable 'dense/kernel': two variables have this name"],
    ),
    "an immense model": (
        {"variables": [model_pb2.VariableSpec(name="w", shape=[2**39, 2**39], dtype="float32", kind=1)]},
        INVALID,
        ["expected at most 2**40 elements in all"],
    ),
    "a shape whose product alone would take half a minute": (
        {"variables": [model_pb2.VariableSpec(name="w", shape=[2**40] * 100_000, dtype="float32", kind=1)]},
        INVALID,
        [f"expected at most {MAX_DIMENSIONS} dimensions of all variables together, got 100000"],
    ),
    "a name with a line break": (
        {"worker": "w\n"},
        INVALID,
        ["JoinRequest.worker: expected printable characters, got 'w\\n'"],
    ),
    "a task index that is taken": (
        {"worker": "other", "task_index": 0},
        PRECONDITION,
        ["task index 0 belongs to worker 'steady'", "'other' needs another one"],
    ),
}


@pytest.mark.parametrize(("changed", "code", "words"), JOINS.values(), ids=JOINS)
def test_a_join_that_is_refused(
    cluster: Cluster, unharmed: Unharmed, changed: dict[str, Any], code: grpc.StatusCode, words: list[str]
) -> None:
    if "variables" in changed:
        # With the fingerprint of the job's own plan they would not be read.
        changed = {"plan": "0123", **changed}
    with unharmed(), refused(code, *words):
        cluster.coordinator.Join(join_request(PLAN, **changed), timeout=PATIENCE)


# Hello

HELLOS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "another job": ({"job": "other"}, ["expected job", "got 'other'", "join again"]),
    "an unknown worker": ({"worker": "nobody"}, ["worker 'nobody', incarnation 0, is not a member"]),
    "another process's session": ({"session": "guessed"}, ["is not a member", "join again"]),
}


@pytest.mark.parametrize("whose", ["peer", "steady"])
@pytest.mark.parametrize(("changed", "words"), HELLOS.values(), ids=HELLOS)
def test_a_hello_that_is_refused(
    cluster: Cluster, peer: Peer, unharmed: Unharmed, whose: str, changed: dict[str, Any], words: list[str]
) -> None:
    """The worker with that name goes on undisturbed: nothing is taken from its session."""
    hello = pb.Hello(
        job=peer.job, worker=whose, incarnation=0, session=peer.token if whose == "peer" else "?"
    )
    hello.MergeFrom(pb.Hello(**changed))
    requests = [pb.SessionRequest(hello=hello), pb.SessionRequest(leave=pb.Leave(reason="not mine to say"))]
    with unharmed(), refused(PRECONDITION, *words):
        list(cluster.coordinator.Session(iter(requests), timeout=PATIENCE))
    assert peer.stream.ending is None


@pytest.mark.parametrize(
    "requests",
    [[], [pb.SessionRequest(ready=pb.Ready())], [pb.SessionRequest()]],
    ids=["none", "ready", "empty"],
)
def test_a_session_begins_with_hello(
    cluster: Cluster, unharmed: Unharmed, requests: list[pb.SessionRequest]
) -> None:
    with unharmed(), refused(INVALID, "expected a SessionRequest with hello first"):
        list(cluster.coordinator.Session(iter(requests), timeout=PATIENCE))


# Messages


def hear_refusal(peer: Peer, *words: str) -> None:
    refusal = peer.receive("refusal")
    assert not refusal.fatal
    for word in words:
        assert word in refusal.message, refusal.message


def good_receipts(peer: Peer) -> list[bytes]:
    grant = peer.ready()
    return peer.push(grant, [np.zeros(spec.shape, np.float32) for spec in VARIABLES])


def test_a_commit_needs_the_receipts_of_its_own_pushes(
    cluster: Cluster, peer: Peer, steady: Steady, unharmed: Unharmed
) -> None:
    ticket = peer.ready().ticket
    good = good_receipts(peer)
    with Peer(cluster, "generous") as other:
        lent = good_receipts(other)
    for receipts, missing in (
        ([], "server 0, 1"),
        (good[:1], "server 1"),
        (good[::-1], "server 0, 1"),
        ([good[0], good[0]], "server 1"),
        ([b"", b""], "server 0, 1"),
        ([bytes(16), bytes(64)], "server 0, 1"),
        (lent, "server 0, 1"),
    ):
        with unharmed(), pytest.raises(grpc.RpcError) as error:
            peer.commit(ticket, receipts)
        said = error.value.details()
        assert said.startswith(f"commit of ticket {ticket}: expected a receipt from every server's Push")
        assert said.endswith(missing)


def test_a_commit_beyond_its_bounds(peer: Peer, unharmed: Unharmed) -> None:
    ticket = peer.ready().ticket
    with unharmed(), refused(INVALID, "Commit.receipts: expected at most 64 bytes, got 100000"):
        peer.commit(ticket, [bytes(16), bytes(10**5)])


def test_a_loss_that_is_no_number(cluster: Cluster, steady: Steady) -> None:
    """Not an error: training may diverge, and says so in the log. The job's own loss stays a number."""
    with Peer(cluster, "diverged") as other:
        for loss in (math.nan, math.inf, -math.inf):
            grant = other.ready()
            other.commit(grant.ticket, good_receipts(other), loss=loss)
            other.grant = None
            assert other.settled().fate == pb.Disposition.FATE_APPLIED
    steady.step()
    assert math.isfinite(cluster.status().loss)


def test_a_message_with_nothing_in_it(peer: Peer, unharmed: Unharmed) -> None:
    with unharmed():
        peer.send()
        hear_refusal(peer, f"expected {KINDS}, got nothing")
    with unharmed():
        peer.send(hello=peer.hello())
        hear_refusal(peer, f"expected {KINDS}, got hello")


def test_worker_0_reports_while_the_job_goes_on(tmp_path: Path) -> None:
    """Of rising versions; what comes late or twice is left out, what does not exist is refused."""
    out = tmp_path / "run"
    with serving(out=out) as cluster:
        with Peer(cluster, "a") as one:
            for version in (1, 2):
                one.step()
                for _ in range(2):
                    one.send(report=pb.Report(version=version, metrics={"loss": float(version)}))
            one.send(report=pb.Report(version=1, metrics={"loss": 9.0}))
            one.send(report=pb.Report(version=3, metrics={"loss": 9.0}))
            hear_refusal(one, "a report of version 3 by a: expected worker 0's, of versions up to 2")
            one.send(done=pb.Done())
            stop = one.receive("stop")
            assert stop.evaluate
            one.send(report=pb.Report(version=1, metrics={"loss": 9.0}))
            # The one that was asked for.
            for loss in (2.5, 9.0):
                one.send(report=pb.Report(version=stop.version, metrics={"loss": loss}))
            hear_refusal(one, "a report of version 2 by a: expected none")
        cluster.servers[0].ended()
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    evaluations = [(line["version"], line["metrics"]["loss"]) for line in lines if line["kind"] == "eval"]
    assert evaluations == [(1, 1.0), (2, 2.0), (2, 2.5)]
    assert json.loads((out / "summary.json").read_text())["metrics"] == {"loss": 2.5}


def test_what_a_worker_says_is_escaped_and_cut(caplog: pytest.LogCaptureFixture, sentences: Recorder) -> None:
    """In the log, and in what others are told."""
    caplog.set_level(logging.INFO, "ps-server")
    with serving(workers=1) as cluster:
        one = Peer(cluster, "a")
        one.step()
        one.send(abandon=pb.Abandon(ticket=one.ready().ticket, reason="\x1b]0;owned\x07" + "x" * 3000))
        told = one.receive("disposition")
        assert told.reason.isprintable() and len(told.reason) < 300
        one.send(leave=pb.Leave(reason="\x1b[2J\nERROR forged"))
        one.stream.close()
        wait_until(lambda: "a leaves:" in caplog.text, "the leave")
    (line,) = [record.getMessage() for record in caplog.records if "a leaves:" in record.getMessage()]
    sentences.check(line)


# Peers that do not read


def test_a_peer_that_never_reads_its_session_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its notices would fill the server's memory; it is lost like a broken connection, and the others go on."""
    monkeypatch.setattr(outbox_module, "OUTBOX", 50)
    # Nothing else ends its session in that time.
    with serving(policy="async", overrides=[f"cluster.worker_timeout={10 * PATIENCE}"]) as cluster:
        mute = Peer(cluster, "mute")
        mute.ready()

        def state() -> str:
            return next(w.state for w in cluster.status().workers if w.name == "mute")

        with flood(cluster, mute, pb.SessionRequest(abandon=pb.Abandon(ticket=10**9))):
            wait_until(lambda: state() == "lost", "the session that is not read to be cut")
            with Peer(cluster, "other") as other:
                assert other.step().version == 1


@contextmanager
def flood(cluster: Cluster, peer: Peer, message: pb.SessionRequest) -> Iterator[None]:
    """Say one message again and again, as fast as it is taken, and read no answer."""
    over = threading.Event()

    def requests() -> Iterator[pb.SessionRequest]:
        yield pb.SessionRequest(hello=peer.hello())
        while not over.is_set():
            yield message

    # Without probing, the window of unread answers stays at 64 KiB.
    with grpc.insecure_channel(cluster.servers[0].address, [("grpc.http2.bdp_probe", 0)]) as channel:
        call = stub_of(channel).Session(requests())
        try:
            yield
        finally:
            over.set()
            call.cancel()
