"""The proof of a job's secret: a recording proves nothing, nor does a proof that was meant for something else."""

import pytest

from pswire.security.proof import LENGTH, NONCE, Caller, Challenge, Metadata, ProofError
from pswire.security.secret import Secret

SECRET, METHOD, WHOM = Secret(b"of the job"), "/pswire.v1.Shard/Follow", "server 1"


def challenge(
    metadata: Metadata, secret: Secret = SECRET, method: str = METHOD, whom: str = WHOM
) -> Challenge:
    return Challenge(secret, method, whom, metadata)


def test_both_ends_prove_the_secret_and_messages_arrive() -> None:
    caller = Caller(SECRET, METHOD, WHOM)
    called = challenge(caller.metadata)
    caller.check(called.answer)
    first = caller.seal(b"first")
    assert called.opened(first) == b"first" and caller.seal(b"second") == b"second"
    assert SECRET.reveal() not in first + b"".join(value for _, value in called.answer + caller.metadata)


@pytest.mark.parametrize("other", [{"secret": Secret(b"another")}, {"method": "/a/B"}, {"whom": "server 2"}])
def test_a_server_that_is_not_meant_is_not_believed(other: dict[str, object]) -> None:
    caller = Caller(SECRET, METHOD, WHOM)
    with pytest.raises(ProofError):
        caller.check(challenge(caller.metadata, **other).answer)  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [{"secret": Secret(b"another")}, {"method": "/a/B"}, {"whom": "server 2"}])
def test_a_callers_proof_is_for_one_server_and_method(other: dict[str, object]) -> None:
    """Also where the process in between passes on both numbers."""
    caller = Caller(SECRET, METHOD, WHOM)
    meant, called = challenge(caller.metadata), challenge(caller.metadata, **other)  # type: ignore[arg-type]
    caller.check(meant.answer)
    called._answered = meant._answered
    with pytest.raises(ProofError):
        called.opened(caller.seal(b"first"))


def test_a_proof_is_for_one_message() -> None:
    caller = Caller(SECRET, METHOD, WHOM)
    called = challenge(caller.metadata)
    caller.check(called.answer)
    sealed = caller.seal(b"first")
    for changed in (
        sealed + b"x",
        sealed[:LENGTH] + b"other",
        sealed[:LENGTH],
        b"",
        bytes(LENGTH) + b"first",
    ):
        with pytest.raises(ProofError):
            called.opened(changed)


def test_a_recorded_conversation_proves_nothing_to_either_end() -> None:
    caller = Caller(SECRET, METHOD, WHOM)
    called = challenge(caller.metadata)
    caller.check(called.answer)
    sealed = caller.seal(b"first")
    with pytest.raises(ProofError):
        challenge(caller.metadata).opened(sealed)
    with pytest.raises(ProofError):
        Caller(SECRET, METHOD, WHOM).check(called.answer)


def test_a_servers_proof_is_no_callers() -> None:
    caller = Caller(SECRET, METHOD, WHOM)
    called = challenge(caller.metadata)
    with pytest.raises(ProofError):
        called.opened(dict(called.answer)["ps-proof-bin"])


@pytest.mark.parametrize(
    "answer", [None, (), ((NONCE, bytes(LENGTH)),), ((NONCE, b""), ("ps-proof-bin", b""))]
)
def test_an_answer_without_a_proof_is_none(answer: Metadata | None) -> None:
    with pytest.raises(ProofError):
        Caller(SECRET, METHOD, WHOM).check(answer)


@pytest.mark.parametrize("metadata", [(), ((NONCE, b"short"),)])
def test_who_does_not_ask_is_refused(metadata: Metadata) -> None:
    with pytest.raises(ProofError):
        challenge(metadata)


def test_without_a_secret_nothing_is_added() -> None:
    caller = Caller(Secret(), METHOD, WHOM)
    caller.check(None)
    assert caller.metadata == () and caller.seal(b"first") == b"first"
