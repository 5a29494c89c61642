"""How often held-out data is measured."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Every:
    """How often: after so many epochs of worker 0's data, versions, or seconds."""

    amount: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> Every:
        """ "1 epoch", "200 versions", "30 s". Raises ValueError."""
        found = re.fullmatch(r"(\d{1,9})\s*(epoch|version|s)s?", text.strip())
        if found is None or int(found[1]) < 1:
            raise ValueError(f'expected "1 epoch", "200 versions" or "30 s", got {text!r}')
        return cls(int(found[1]), found[2])
