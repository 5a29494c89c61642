"""Tokens: what a file of them must be, and that nobody sees one by accident."""

import os
from pathlib import Path

import pytest

from pswire.security.names import Role
from pswire.security.tokens import Token, TokenError, bearer, parse_tokens, read_tokens
from tests.sentences import Recorder

# The same in every process of a test run.
A, B, C = (32 * pair for pair in ("a1", "b2", "c3"))


def test_a_file_has_roles_and_names(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# of one job\nworker/w0 {A}\nworker   {B} # any other\n\nserver {C}\n")
    file.chmod(0o600)
    tokens = read_tokens(file)
    assert [token.holder for token in tokens.held] == ["worker/w0", "worker", "server"]
    assert tokens.names == {"w0"}
    [(key, value)] = bearer(tokens.own(Role.SERVER))
    assert (key, value) == ("authorization", f"Bearer {C}")
    found = tokens.of(f"Bearer {A}")
    assert found is not None and found.holder == "worker/w0"
    assert tokens.of("Bearer") is None and tokens.of(f"Bearer {A[:-1]}") is None and tokens.of("") is None


def test_a_client_has_one_and_need_not_say_its_role(sentences: Recorder) -> None:
    tokens = parse_tokens(A, "PS_TOKEN")
    assert tokens.own(Role.WORKER).secret == Token(None, "", tokens.held[0].secret).secret
    # Of nobody's role: a server takes it from nobody.
    assert tokens.of(f"Bearer {A}") is None
    with pytest.raises(TokenError) as refused:
        parse_tokens(f"worker {A}\nworker/w1 {B}", "PS_TOKEN").own(Role.WORKER)
    sentences.check(refused)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"worker {A}")
    file.chmod(mode)
    with pytest.raises(TokenError, match=f"mode {mode:04o}.*chmod 600"):
        read_tokens(file)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected a token, got none"),
        ("worker short", "line 1: expected a secret of 32 random bytes .*, got 5 characters"),
        (f"worker a {A}", "got 3 words"),
        (f"boss {A}", "got 'boss'"),
        (f"{A} {B}", "with a role of"),
        (f"worker/a {A}\nworker/b {A}", "one secret belongs to two holders, worker/b is the second"),
        (f"worker/{'n' * 65} {A}", "with a role of"),
    ],
)
def test_what_is_wrong_is_said_without_the_secret(text: str, words: str) -> None:
    with pytest.raises(TokenError, match=words) as caught:
        parse_tokens(text, "FILE")
    assert A not in str(caught.value) and B not in str(caught.value)


def test_a_secret_is_shown_by_nothing(tmp_path: Path, sentences: Recorder) -> None:
    tokens = parse_tokens(f"worker {A}", "FILE")
    assert A not in repr(tokens) and A not in str(tokens.held) and "***" in repr(tokens)
    with pytest.raises(TokenError) as refused:
        read_tokens(tmp_path / "absent")
    sentences.check(refused)
    assert os.environ.get("PS_TOKEN") is None
