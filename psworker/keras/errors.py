"""What `fit` on parameter servers refuses."""

from psworker.errors import Unsupported


class FitError(Unsupported, RuntimeError):
    """Something in `fit` that parameter servers cannot do; the text says what, and what can be done instead."""
