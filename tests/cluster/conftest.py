"""Fixtures of the tests with real processes."""

from pathlib import Path

import pytest


@pytest.fixture
def end_of_data(tmp_path: Path) -> Path:
    """Workers started with --until this file go on until a test touches it."""
    return tmp_path / "end-of-data"
