"""Certificates are exchanged under a running job, and their end is announced."""

import logging
import socket
import ssl
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from pslab.authority import Authority
from psserver.service.guard.authorization import Authorizer
from psserver.service.life.listeners import DAY, ending, remind
from pswire.addresses import parse_address
from pswire.security.credentials import Credentials, LiveIdentity
from pswire.security.files import TlsFiles
from pswire.security.identity import Identity
from pswire.security.names import Role
from psworker.link import Link
from tests.links import connect_link
from tests.promises import promise
from tests.security.identities import Identities, options_of, overwrite
from tests.service.serving import PATIENCE, VARIABLES, Cluster, granted, serving, wait_until

ONES = [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]
# A worker that is kept from running is not lost.
PATIENT = [f"cluster.worker_timeout={10 * PATIENCE}"]


@pytest.fixture
def files(tmp_path: Path, identities: Identities) -> Iterator[TlsFiles]:
    made = TlsFiles.in_folder(tmp_path, "server")
    made.write(identities.authority.issue(Role.SERVER, "s0"))
    yield made


def shown(cluster: Cluster, identities: Identities) -> bytes | None:
    """The certificate that a new connection is shown."""
    address = parse_address(cluster.hosts)
    context = identities.credentials(Role.OBSERVER).identity.client_context()
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((address.host, address.port), PATIENCE) as plain:
        with context.wrap_socket(plain, server_hostname=address.host) as tls:
            return tls.getpeercert(binary_form=True)


def der(identity: Identity) -> bytes:
    return ssl.PEM_cert_to_DER_cert(identity.cert.decode())


def step(session: Link) -> None:
    grant = granted(session)
    session.pull(grant)
    session.push(grant, {spec.name: np.full(spec.shape, 0.125) for spec in VARIABLES})
    session.commit(grant, samples=1, loss=0.5)
    wait_until(
        lambda: grant.ticket in [d.ticket for d in session.dispositions() if d.fate == "applied"],
        "the commit to be applied",
    )


@promise(
    "A server takes new certificate files without interrupting a job, and warns before a certificate ends."
)
def test_new_connections_use_the_new_certificate_and_the_job_goes_on(
    files: TlsFiles, identities: Identities
) -> None:
    """Acceptance 6."""
    observer = identities.credentials(Role.OBSERVER)
    with serving(security=lambda _: options_of(files), credentials=observer, overrides=PATIENT) as cluster:
        first = der(files.read())
        assert shown(cluster, identities) == first
        with connect_link(
            cluster.hosts, ONES, credentials=identities.credentials(Role.WORKER, "w0"), transport="grpc"
        ) as session:
            step(session)
            renewed = identities.authority.issue(Role.SERVER, "s0")
            files.write(renewed, replace=True)
            assert shown(cluster, identities) == der(renewed) != first
            step(session)
            [worker] = cluster.status().workers
            assert (worker.name, worker.incarnation, worker.committed) == ("w0", 0, 2)
            # Files that do not fit together change nothing.
            overwrite(files.cert, identities.authority.issue(Role.SERVER, "s0").cert)
            assert shown(cluster, identities) == der(renewed)
            step(session)


@pytest.mark.parametrize("of", ["certificate", "authority (CA) of the certificate"])
def test_an_end_within_a_week_is_announced_each_day(of: str, caplog: pytest.LogCaptureFixture) -> None:
    """Acceptance 6."""
    authority = Authority.make("tests", timedelta(days=6 if of.startswith("authority") else 60))
    identity = authority.issue(Role.SERVER, "s0", valid=timedelta(days=6))
    credentials = Credentials(LiveIdentity(identity), Role.SERVER)
    now = time.time()
    assert ending(credentials, now - 2 * DAY) is None
    with caplog.at_level(logging.WARNING):
        remind(credentials, None, now)
        now += DAY
        remind(credentials, None, now)
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
