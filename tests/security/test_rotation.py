"""Certificates are exchanged under a running process."""

import logging
from pathlib import Path

import pytest

from pswire.security.credentials import LiveIdentity
from pswire.security.files import TlsFiles
from pswire.security.names import IdentityError
from tests.security.authorities import worker
from tests.security.identities import overwrite
from tests.sentences import Recorder


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    made = TlsFiles.in_folder(tmp_path, "w0")
    made.write(worker())
    return made


def test_it_is_the_same_object_until_files_change(files: TlsFiles) -> None:
    live = LiveIdentity(files)
    first = live.now()
    assert live.now() is first
    files.write(worker(), replace=True)
    second = live.now()
    assert second.cert != first.cert
    assert live.now() is second


def test_half_of_an_exchange_changes_nothing(
    files: TlsFiles, caplog: pytest.LogCaptureFixture, sentences: Recorder
) -> None:
    """Files are written one after the other; meanwhile they do not belong together."""
    caplog.set_level(logging.INFO)
    live = LiveIdentity(files)
    first, new = live.now(), worker()
    overwrite(files.cert, new.cert)
    for _ in range(3):
        assert live.now() is first
    files.write(new, replace=True)
    assert live.now().cert == new.cert
    said = [record.message for record in caplog.records]
    assert len(said) == 2, "the failure once, the success once"
    assert "the key does not belong" in said[0]
    sentences.check(said[1])


def test_files_that_vanish_change_nothing(files: TlsFiles) -> None:
    live = LiveIdentity(files)
    first = live.now()
    files.key.unlink()
    assert live.now() is first


def test_the_first_files_must_be_good(files: TlsFiles, sentences: Recorder) -> None:
    files.ca.unlink()
    with pytest.raises(IdentityError) as refused:
        LiveIdentity(files)
    sentences.check(refused)


def test_one_in_memory_stays_as_it_is() -> None:
    made = worker()
    assert LiveIdentity(made).now() is made
