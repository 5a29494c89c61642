"""Certificates are exchanged under a running job, and their end is announced."""

import logging
import socket
import ssl
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psworker
from psserver.service.guard.authorization import Authorizer, Peer
from psserver.service.life.listeners import DAY, Reminders, ending
from pswire.addresses import parse_address
from pswire.security.authority import Authority
from pswire.security.credentials import Credentials, LiveIdentity
from pswire.security.files import TlsFiles
from pswire.security.identity import fingerprint_of_pem, peer_fingerprint
from pswire.security.names import Role
from pswire.transport.connecting import open_channel, stub_of
from pswire.v1 import coordinator_pb2 as pb
from tests.promises import promise
from tests.security.identities import Identities, options_of, overwrite
from tests.sentences import Recorder
from tests.service.serving import PATIENCE, VARIABLES, Cluster, granted, serving, wait_until

ONES = [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]
# A worker that is kept from running is not lost.
PATIENT = [f"cluster.worker_timeout={10 * PATIENCE}"]


@pytest.fixture
def files(tmp_path: Path, identities: Identities) -> Iterator[TlsFiles]:
    made = TlsFiles.in_folder(tmp_path, "server")
    made.write(identities.authority.issue(Role.SERVER, "s0"))
    yield made


def shown(cluster: Cluster, identities: Identities) -> bytes:
    """The fingerprint of the certificate that a new connection is shown."""
    address = parse_address(cluster.hosts)
    context = identities.credentials(Role.OBSERVER).identity.client_context()
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((address.host, address.port), PATIENCE) as plain:
        with context.wrap_socket(plain, server_hostname=address.host) as tls:
            return peer_fingerprint(tls)


def step(session: psworker.Session) -> None:
    grant = granted(session)
    session.pull(grant)
    session.push(grant, {spec.name: np.full(spec.shape, 0.125) for spec in VARIABLES})
    session.commit(grant, samples=1, loss=0.5)
    wait_until(
        lambda: grant.ticket in [d.ticket for d in session.dispositions() if d.fate == "applied"],
        "the commit to be applied",
    )


@promise(
    "Servers and workers take new certificate files without interrupting a job, and warn before a certificate "
    "ends."
)
def test_new_connections_use_the_new_certificate_and_the_job_goes_on(
    files: TlsFiles, identities: Identities
) -> None:
    """Acceptance 6."""
    observer = identities.credentials(Role.OBSERVER)
    with serving(security=lambda _: options_of(files), credentials=observer, overrides=PATIENT) as cluster:
        first = files.read().fingerprint
        assert shown(cluster, identities) == first
        with psworker.connect(
            cluster.hosts, ONES, credentials=identities.credentials(Role.WORKER, "w0"), transport="grpc"
        ) as session:
            step(session)
            renewed = identities.authority.issue(Role.SERVER, "s0")
            files.write(renewed, replace=True)
            assert shown(cluster, identities) == renewed.fingerprint != first
            step(session)
            [worker] = cluster.status().workers
            assert (worker.name, worker.incarnation, worker.committed) == ("w0", 0, 2)
            # Files that do not fit together change nothing.
            assert files.cert is not None
            overwrite(files.cert, identities.authority.issue(Role.SERVER, "s0").cert)
            assert shown(cluster, identities) == renewed.fingerprint
            step(session)


def test_a_client_makes_a_new_channel_when_its_files_change(
    tmp_path: Path, files: TlsFiles, identities: Identities, sentences: Recorder
) -> None:
    own = TlsFiles.in_folder(tmp_path, "observer")
    own.write(identities.authority.issue(Role.OBSERVER, "one"))
    with serving(security=lambda _: options_of(files)) as cluster:
        credentials = Credentials(LiveIdentity(own), None, Role.OBSERVER)
        with open_channel(cluster.hosts, [], credentials) as channel:
            stub = stub_of(channel)
            assert stub.Status(pb.StatusRequest(), timeout=PATIENCE).security == "tls"
            before = channel.newest()  # type: ignore[attr-defined]
            assert channel.newest() is before  # type: ignore[attr-defined]
            # Of another role: what the new one is refused shows that it is used.
            own.write(identities.authority.issue(Role.WORKER, "w0"), replace=True)
            with pytest.raises(Exception) as refused:
                stub.Status(pb.StatusRequest(), timeout=PATIENCE)
            sentences.check(refused)
            own.write(identities.authority.issue(Role.OBSERVER, "two"), replace=True)
            assert stub.Status(pb.StatusRequest(), timeout=PATIENCE).security == "tls"


def test_a_worker_whose_session_breaks_comes_back_with_the_new_certificate(
    tmp_path: Path, files: TlsFiles, identities: Identities, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of flower it is said that under TLS nobody comes back."""
    shown_by = list[bytes]()
    admit = Authorizer.admit

    def noting(authorizer: Authorizer, method: str, context: Any) -> Peer:
        if method.endswith("/Session"):
            [cert] = context.auth_context()["x509_pem_cert"]
            shown_by.append(fingerprint_of_pem(cert.decode()))
        return admit(authorizer, method, context)

    monkeypatch.setattr(Authorizer, "admit", noting)
    own = TlsFiles.in_folder(tmp_path, "worker")
    own.write(identities.authority.issue(Role.WORKER, "w0"))
    observer = identities.credentials(Role.OBSERVER)
    with serving(security=lambda _: options_of(files), credentials=observer, overrides=PATIENT) as cluster:
        credentials = Credentials(LiveIdentity(own), None, Role.WORKER)
        with psworker.connect(cluster.hosts, ONES, credentials=credentials, transport="grpc") as session:
            step(session)
            own.write(identities.authority.issue(Role.WORKER, "w0"), replace=True)
            cluster.servers[0].probe.end_sessions()
            wait_until(lambda: len(shown_by) == 2, "the worker to come back")
            step(session)
            step(session)
            assert shown_by[1] == own.read().fingerprint != shown_by[0]
            [worker] = cluster.status().workers
            assert (worker.name, worker.incarnation) == ("w0", 0)


@pytest.mark.parametrize("of", ["certificate", "authority (CA) of the certificate"])
def test_an_end_within_a_week_is_announced_each_day(of: str, caplog: pytest.LogCaptureFixture) -> None:
    """Acceptance 6."""
    authority = Authority.make("tests", timedelta(days=6 if of.startswith("authority") else 60))
    identity = authority.issue(Role.SERVER, "s0", valid=timedelta(days=6))
    credentials = Credentials(LiveIdentity(identity), None, Role.SERVER)
    now = time.time()
    assert ending(credentials, now - 2 * DAY) is None
    reminders = Reminders(credentials, None, clock=lambda: now)
    with caplog.at_level(logging.WARNING):
        reminders.remind()
        reminders.remind()
        now += DAY
        reminders.remind()
    first, second = [record.getMessage() for record in caplog.records]
    assert first.startswith(f"the {of} ps://tests/server/s0 ends on ") and "in 6.0 days" in first
    assert "in 5.0 days" in second
    assert str(ending(credentials, now + 10 * DAY)).count("has ended on") == 1


def test_metrics_have_the_end_of_the_certificate(identities: Identities) -> None:
    pytest.importorskip("prometheus_client")
    from psserver.metrics.collector import security_families

    credentials = identities.credentials(Role.SERVER, "s0")
    authorizer = Authorizer(credentials)
    authorizer.refused["role"] += 2
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in security_families(credentials, authorizer)
        for sample in family.samples
    }
    facts = credentials.identity.facts
    name = "paramserver_certificate_expiry_timestamp_seconds"
    assert samples[name, "certificate"] == facts.certificate_ends
    assert samples[name, "authority"] == facts.authority_ends
    assert samples["paramserver_authentication_failures_total", "role"] == 2


def test_a_fingerprint_is_that_of_the_first_certificate(identities: Identities) -> None:
    cert = identities.credentials(Role.SERVER, "s0").identity.cert.decode()
    assert fingerprint_of_pem(cert) == fingerprint_of_pem(cert + cert)
    assert ssl.PEM_HEADER in cert
