"""The exception of every broken promise, and the check that raises it."""


class InvariantViolation(AssertionError):
    """A promise is broken; the sentence says which, and by what."""


def expect(holds: bool, sentence: str) -> None:
    """Raise InvariantViolation with the sentence unless it holds."""
    if not holds:
        raise InvariantViolation(sentence)
