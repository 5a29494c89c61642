"""One authority for all tests here: a key takes milliseconds, but there are many."""

from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs the extra tls")

from tests.security.identities import Identities


@pytest.fixture(scope="session")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    folder: Path = tmp_path_factory.mktemp("identities")
    return Identities(folder)
