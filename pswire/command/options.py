"""Options of commands: those that several have, and those that fields of a section declare (`pswire.config.flags`)."""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from pydantic import ValidationError

from pswire.config.experiment import Experiment
from pswire.config.flags import CONNECTING, LISTENING, Flag, bounds_of, flag_of, kind_of, meanings_of, number
from pswire.config.problems import describe_problems
from pswire.config.run_sections import SecuritySection
from pswire.config.sections import Section
from pswire.logs.events import FORMATS
from pswire.security.settings import SecurityOptions

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Command = TypeVar("Command", bound=Callable[..., Any])
Read = TypeVar("Read", bound=Section)

# Of every command's help.
CONTEXT: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

hosts_option = click.option(
    "--ps-hosts", metavar="HOST:PORT,...", help="All servers, in task order. Default: TF_CONFIG."
)
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


def key_options(
    command: str,
    names: Mapping[str, Callable[[], Iterable[str]]] = MappingProxyType({}),
    more: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Command], Command]:
    """An option for every key of an experiment file that `command` has as one; its parameter has the key's name, such
    as "cluster.workers". `names`: values of a key, for completion. `more`: what ``--help`` says behind its meaning."""

    def with_options(function: Command) -> Command:
        for section, field in reversed(Experiment.model_fields.items()):
            model = field.annotation
            if isinstance(model, type) and issubclass(model, Section):
                function = section_options(command, model, f"{section}.", names, more)(function)
        return function

    return with_options


def section_options(
    command: str,
    model: type[Section],
    prefix: str = "",
    names: Mapping[str, Callable[[], Iterable[str]]] = MappingProxyType({}),
    more: Mapping[str, str] = MappingProxyType({}),
    only: Collection[str] = (),
) -> Callable[[Command], Command]:
    """An option for every field of `model` that declares one of `command`; not given it is None, so that the field's
    own default counts. Its parameter has the field's name behind `prefix`. `only`: for these fields."""

    def with_options(function: Command) -> Command:
        meanings = meanings_of(model)
        for name, field in reversed(model.model_fields.items()):
            flag, key = flag_of(field, command), prefix + name
            if flag is not None and (not only or name in only):
                function = click.option(
                    _dashed(name, flag),
                    cls=_KeyOption,
                    key=key,
                    metavar=flag.metavar,
                    shell_complete=completed_by(names[key]) if key in names else None,
                    help=flag.about or _about(meanings.get(name, name), field, more.get(key, "")),
                    **_kind(field, flag),
                )(function)
        return function

    return with_options


class OptionError(ValueError):
    """An option whose value is none; the text begins with its name."""


def read_options(model: type[Read], given: Mapping[str, Any], **more: Any) -> Read:
    """Those of `given`, the values from the command line, that `model` declares, and `more`. Raises OptionError."""
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    said = {name: value for name, value in given.items() if name in model.model_fields and value is not None}
    try:
        return model(**said, **more)
    except ValidationError as error:
        flags = {name: flag_of(field) for name, field in model.model_fields.items()}
        typed = {name: _dashed(name, flag) for name, flag in flags.items() if flag is not None}
        raise OptionError(describe_problems(error, {}, typed)[0]) from error


def _dashed(name: str, flag: Flag) -> str:
    return f"--{flag.name or name.replace('_', '-')}"


def security_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--tls-ca, --tls-cert, --tls-key and --token-file; the command gets them as `security`, a SecurityOptions."""

    @functools.wraps(command)
    def with_security(*args: Any, **given: Any) -> Any:
        keys = [key for key in given if key.startswith(_SECURITY)]
        said = {_security_option(key): value for key in keys if (value := given.pop(key)) is not None}
        return command(*args, security=SecurityOptions(**said), **given)

    return section_options(CONNECTING, SecuritySection, _SECURITY)(with_security)


def insecure_option(command: Command) -> Command:
    """--insecure, above `security_options`, for what listens."""
    return section_options(LISTENING, SecuritySection, _SECURITY)(command)


# Before a key of [security].
_SECURITY: Final = "security."


def _security_option(key: str) -> str:
    """The field of SecurityOptions of a key of [security], such as "tls_ca" of "security.ca"."""
    name = key.removeprefix(_SECURITY)
    return name if name in SecurityOptions.__match_args__ else f"tls_{name}"


def typed_options(given: Mapping[str, object]) -> dict[str, str]:
    """Of the keys of an experiment that `given` has from the command line: the option that the user typed."""
    options = [each for each in click.get_current_context().command.params if isinstance(each, _KeyOption)]
    return {
        each.key: each.opts[0]
        for each in options
        if given.get(each.key) not in (None, ()) and "." in each.key
    }


class _KeyOption(click.Option):
    """Has the name of a key, with dots, as no argument of a function could."""

    def __init__(self, *arguments: Any, key: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.name = self.key = key


def _kind(field: "FieldInfo", flag: Flag) -> dict[str, Any]:
    """What click makes of a text; whether the value is within the field's bounds the section says."""
    kind, words = kind_of(field)
    if kind is bool:
        return {"is_flag": True, "default": None}
    if words and kind is not str:
        return {"type": _number_or_word}
    if words:
        return {"type": click.Choice(words)}
    if kind is Path:
        # One that is named otherwise may be a file.
        return {"type": click.Path(path_type=Path, file_okay=flag.metavar is not None)}
    return {"multiple": kind is list, "type": {int: int, float: float, Any: float}.get(kind, str)}


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _about(meaning: str, field: "FieldInfo", more: str) -> str:
    """The meaning as a sentence without Markdown, then the default and the bounds."""
    text = " ".join(meaning.replace("`", "").split())
    default = field.get_default(call_default_factory=True, validated_data={})
    shown = number(default) if isinstance(default, float) else str(default)
    known = [] if isinstance(default, bool) or default in (None, "", []) else [f"default: {shown}"]
    told = "; ".join([*known, *filter(None, [", ".join(bounds_of(field))])])
    repeats = "Repeatable." if kind_of(field)[0] is list else ""
    sentences = (f"{text[0].upper()}{text[1:].rstrip('.')}.", more, repeats, told and f" [{told}]")
    return " ".join(filter(None, sentences))
