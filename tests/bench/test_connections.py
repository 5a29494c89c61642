"""What connecting costs: the table's arithmetic, and one small round against a real listener."""

import io

import pytest

pytest.importorskip("cryptography", reason="needs the extra tls")

from rich.console import Console

from benchmarks.kinds import GRPC, GRPC_TLS, SOCKET, SOCKET_TLS
from benchmarks.loads import Load, even
from benchmarks.measures.connections import KINDS, PLAIN, TLS, WORKERS, Connections
from benchmarks.measures.rounds import Row
from benchmarks.peers import Burst, tls
from benchmarks.programs import connecting
from benchmarks.report import tables
from pswire.security.names import Role
from tests.security.identities import Identities
from tests.service.loops import opened
from tests.service.serving import serving
from tests.shm.test_sockets import echo


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    return Identities(tmp_path_factory.mktemp("identities"))


def printed(table: object) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(table)
    return out.getvalue()


def test_the_table_has_both_ports_and_the_join() -> None:
    found = Connections()
    for kind in KINDS:
        for way, rate, cpu in ((PLAIN, 1000.0, 0.1), (TLS, 100.0, 1.0)):
            found.rates[kind, way] = [rate, 2 * rate, rate]
            found.server_cpu[kind, way] = [cpu] * 3
    found.joins = {PLAIN: [0.5, 0.5, 0.5], TLS: [1.0, 1.5, 1.25]}
    text = printed(tables.connections(found))
    assert "gRPC's port" in text and "socket's port" in text and f"{WORKERS} workers" in text
    assert text.count("10.0") >= 4 and "2.50" in text
    assert found.as_json()["connections_per_second"]["grpc, TLS"] == [100.0, 200.0, 100.0]


def test_a_steps_time_and_cpu_over_tls_are_beside_the_plain_ones() -> None:
    row = Row(Load("1 MB", even(1, 4)))
    for name, seconds, cpu in (
        (GRPC, 4.0, 0.5),
        (GRPC_TLS, 8.0, 1.0),
        (SOCKET, 1.0, 0.25),
        (SOCKET_TLS, 2.0, 0.5),
    ):
        # Two bursts: what the system has counted in one of them belongs to both.
        row.bursts[name] = [Burst(10, seconds, 0, 2 * cpu, 2 * cpu), Burst(10, seconds, 0, 0.0, 0.0)]
    table = tables.encrypted([row])
    assert table is not None
    lines = printed(table).splitlines()
    [over_grpc] = [line for line in lines if "ours, gRPC" in line]
    [over_socket] = [line for line in lines if "ours, socket" in line]
    assert all(each in over_grpc for each in ("400", "800", "2.00", "100", "200"))
    assert all(each in over_socket for each in ("100", "200", "2.00", "50.0"))
    assert any("4.00x as fast as gRPC" in line for line in lines)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
def test_both_ports_are_knocked_at_until_they_answer(identities: Identities, encrypted: bool) -> None:
    files = tls.keywords(identities.files(Role.WORKER, "w0")) if encrypted else None
    security = {"security": lambda index: identities.options(Role.SERVER, "s0")} if encrypted else {}
    known = {"credentials": identities.credentials(Role.OBSERVER)} if encrypted else {}
    with serving(**security, **known) as cluster:  # type: ignore[arg-type]
        server = cluster.servers[0].server
        ports = {
            "grpc": int(cluster.hosts.rpartition(":")[2]),
            "socket": server.owner.ask(lambda: server.sockets.port),
        }
        for kind, port in ports.items():
            assert connecting.knock(port, kind, 0.05, files)["count"] >= 1
        joined = connecting.join(cluster.hosts, 1, 1, {"transport": "grpc", **(files or {})})
        assert joined["seconds"] > 0


def test_a_port_that_does_not_speak_tls_is_no_measurement(identities: Identities) -> None:
    files = tls.keywords(identities.files(Role.WORKER, "w0"))
    with opened(echo) as plain, pytest.raises(OSError):
        connecting.knock(plain.port, "socket", 0.0, files)
