"""The first contact says what is wrong, before any pause, in one sentence."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import grpc
import numpy as np
import pytest
from click.testing import CliRunner

import psworker
from pslab import authority
from pslab.cli import cli
from pslab.commands.failure import Failure
from psserver.options import Options
from pswire.exits import ExitCode
from pswire.security.credentials import NO_TLS, Credentials, LiveIdentity
from pswire.security.identity import Identity
from pswire.security.names import Role
from pswire.security.settings import SecurityOptions
from pswire.transport.connecting import open_channel
from pswire.v1 import shard_pb2
from psworker.control import backoff
from tests.links import connect_link
from tests.promises import promise
from tests.security.identities import ENDED, Identities
from tests.sentences import Recorder
from tests.service.serving import PATIENCE, VARIABLES, Cluster, Served, refused, serving

ONES = [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]
# Whoever waited for a better answer would outlast this test; seconds.
FOR_EVER = 3600.0


@pytest.fixture(scope="module")
def protected(identities: Identities) -> Iterator[Cluster]:
    options = identities.options(Role.SERVER, "s0")
    with serving(security=lambda _: options, credentials=identities.credentials(Role.OBSERVER)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def plain() -> Iterator[Cluster]:
    with serving() as cluster:
        yield cluster


def refusal(hosts: str, credentials: Credentials, name: str | None = None) -> str:
    """What a worker is told that would wait for ever."""
    with pytest.raises(psworker.Untrusted) as caught:
        connect_link(hosts, ONES, name=name, credentials=credentials, server_timeout=FOR_EVER)
    return str(caught.value)


def test_a_worker_that_is_not_trusted_ends_soon() -> None:
    """The pause before its last attempt included; seconds."""
    waited = pause = backoff.FIRST_PAUSE
    while waited < 1.2 * backoff.CONVINCING:
        pause *= 2
        waited += pause
    assert 1.2 * waited <= 5.0


Case = Callable[[Identities], Credentials]
# Kind of the server, what the worker has, its name, and the sentence's words.
CASES: dict[str, tuple[str, Case, str | None, str]] = {
    "a foreign one": (
        "tls",
        lambda ids: ids.credentials(Role.WORKER, "w0", authority=ids.foreign),
        None,
        "was not signed by the authority in --tls-ca",
    ),
    "a wrong role": (
        "tls",
        lambda ids: ids.credentials(Role.OBSERVER, "w0"),
        None,
        "has the role observer, and Join is for worker",
    ),
    "a wrong name": (
        "tls",
        lambda ids: ids.credentials(Role.WORKER, "w0"),
        "w1",
        "is for the worker 'w0' only",
    ),
    "plaintext to TLS": (
        "tls",
        lambda ids: NO_TLS,
        None,
        "it probably speaks TLS, and this process was given no certificates",
    ),
    "TLS to plaintext": ("plain", lambda ids: ids.credentials(Role.WORKER, "w0"), None, "does not speak TLS"),
}


@promise("A worker and a server of which one does not trust the other say why in one sentence, within 5 s.")
@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_one_sentence(
    protected: Cluster, plain: Cluster, identities: Identities, case: str
) -> None:
    """Acceptance 3; the log has no new entry."""
    kind, credentials, name, words = CASES[case]
    cluster = {"tls": protected, "plain": plain}[kind]
    job = cluster.servers[0].server.job
    assert job is not None
    before = job.coordinator.state.entries
    said = refusal(cluster.hosts, credentials(identities), name)
    assert words in said and "\n" not in said, said
    assert job.coordinator.state.entries == before


@contextmanager
def answering(serve: Callable[[socket.socket], object], host: str = "127.0.0.1") -> Iterator[str]:
    """Something on a port that is given each connection, one after the other."""
    with socket.create_server((host, 0)) as listener:

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"{host}:{listener.getsockname()[1]}"
        finally:
            # Wakes the thread, which closing alone does not.
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def speaking_tls(identity: Identity) -> Callable[[socket.socket], object]:
    context = identity.server_context()
    context.set_alpn_protocols(["h2"])

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as tls:
            tls.recv(1)

    return serve


@pytest.mark.parametrize(
    ("role", "began", "ended", "words"),
    [
        (Role.SERVER, True, True, "or that of its authority, has expired: make a new one for that server"),
        (Role.SERVER, False, False, "is not valid yet: are the clocks of both machines right?"),
        (Role.WORKER, True, False, "is not one of a server: give that server its own --tls-cert"),
    ],
)
def test_a_server_whose_certificate_is_no_good(
    identities: Identities, monkeypatch: pytest.MonkeyPatch, role: Role, began: bool, ended: bool, words: str
) -> None:
    """No ps-server begins with one; one may end while a server runs."""
    if not began:
        monkeypatch.setattr(authority, "SKEW", ENDED)
    shown = identities.authority.issue(role, "s0", valid=ENDED if ended else None)
    with answering(speaking_tls(shown)) as address:
        assert words in refusal(address, identities.credentials(Role.WORKER, "w0"))


def test_a_server_that_is_reached_by_a_name_that_it_does_not_have(identities: Identities) -> None:
    server = identities.authority.issue(Role.SERVER, "s0")
    # Every address of 127/8 is this machine's; the certificate has 127.0.0.1 only.
    with answering(speaking_tls(server), "127.0.0.2") as address:
        said = refusal(address, identities.credentials(Role.WORKER, "w0"))
    assert f"the certificate of {address} is not for 127.0.0.2: reach the server by a name" in said


def test_a_client_whose_certificate_has_expired(
    protected: Cluster, identities: Identities, sentences: Recorder
) -> None:
    """By the server, and before that by the client itself, which reads the file."""
    expired = identities.authority.issue(Role.WORKER, "w0", valid=ENDED)
    foreign = replace(identities.foreign.issue(Role.WORKER, "w0"), ca=expired.ca)
    for shown in (expired, foreign):
        said = refusal(protected.hosts, Credentials(LiveIdentity(shown), Role.WORKER))
        assert "refuses the certificate of this process" in said and "still good?" in said
    files = identities.files(Role.WORKER, "w0", valid=ENDED)
    with pytest.raises(psworker.Untrusted) as refused:
        connect_link(protected.hosts, ONES, tls_ca=files.ca, tls_cert=files.cert, tls_key=files.key)
    sentences.check(refused)


def test_a_server_that_hangs_up_during_the_handshake_may_answer_soon(
    identities: Identities, sentences: Recorder
) -> None:
    """It is busy, ends, or is not there yet behind its proxy: nothing is certain, and it is waited for."""
    worker = identities.credentials(Role.WORKER, "w0")
    with answering(lambda _: None) as address, pytest.raises(psworker.Unreachable) as refused:
        connect_link(address, ONES, credentials=worker, server_timeout=0.5)
    sentences.check(refused)


def test_a_name_that_is_not_known_yet_is_retried_and_named(sentences: Recorder) -> None:
    with pytest.raises(psworker.Unreachable) as refused:
        connect_link("ps0.invalid:7070", ONES, server_timeout=0.3)
    sentences.check(refused)


def test_nothing_there_is_no_matter_of_trust(identities: Identities) -> None:
    with socket.socket() as taken:
        # Taken, but nobody listens.
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for credentials in (NO_TLS, identities.credentials(Role.WORKER, "w0")):
            with pytest.raises(psworker.Unreachable):
                connect_link(address, ONES, credentials=credentials, server_timeout=0.2)


def test_commands_that_look_exit_with_10(protected: Cluster, plain: Cluster, identities: Identities) -> None:
    """ps-lab status and dashboard."""
    observer, worker = (identities.options(role, "w0") for role in (Role.OBSERVER, Role.WORKER))
    runner = CliRunner()

    def ends(cluster: Cluster, command: str, *options: SecurityOptions) -> str:
        given = [word for each in options for word in flags(each)]
        result = runner.invoke(cli, [command, cluster.hosts, *given], standalone_mode=False)
        assert isinstance(result.exception, Failure) and result.exception.code == ExitCode.UNTRUSTED, result
        return str(result.exception)

    for command in ("status", "dashboard"):
        assert "probably speaks TLS" in ends(protected, command)
        assert "does not speak TLS" in ends(plain, command, observer)
        assert "has the role worker, and Status is for" in ends(protected, command, worker)
    done = runner.invoke(cli, ["status", protected.hosts, "--json", *flags(observer)], standalone_mode=False)
    assert json.loads(done.output)["security"] == "tls"


def flags(options: SecurityOptions) -> list[str]:
    return [
        "--tls-ca",
        str(options.tls_ca),
        "--tls-cert",
        str(options.tls_cert),
        "--tls-key",
        str(options.tls_key),
    ]


def test_server_0_says_what_is_wrong_with_server_1(identities: Identities) -> None:
    """The job ends with exit code 10 at its first look, rather than waiting."""
    foreign = identities.options(Role.SERVER, "s1", authority=identities.foreign)
    own = identities.options(Role.SERVER, "s0")
    second = Served(Options(ps_hosts="127.0.0.1:0,127.0.0.1:0", task_index=1, security=foreign))
    try:
        first = Served(Options(ps_hosts=f"127.0.0.1:0,{second.address}", task_index=0, security=own))
        assert first.ended() == ExitCode.UNTRUSTED
        reason = first.events["stopped"]["reason"]
        assert reason.startswith("server 1: the certificate of ") and "in --tls-ca" in reason
    finally:
        second.interrupt()
        second.ended()


def test_a_stranger_does_not_lead_server_1(identities: Identities) -> None:
    """An idle Follow, and one that opens, of whoever is no server: nothing is owned by them (D12)."""
    options = identities.options(Role.SERVER, "s1")
    second = Served(Options(ps_hosts="127.0.0.1:0,127.0.0.1:0", task_index=1, security=options))
    try:
        worker = identities.credentials(Role.WORKER, "w0")
        with open_channel(second.address, [], worker) as channel:
            opening = shard_pb2.FollowRequest(
                open=shard_pb2.Open(job="wait", task_index=1, servers=2, secret=b"s" * 32)
            )
            follow = channel.stream_stream("/pswire.v1.Shard/Follow", None, None)
            for sent in ([], [opening.SerializeToString()]):
                with refused(grpc.StatusCode.PERMISSION_DENIED, "Follow is for server"):
                    list(follow(iter(sent), timeout=PATIENCE))
        assert second.server.host.job == ""
    finally:
        second.interrupt()
        second.ended()
