"""Secret bytes, which print as *** also in tracebacks and logs."""

import hmac


class Secret:
    """Bytes that only `reveal` shows."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes = b"") -> None:
        self._value = value

    def reveal(self) -> bytes:
        """Return the bytes."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        """Compare in constant time."""
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(self._value)
