"""Options that several commands have, declared once."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from pswire.logs.events import FORMATS

Command = TypeVar("Command", bound=Callable[..., Any])

# Of every command's help.
CONTEXT: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

config_option = click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), help="Experiment file (TOML)."
)
json_lines_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line on standard output."
)
parent_option = click.option(
    "--parent", type=int, hidden=True, help="Exit when the parent process is no longer this one."
)


def completed_by(
    names: Callable[[], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """The `shell_complete` of an option or argument whose values are names."""
    return lambda _context, _parameter, begun: [name for name in names() if name.startswith(begun)]


def overrides_option(about: str) -> Callable[[Command], Command]:
    """--set KEY=VALUE, any number of times, as `overrides`."""
    return click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=about)


def log_format_option(of: str) -> Callable[[Command], Command]:
    """--log-format. `of`: whose logs."""
    about = f"Of {of}. json: an object per line, with a stable event name."
    return click.option(
        "--log-format", type=click.Choice(FORMATS), default="text", show_default=True, help=about
    )


def number_option(
    name: str, least: float, default: float, about: str, metavar: str | None = None
) -> Callable[[Command], Command]:
    """A number of at least `least`; a whole one where `default` is."""
    kind = click.IntRange(min=int(least)) if isinstance(default, int) else click.FloatRange(min=least)
    return click.option(name, type=kind, default=default, show_default=True, metavar=metavar, help=about)
