"""What was promised and is not so."""


class InvariantViolation(AssertionError):
    """A promise is broken; the sentence says which, and by what."""


def expect(holds: bool, sentence: str) -> None:
    """Raise Breach with the sentence unless it holds."""
    if not holds:
        raise InvariantViolation(sentence)
