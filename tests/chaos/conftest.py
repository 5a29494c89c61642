"""Fixtures of this folder's tests."""

from tests.forking.fixtures import forks

__all__ = ["forks"]
