"""What a copy of the coordinator takes again: the inputs of the server that leads, in its order and at its times."""

import json
from collections.abc import Sequence
from typing import Any

from psserver.coordinator import Input, inputs
from pswire.values import value


@value
class Configured:
    """The model is known. `model`: the message of that name, as bytes."""

    model: bytes


@value
class HeldEntries:
    """How many entries the copies of each other part have, for a server that may lead next."""

    entries: Sequence[int]


Noted = tuple[float, Input] | Configured | HeldEntries
"""An input with its time, or what others than the coordinator take between two of them."""


def encode(noted: Sequence[Noted], now: float) -> bytes:
    """Return what was noted as bytes. `now`: the job's present time."""
    plain: list[Any] = [now]
    for each in noted:
        if isinstance(each, Configured):
            plain.append({"configured": each.model.hex()})
        elif isinstance(each, HeldEntries):
            plain.append({"held": list(each.entries)})
        else:
            plain.append([each[0], inputs.encode(each[1])])
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()


def decode(data: bytes) -> tuple[list[Noted], float]:
    """Return what `encode` was given."""
    now, *plain = json.loads(data)
    return [_read(each) for each in plain], float(now)


def _read(plain: Any) -> Noted:
    if isinstance(plain, list):
        return float(plain[0]), inputs.decode(plain[1])
    if "held" in plain:
        return HeldEntries([int(each) for each in plain["held"]])
    return Configured(bytes.fromhex(plain["configured"]))
