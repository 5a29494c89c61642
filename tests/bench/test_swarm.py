"""Light workers: their frames and their half of the protocol, what is made of the numbers, and real servers."""

import json

import psutil
import pytest

from benchmarks.swarm import report
from benchmarks.swarm.cells import Cell, Cost, Measured, Terms, bare_echo, measure
from benchmarks.swarm.links import HEAD, Frames
from benchmarks.swarm.member import ABORTED, Member
from benchmarks.swarm.swarm import model_of, quantile
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2

NBYTES = 64


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_frames_are_the_same_however_they_are_cut(size):
    sent = [(b"", 0), (b"one", 0), (b"x" * 300, 0), (b"why", 9)]
    stream = b"".join(HEAD.pack(len(message), code) + message for message, code in sent)
    frames, found = Frames(), []
    for at in range(0, len(stream), size):
        found += frames.feed(stream[at : at + size])
    assert found == sent


def test_a_frame_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="expected a frame of at most"):
        Frames().feed(HEAD.pack(2**31, 0))


def test_quantiles():
    assert quantile([], 0.5) is None
    assert quantile([1.0], 0.99) == 1.0
    assert quantile([float(n) for n in range(100)], 0.99) == 99.0


class Stage:
    """Keeps what a member says, and is its host. Time stands still until it is moved."""

    def __init__(self, servers: int) -> None:
        self.time = 0.0
        self.sent: list[tuple[int, shard_pb2.ExchangeRequest]] = []
        self.said: list[pb.SessionRequest] = []
        self.waits: list[float] = []
        self.reasons: list[str] = []
        self.model = model_of(NBYTES, servers)
        self.member = Member(self.model, self, self.send, self.said.append)
        self.member.admit(pb.JoinReply(job="j", worker="w0"), "s")

    def send(self, server: int, message: bytes) -> None:
        self.sent.append((server, shard_pb2.ExchangeRequest.FromString(message)))

    def now(self) -> float:
        return self.time

    def runnable(self, member: Member) -> None:
        assert member.fresh

    def committed(self, member: Member, seconds: float) -> None:
        self.waits.append(seconds)

    def lost(self, member: Member, reason: str) -> None:
        self.reasons.append(reason)

    def granted(self, ticket: int, version: int = 0, initialise: bool = False) -> None:
        grant = pb.Grant(ticket=ticket, version=version, index=ticket, initialise=initialise)
        self.member.hear([pb.SessionEvent(grant=grant)])

    def version(self, server: int, *events: pb.SessionEvent) -> None:
        size = 4 * self.model.plan.shards[server].elements
        chunk = {"chunk": {"data": bytes(size)}}
        self.member.deliver(
            server, shard_pb2.ExchangeReply(bytes=size, events=events, **chunk).SerializeToString()
        )


def applied(ticket: int) -> pb.SessionEvent:
    return pb.SessionEvent(disposition=pb.Disposition(ticket=ticket, fate=pb.Disposition.FATE_APPLIED))


def test_with_one_server_a_commit_is_one_round_trip():
    stage = Stage(1)
    stage.member.ready()
    stage.granted(1)
    assert stage.sent.pop()[1].pull.ticket == 1
    stage.version(0)
    stage.member.contribute()
    _, request = stage.sent.pop()
    assert request.push.ticket == request.commit.ticket == 1 and request.commit.ready
    assert len(request.chunk.data) == request.push.bytes == NBYTES
    stage.time = 0.25
    stage.version(0, applied(1), pb.SessionEvent(grant=pb.Grant(ticket=2, version=1, index=9)))
    assert stage.waits == [0.25] and stage.member.fresh and not stage.sent
    stage.member.contribute()
    assert stage.sent.pop()[1].push.after == 9
    assert [each.WhichOneof("message") for each in stage.said] == ["ready"]


def test_with_two_servers_the_session_carries_the_commit():
    stage = Stage(2)
    stage.member.ready()
    stage.granted(1)
    for server in (0, 1):
        stage.version(server)
    stage.sent.clear()
    stage.member.contribute()
    assert [(server, request.push.ticket) for server, request in stage.sent] == [(0, 1), (1, 1)]
    for server, receipt in ((1, b"b"), (0, b"a")):
        stage.member.deliver(server, shard_pb2.ExchangeReply(receipt=receipt).SerializeToString())
    commit = stage.said[-1].commit
    assert list(commit.receipts) == [b"a", b"b"] and commit.ready
    stage.time = 2.0
    stage.member.hear([applied(1)])
    stage.granted(2, 1)
    assert stage.waits == [2.0] and len(stage.sent) == 4


def test_the_first_worker_pushes_the_initial_values():
    stage = Stage(1)
    stage.member.ready()
    stage.granted(1, initialise=True)
    assert stage.sent.pop()[1].push.ticket == 1
    stage.member.deliver(0, shard_pb2.ExchangeReply(receipt=b"r").SerializeToString())
    assert stage.said[-1].commit.samples == 0
    assert stage.waits == []


def test_a_refused_payload_begins_anew():
    stage = Stage(1)
    stage.member.ready()
    stage.granted(1)
    stage.version(0)
    stage.member.contribute()
    assert stage.member.ended(0, ABORTED, "the ticket was cancelled")
    assert [each.WhichOneof("message") for each in stage.said] == ["ready", "abandon", "ready"]
    stage.granted(2)
    assert stage.sent[-1][1].pull.ticket == 2
    assert not stage.reasons


def test_a_member_that_is_refused_takes_no_further_part():
    stage = Stage(1)
    stage.member.ready()
    stage.member.hear([pb.SessionEvent(refusal=pb.Refusal(message="go away", fatal=True))])
    assert not stage.member.alive and stage.reasons == ["refused: go away"]


def measured(policy: str, sessions: int) -> Measured:
    burst = {
        "commits": 1000,
        "seconds": 2.0,
        "cpu": 0.1,
        "server_cpu": 0.4,
        "p50": 0.001,
        "p99": 0.01,
        "lost": 0,
    }
    cost = Cost(cpu=0.4, threads=20, rss=10**8, descriptors=40)
    return Measured(Cell(policy, sessions, 1), burst, cost, {"socket": sessions})


def test_a_run_is_written_with_its_failures(tmp_path):
    broken = Measured(Cell("sync", 100, 1), failure="nobody came")
    cells = [measured("async", 10), measured("async", 100), broken]
    swarmed = report.Swarmed({}, {}, cells, [measured("echo", 10)])
    record = json.loads(swarmed.write(tmp_path).read_text())
    assert [cell["commits_per_second"] for cell in record["cells"]] == [500.0, 500.0, None]
    assert report.failures(cells) == ["sync, 100 sessions: nobody came"]
    table = report.table(cells, swarmed.echoes)
    # As much CPU time as the echo with as many sessions; without an echo nothing to compare with.
    assert [str(cell) for cell in table.columns[5].cells] == ["1.00", "-", "-"]


@pytest.mark.cluster
@pytest.mark.parametrize(("policy", "servers"), [("async", 1), ("sync", 2)])
def test_real_servers_serve_light_workers_and_nothing_is_left(tmp_path, policy, servers):
    terms = Terms(0.2, NBYTES, 60.0, tmp_path, lambda text: None)
    made = measure(Cell(policy, 5, servers), terms)
    assert not made.failure and made.links == {"socket": 5 * servers}
    assert made.burst["commits"] > 0 and not made.burst["lost"]
    assert made.cost is not None and made.cost.threads > 0
    left = [each.cmdline() for each in psutil.Process().children(recursive=True)]
    assert not [line for line in left if "psserver" in line or "benchmarks.swarm.generator" in line]


@pytest.mark.cluster
def test_an_echo_answers_the_same_workers(tmp_path):
    made = bare_echo(3, Terms(0.2, NBYTES, 60.0, tmp_path, lambda text: None))
    assert not made.failure and made.burst["commits"] > 0
