"""Whether PyTorch can run in this process."""

import sys
from importlib.util import find_spec
from typing import Any

import pytest


def torch_or_skip() -> Any:
    """torch compiles with Triton, where its wheel brings it, which aborts a process that has loaded TensorFlow before:
    conftest.py loads it first where it can."""
    if find_spec("triton") is not None and "tensorflow" in sys.modules and "triton" not in sys.modules:
        pytest.skip(
            "in a soak: TensorFlow is loaded in this process, and torch's Triton aborts behind it",
            allow_module_level=True,
        )
    return pytest.importorskip("torch", reason="torch is not installed (scripts/install torch)")
