"""torch compiles with Triton, which aborts a process that has loaded TensorFlow: here it is loaded before."""

import contextlib
import sys

if "tensorflow" not in sys.modules:
    with contextlib.suppress(ImportError):
        import torch._dynamo  # noqa: F401
