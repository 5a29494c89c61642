"""Options that commands share."""

import logging
import os
from typing import Any

import click

from pswire.logs.events import event
from pswire.task_index import AUTO, task_index_from


class TaskIndexOption(click.ParamType[int | str]):
    """A number from 0 on, or "auto": what the environment says."""

    name = "task index"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"N|{AUTO}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if isinstance(value, int) or value == AUTO:
            return value if isinstance(value, int) else AUTO
        if value.isascii() and value.isdigit() and len(value) < 10:
            return int(value)
        self.fail(f'expected a number from 0 on or "{AUTO}", got {value!r}', param, ctx)


def chosen_task_index(given: int | str | None, command: str) -> int | None:
    """The number behind `--task-index`; for "auto" the log says where it was found. Raises AddressError."""
    if given != AUTO:
        assert not isinstance(given, str)
        return given
    found = task_index_from(os.environ)
    told = event("task_index", task_index=found.index, source=found.source)
    logging.getLogger(command).info("this is task %d, as %s says", found.index, found.source, extra=told)
    return found.index
