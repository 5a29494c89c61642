"""Call ps-lab as from a shell, in this process."""

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

from pslab.cli import main


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


def ps_lab(*arguments: object) -> Said:
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        with mock.patch.object(sys, "argv", ["ps-lab", *map(str, arguments)]):
            try:
                main()
            except SystemExit as exit_:
                code = exit_.code
    assert isinstance(code, int)
    return Said(code, out.getvalue(), err.getvalue())
