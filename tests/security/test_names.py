"""Whom a certificate names."""

import pytest

from pswire.security.names import (
    IdentityError,
    Role,
    Subject,
    cluster_named_after,
    parse_subject,
    subject_among,
)
from tests.sentences import Recorder


@pytest.mark.parametrize(
    "subject",
    [
        Subject("lab", Role.WORKER, "w0"),
        Subject("lab", Role.SERVER),
        Subject("a.b_c-D", Role.ADMIN, "x" * 64),
    ],
)
def test_what_is_written_is_read(subject: Subject) -> None:
    assert parse_subject(str(subject)) == subject


def test_the_form_is_that_of_the_documentation() -> None:
    assert str(Subject("lab", Role.WORKER, "w0")) == "ps://lab/worker/w0"
    assert str(Subject("lab", Role.WORKER)) == "ps://lab/worker"


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("spiffe://lab/worker/w0", "expected ps://"),
        ("ps://lab", "expected ps://"),
        ("ps://lab/worker/", "expected ps://"),
        ("ps:///worker/w0", "expected ps://"),
        ("ps://lab/worker/w0/more", "expected ps://"),
        ("ps://lab/workers/w0", 'did you mean "worker"'),
        ("ps://lab/Worker/w0", 'did you mean "worker"'),
        ("ps://lab/worker/w%200", "letters, digits"),
        ("ps://l b/worker/w0", "letters, digits"),
        ("ps://lab/worker/" + "x" * 65, "1 to 64"),
        ("ps://lab/worker/w\n0", "letters, digits"),
        ("ps://lab/worker/w0\n", "letters, digits"),
        ("ps://lab/worker/w٣", "letters, digits"),
    ],
)
def test_what_is_no_name_is_refused(uri: str, said: str) -> None:
    with pytest.raises(IdentityError, match=said):
        parse_subject(uri)


def test_exactly_one_of_the_names_counts(sentences: Recorder) -> None:
    assert subject_among(["h0", "127.0.0.1", "ps://lab/server/s0"]).role is Role.SERVER
    with pytest.raises(IdentityError) as refused:
        subject_among(["h0", "spiffe://lab/worker"])
    sentences.check(refused)
    with pytest.raises(IdentityError) as refused:
        subject_among(["ps://lab/worker/w0", "ps://lab/admin/w0"])
    sentences.check(refused)


@pytest.mark.parametrize("text", ["digits-async", "my job: 3 µs", "", "///", "x" * 200])
def test_any_jobs_name_makes_a_clusters(text: str) -> None:
    Subject(cluster_named_after(text), Role.WORKER)
    assert cluster_named_after("digits-async") == "digits-async"
