"""The three files of an identity, read and written."""

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from pswire.security import files as module
from pswire.security.files import TlsFiles
from pswire.security.identity import Identity
from pswire.security.names import IdentityError, Role
from pswire.security.secret import Secret
from tests.promises import promise
from tests.security.authorities import authority, ended, worker
from tests.sentences import Recorder


@pytest.fixture
def written(tmp_path: Path) -> TlsFiles:
    files = TlsFiles.in_folder(tmp_path, "w0")
    files.write(worker())
    return files


def path(part: Path | None) -> Path:
    assert part is not None
    return part


@promise("A key that others can read, and files that do not belong together, are refused with a sentence.")
def test_what_is_written_is_read(written: TlsFiles) -> None:
    assert str(written.read().facts.subject) == "ps://lab/worker/w0"
    assert stat.S_IMODE(path(written.key).stat().st_mode) == 0o600
    assert sorted(each.name for each in written.ca.parent.iterdir()) == ["ca.pem", "w0-key.pem", "w0.pem"]


def test_nothing_is_overwritten_unasked(written: TlsFiles) -> None:
    before = written.read()
    with pytest.raises(FileExistsError):
        written.write(worker())
    assert written.read().key == before.key
    written.write(worker(), replace=True)
    assert written.read().key != before.key
    assert len(list(written.ca.parent.iterdir())) == 3, "nothing is left beside them"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666, 0o610])
def test_a_key_that_others_can_read_is_refused(written: TlsFiles, mode: int, sentences: Recorder) -> None:
    path(written.key).chmod(mode)
    with pytest.raises(IdentityError) as refused:
        written.read()
    sentences.check(refused)


def test_a_group_may_read_a_key_of_roots(
    written: TlsFiles, monkeypatch: pytest.MonkeyPatch, sentences: Recorder
) -> None:
    """So Kubernetes mounts secrets for processes that are not root."""
    found = os.stat_result((stat.S_IFREG | 0o640, 1, 1, 1, 0, 4711, 100, 0, 0, 0))
    monkeypatch.setattr(module.os, "fstat", lambda descriptor: found)
    monkeypatch.setattr(module.os, "geteuid", lambda: 1000)
    written.read()
    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    with pytest.raises(IdentityError, match="by others"):
        written.read()
    strange = os.stat_result((stat.S_IFREG | 0o600, 1, 1, 1, 1001, 4711, 100, 0, 0, 0))
    monkeypatch.setattr(module.os, "fstat", lambda descriptor: strange)
    with pytest.raises(IdentityError) as refused:
        written.read()
    sentences.check(refused)


def test_a_file_that_is_missing_is_named(written: TlsFiles, sentences: Recorder) -> None:
    for part, what in (
        (written.ca, "certificates of authorities"),
        (written.cert, "certificate"),
        (written.key, "key"),
    ):
        held = path(part).read_bytes()
        path(part).unlink()
        with pytest.raises(IdentityError, match=what) as refused:
            written.read()
        sentences.check(refused)
        path(part).write_bytes(held)
        path(part).chmod(0o600)
    written.read()


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path, sentences: Recorder) -> None:
    with pytest.raises(IdentityError) as refused:
        TlsFiles(tmp_path, tmp_path, tmp_path).read()
    sentences.check(refused)


def test_files_that_do_not_belong_together_are_named(written: TlsFiles, sentences: Recorder) -> None:
    other = worker("w1")
    path(written.cert).write_bytes(other.cert)
    with pytest.raises(IdentityError) as refused:
        written.read()
    sentences.check(refused)


def test_an_authority_that_did_not_sign_it_is_named(written: TlsFiles, sentences: Recorder) -> None:
    written.ca.write_bytes(authority("other").cert)
    with pytest.raises(IdentityError) as refused:
        written.read()
    sentences.check(refused)


def test_a_key_with_a_password_is_refused_without_a_question(written: TlsFiles, sentences: Recorder) -> None:
    """OpenSSL would ask for it at the terminal, and wait."""
    key = serialization.load_pem_private_key(path(written.key).read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    path(written.key).write_bytes(locked)
    with pytest.raises(IdentityError) as refused:
        written.read()
    sentences.check(refused)


def test_an_ended_certificate_is_refused(tmp_path: Path) -> None:
    files = TlsFiles.in_folder(tmp_path, "w0")
    files.write(ended(Role.WORKER, "w0"))
    with pytest.raises(IdentityError, match="has expired"):
        files.read()


def test_what_is_no_authority_is_refused_for_clients_too(written: TlsFiles, sentences: Recorder) -> None:
    for content in (b"", b"nonsense", b"\xff\xfe"):
        written.ca.write_bytes(content)
        with pytest.raises(IdentityError) as refused:
            written.read()
        sentences.check(refused)


def test_a_certificate_of_somebody_elses_making_needs_a_name_of_ours(
    tmp_path: Path, sentences: Recorder
) -> None:
    from cryptography import x509

    made = authority()
    issued = made.issue(Role.WORKER, "w0")
    plain = x509.load_pem_x509_certificate(issued.cert)
    builder = x509.CertificateBuilder(
        plain.issuer,
        plain.subject,
        plain.public_key(),
        plain.serial_number,
        plain.not_valid_before_utc,
        plain.not_valid_after_utc,
    )
    from cryptography.hazmat.primitives import hashes

    key = serialization.load_pem_private_key(made.key.reveal(), None)
    signed = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    files = TlsFiles.in_folder(tmp_path, "w0")
    files.write(Identity(made.cert, signed, Secret(issued.key.reveal())))
    with pytest.raises(IdentityError) as refused:
        files.read()
    sentences.check(refused)
