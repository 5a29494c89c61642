"""A name is its credential's: nobody joins under another's, and one process does not join under six."""

import numpy as np
import pytest

import psworker
from psserver.service.errors import RequestRefused
from psserver.service.guard.authorization import Names, Peer
from pswire.security.credentials import Credentials
from pswire.security.names import Role
from psworker.link import Link
from tests.links import connect_link
from tests.security.identities import Identities
from tests.sentences import Recorder
from tests.service.serving import PATIENCE, VARIABLES, Cluster, serving

ONES = [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]
W0, W1 = Peer(Role.WORKER, "w0", "ps://c/worker/w0"), Peer(Role.WORKER, "w1", "ps://c/worker/w1")
ANY, OTHER = Peer(Role.WORKER, "", "ps://c/worker"), Peer(Role.WORKER, "", "ps://c/worker, another one")


def join(cluster: Cluster, credentials: Credentials, name: str | None = None) -> Link:
    return connect_link(cluster.hosts, ONES, name=name, credentials=credentials, server_timeout=PATIENCE)


def test_a_named_credential_is_good_for_its_name_only(sentences: Recorder) -> None:
    names = Names()
    assert names.name_for(W0, "") == names.name_for(W0, "w0") == "w0"
    with pytest.raises(RequestRefused) as refused:
        names.name_for(W0, "w1")
    sentences.check(refused)


def test_a_shared_credential_does_not_take_the_name_of_another() -> None:
    names = Names()
    names.claim(W0, "w0")
    assert names.name_for(ANY, "w1") == "w1"
    names.claim(ANY, "w1")
    for peer, name, words in (
        (ANY, "w0", "the name 'w0' is that of ps://c/worker/w0"),
        (W1, "w1", "the name 'w1' is that of ps://c/worker,"),
        (OTHER, "w1", "the name 'w1' is that of"),
    ):
        with pytest.raises(RequestRefused, match=words):
            names.name_for(peer, name)
    # It comes back under its own.
    assert names.name_for(ANY, "w1") == "w1" and names.name_for(W0, "w0") == "w0"


def test_a_worker_joins_under_the_name_in_its_certificate(
    identities: Identities, sentences: Recorder
) -> None:
    """Acceptance 5."""
    with serving(
        security=lambda _: identities.options(Role.SERVER, "s0"),
        credentials=identities.credentials(Role.OBSERVER),
    ) as cluster:
        w7 = identities.credentials(Role.WORKER, "w7")
        with join(cluster, w7) as session:
            assert session.info.worker == "w7"
            before = cluster.picture()
            for name in ("w0", "another"):
                with pytest.raises(psworker.Untrusted) as refused:
                    join(cluster, w7, name)
                sentences.check(refused)
            shared = identities.credentials(Role.WORKER)
            with pytest.raises(psworker.Untrusted) as refused:
                join(cluster, shared, "w7")
            sentences.check(refused)
            assert cluster.picture() == before
        with join(cluster, shared) as session:
            assert session.info.worker.startswith("w")
