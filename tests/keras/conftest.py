"""Fixtures of this folder's tests."""

from tests.forking.fixtures import by_exec, forks

__all__ = ["by_exec", "forks"]
