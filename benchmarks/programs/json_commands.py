"""The child's end of the conversation: one JSON object per line in, one per line out."""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

Command = Callable[..., dict[str, Any] | None]


def serve(commands: Mapping[str, Command]) -> None:
    """Answer {"do": name, ...} by calling `commands[name](...)`, until the input ends."""
    # Libraries that print must not be taken for answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = commands[request.pop("do")](**request) or {}
        except Exception:  # the parent shows it and ends this process
            reply = {"error": traceback.format_exc()}
        print(json.dumps(reply), file=answers)
