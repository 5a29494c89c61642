"""Every method has roles, and nobody else gets past the gate: nothing of a call is read before."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import grpc
import pytest

from pslab.authority import Authority
from psserver.service.errors import RequestRefused
from psserver.service.guard.authorization import ROLES, Authorizer
from psserver.service.net.registration import MethodHandlers
from pswire.security.names import Role
from pswire.transport.connecting import open_channel
from tests.promises import promise
from tests.security.identities import Identities
from tests.sentences import Recorder
from tests.service.serving import PATIENCE, Cluster, serving

DENIED = grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture(scope="module")
def registered() -> list[str]:
    """Filled with the methods of the servers below."""
    return []


@pytest.fixture(scope="module")
def cluster(identities: Identities, registered: list[str]) -> Iterator[Cluster]:
    method = MethodHandlers.method

    def listed(self, path, function):  # type: ignore[no-untyped-def]
        registered.append(path)
        return method(self, path, function)

    with mock.patch.object(MethodHandlers, "method", listed):
        servers = serving(
            servers=2,
            security=lambda index: identities.options(Role.SERVER, f"s{index}"),
            credentials=identities.credentials(Role.OBSERVER, "tests"),
        )
        with servers as cluster:
            yield cluster


@promise("Every method has roles, and a server refuses every other role.")
def test_callers_are_those_of_the_threat_model() -> None:
    """Only workers bring gradients, only servers give orders, and whoever looks reads no weights."""
    found = {
        path.rpartition("/")[2]: {str(role) for role in roles}
        for path, roles in ROLES.items()
        if "pswire" in path
    }
    worker, server = {"worker"}, {"server"}
    assert found == {
        **dict.fromkeys(("Join", "Session", "Commit", "GatherEpoch", "Push", "Exchange"), worker),
        **dict.fromkeys(("Follow", "Replicate"), server),
        **dict.fromkeys(("Note", "ChangePolicy", "Promote"), {"admin"}),
        "Pull": worker | server,
        "Status": {"observer", "admin", "server"},
        "FindCoordinator": {"observer", "admin", "server", "worker"},
    }


def test_the_guide_says_what_an_admin_alone_may_do() -> None:
    commands = {"Note": "ps-lab note", "ChangePolicy": "ps-lab policy", "Promote": "ps-lab promote"}
    assert {path.rpartition("/")[2] for path, roles in ROLES.items() if roles == {Role.ADMIN}} == set(
        commands
    )
    guide = Path(__file__).parents[2] / "docs/guides/tls.md"
    [row] = [line for line in guide.read_text().splitlines() if line.startswith("| `admin` |")]
    assert all(f"`{command}`" in row for command in commands.values())


def test_every_registered_method_has_a_role(cluster: Cluster, registered: list[str]) -> None:
    assert registered and set(registered) == set(ROLES)


def answer(cluster: Cluster, server: int, path: str, identities: Identities, role: Role) -> grpc.StatusCode:
    """What a call without any message gets."""
    credentials = identities.credentials(role, "any")
    with open_channel(cluster.servers[server].address, [], credentials) as channel:
        call = channel.stream_stream(path, None, None)(iter(()), timeout=PATIENCE)
        try:
            for _ in call:
                pass
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


@pytest.mark.parametrize("role", Role)
def test_a_role_may_call_what_the_table_says(
    cluster: Cluster, registered: list[str], identities: Identities, role: Role
) -> None:
    """Acceptance 5: a worker does not open a shard or end a job, an observer does not pull."""
    for path in sorted(set(registered)):
        server = 1 if path.startswith("/pswire.v1.Shard") else 0
        found = answer(cluster, server, path, identities, role)
        assert (found != DENIED) == (role in ROLES[path]), (path, role, found)


def test_a_refusal_names_who_calls_and_what_for(cluster: Cluster, identities: Identities) -> None:
    credentials = identities.credentials(Role.OBSERVER, "looker")
    with open_channel(cluster.servers[0].address, [], credentials) as channel:
        pull = channel.stream_stream("/pswire.v1.Shard/Pull", None, None)
        with pytest.raises(grpc.RpcError) as caught:
            list(pull(iter(()), timeout=PATIENCE))
    said = caught.value.details()
    assert "ps://tests/observer/looker has the role observer, and Pull is for server and worker" in said


class Shown:
    """The context of a call whose peer has shown a certificate of that subject."""

    def __init__(self, subject: str) -> None:
        self.subject = subject

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_subject_alternative_name": [self.subject.encode()]}

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def peer(self) -> str:
        return "ipv4:192.0.2.1:4321"


@pytest.mark.parametrize(
    ("subjects", "reason"),
    [
        (["ps://tests/observer/looker"], "role"),
        (["ps://another/worker/w0"], "unknown"),
        # What a stranger writes into its certificate makes no lines of its own.
        ([f"ps://another/worker/w{number}" for number in range(20)], "unknown"),
        (["no name of ours"], "unknown"),
    ],
)
def test_a_flood_of_refused_calls_is_counted_and_leaves_one_line(
    identities: Identities, caplog: pytest.LogCaptureFixture, subjects: list[str], reason: str
) -> None:
    authorizer = Authorizer(identities.credentials(Role.SERVER, "s0"))

    async def flood() -> None:
        for number in range(40):
            with pytest.raises(RequestRefused):
                authorizer.admit("/pswire.v1.Shard/Push", Shown(subjects[number % len(subjects)]))

    asyncio.run(flood())
    assert authorizer.refused == {reason: 40}
    assert [getattr(record, "event", "") for record in caplog.records] == ["call_refused"]


def test_a_method_that_is_in_no_table_is_for_nobody(cluster: Cluster, identities: Identities) -> None:
    with mock.patch.dict(ROLES, clear=True):  # type: ignore[arg-type]
        for role in Role:
            assert answer(cluster, 0, "/pswire.v1.Coordinator/Status", identities, role) == DENIED


def test_another_cluster_of_the_same_authority_is_refused(
    cluster: Cluster, identities: Identities, sentences: Recorder
) -> None:
    sibling = Authority(identities.authority.cert, identities.authority.key)
    sibling.cluster = "another"
    credentials = identities.credentials(Role.WORKER, "w0", authority=sibling)
    with open_channel(cluster.servers[0].address, [], credentials) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            list(channel.stream_stream("/pswire.v1.Coordinator/Join", None, None)(iter(()), timeout=PATIENCE))
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
    sentences.check(caught.value.details())
    assert cluster.status().security == "tls"
