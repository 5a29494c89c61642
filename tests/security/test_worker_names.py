"""A name is its credential's: nobody joins under another's, and one process does not join under six."""

import secrets
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import psworker
from psserver.options import Options
from psserver.service.errors import Refused
from psserver.service.guard.authorization import Names, Peer
from psserver.settings import resolve
from pswire.security.credentials import Credentials, LiveIdentity
from pswire.security.names import Role
from pswire.security.settings import SecurityOptions
from pswire.security.tokens import Tokens, parse_tokens
from tests.security.identities import Identities
from tests.sentences import Recorder
from tests.service.serving import PATIENCE, VARIABLES, Cluster, serving

ONES = [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]
W0, W1 = Peer(Role.WORKER, "w0", "ps://c/worker/w0"), Peer(Role.WORKER, "w1", "ps://c/worker/w1")
ANY, OTHER = Peer(Role.WORKER, "", "ps://c/worker"), Peer(Role.WORKER, "", "the token of worker")


def join(cluster: Cluster, credentials: Credentials, name: str | None = None) -> psworker.Session:
    return psworker.connect(cluster.hosts, ONES, name=name, credentials=credentials, server_timeout=PATIENCE)


def test_a_named_credential_is_good_for_its_name_only(sentences: Recorder) -> None:
    names = Names()
    assert names.name_for(W0, "") == names.name_for(W0, "w0") == "w0"
    with pytest.raises(Refused) as refused:
        names.name_for(W0, "w1")
    sentences.check(refused)


def test_a_shared_credential_does_not_take_the_name_of_another() -> None:
    names = Names(reserved=frozenset({"kept"}))
    names.claim(W0, "w0")
    assert names.name_for(ANY, "w1") == "w1"
    names.claim(ANY, "w1")
    for peer, name, words in (
        (ANY, "w0", "the name 'w0' is that of ps://c/worker/w0"),
        (W1, "w1", "the name 'w1' is that of ps://c/worker,"),
        (OTHER, "w1", "the name 'w1' is that of"),
        (ANY, "kept", "the name 'kept' has a token of its own"),
    ):
        with pytest.raises(Refused, match=words):
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
            assert session.worker == "w7"
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
            assert session.worker.startswith("w")


@pytest.fixture
def tokens(tmp_path: Path) -> Callable[[str], Tokens]:
    """Of a job with a token for each: by holder."""
    secret = {holder: secrets.token_hex(32) for holder in ("server", "worker/w0", "worker", "observer")}
    file = tmp_path / "tokens"
    file.touch(mode=0o600)
    file.write_text("".join(f"{holder} {text}\n" for holder, text in secret.items()))

    def of(holder: str) -> Tokens:
        return parse_tokens(f"{holder} {secret[holder]}", holder)

    of.file = file  # type: ignore[attr-defined]
    return of


def test_tokens_over_tls(identities: Identities, tokens, sentences: Recorder) -> None:  # type: ignore[no-untyped-def]
    """Two servers know each other by theirs; a name with a token of its own is nobody else's."""
    files = identities.files(Role.SERVER, "s0")
    believing = LiveIdentity(type(files)(files.ca))

    def client(role: Role, holder: str) -> Credentials:
        return Credentials(believing, tokens(holder), role)

    options = SecurityOptions(str(files.ca), str(files.cert), str(files.key), str(tokens.file))
    with serving(
        servers=2, security=lambda _: options, credentials=client(Role.OBSERVER, "observer")
    ) as cluster:
        with join(cluster, client(Role.WORKER, "worker/w0")) as session:
            assert session.worker == "w0"
            grant = session.ready()
            assert grant is not None and session.pull(grant)
            before = cluster.picture()
            with pytest.raises(psworker.Untrusted) as refused:
                join(cluster, client(Role.WORKER, "worker"), "w0")
            sentences.check(refused)
            with pytest.raises(psworker.Untrusted) as refused:
                join(cluster, client(Role.OBSERVER, "observer"))
            sentences.check(refused)
            stranger = parse_tokens(secrets.token_hex(32), "x")
            with pytest.raises(psworker.Untrusted) as refused:
                join(cluster, Credentials(believing, stranger, Role.WORKER))
            sentences.check(refused)
            with pytest.raises(psworker.Untrusted) as refused:
                join(cluster, Credentials(believing, None, Role.WORKER))
            sentences.check(refused)
            assert cluster.picture() == before
        assert cluster.status().security == "tokens"


def test_a_server_without_a_token_of_its_own_cannot_lead_others(
    identities: Identities, tokens, sentences: Recorder
) -> None:  # type: ignore[no-untyped-def]
    files = identities.files(Role.SERVER, "s0")
    file = tokens.file.with_name("workers-only")
    file.touch(mode=0o600)
    file.write_text(f"worker {secrets.token_hex(32)}\n")
    options = SecurityOptions(str(files.ca), str(files.cert), str(files.key), str(file))
    with pytest.raises(ValueError) as refused:
        resolve(Options(ps_hosts="127.0.0.1:1,127.0.0.1:2", task_index=0, security=options), None)
    sentences.check(refused)
