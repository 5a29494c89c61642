"""Command-line options: shared ones, and those that fields of a section declare (`pswire.config.flags`)."""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from pydantic import ValidationError

from pswire.config.experiment import OF_THE_LAB, Experiment
from pswire.config.flags import (
    CONNECTING,
    LISTENING,
    RUN,
    SERVER,
    WORKER,
    Flag,
    bounds_of,
    flag_of,
    kind_of,
    meanings_of,
    number,
)
from pswire.config.problems import describe_problems
from pswire.config.run_sections import SecuritySection
from pswire.config.sections import Section
from pswire.config.toml import overrides_of
from pswire.logs.events import FORMATS
from pswire.security.settings import SecurityOptions

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Command = TypeVar("Command", bound=Callable[..., Any])
Read = TypeVar("Read", bound=Section)

# Settings of every command's help.
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
    """Return the `shell_complete` of an option or argument whose values are names."""
    return lambda _context, _parameter, begun: [name for name in names() if name.startswith(begun)]


def overrides_option(about: str) -> Callable[[Command], Command]:
    """Add --set KEY=VALUE, repeatable, as the parameter `overrides`."""
    return click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=about)


def log_format_option(of: str) -> Callable[[Command], Command]:
    """Add --log-format. `of`: the name of the log in the help."""
    about = f"Format of {of}. json: one object per line, with a stable event name."
    return click.option(
        "--log-format", type=click.Choice(FORMATS), default="text", show_default=True, help=about
    )


def number_option(
    name: str, least: float, default: float, about: str, metavar: str | None = None
) -> Callable[[Command], Command]:
    """Add an option for a number of at least `least`; an integer if `default` is one."""
    kind = click.IntRange(min=int(least)) if isinstance(default, int) else click.FloatRange(min=least)
    return click.option(name, type=kind, default=default, show_default=True, metavar=metavar, help=about)


def key_options(
    command: str,
    names: Mapping[str, Callable[[], Iterable[str]]] = MappingProxyType({}),
    more: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Command], Command]:
    """Add an option for every experiment key that declares one for `command`.

    Each parameter has the key's name, such as "cluster.workers". `names`: values of a key, for completion. `more`: text
    that ``--help`` adds to a key's meaning.
    """

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
    """Add an option for every field of `model` that declares one for `command`.

    An option that is not given is None, so that the field's own default counts. Its parameter is `prefix` and the
    field's name. `only`: restricts the fields.
    """

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
    """An option with an invalid value. The text begins with the option's name."""


def read_options(model: type[Read], given: Mapping[str, Any], **more: Any) -> Read:
    """Make a `model` from those values of the command line that it declares, and from `more`. Raises OptionError."""
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    chosen = {
        name: value for name, value in given.items() if name in model.model_fields and value is not None
    }
    try:
        return model(**chosen, **more)
    except ValidationError as error:
        flags = {name: flag_of(field) for name, field in model.model_fields.items()}
        typed = {name: _dashed(name, flag) for name, flag in flags.items() if flag is not None}
        raise OptionError(describe_problems(error, {}, typed)[0]) from error


def _dashed(name: str, flag: Flag) -> str:
    return f"--{flag.name or name.replace('_', '-')}"


def security_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --tls-ca, --tls-cert and --tls-key, as the parameter `security`, a SecurityOptions."""

    @functools.wraps(command)
    def with_security(*args: Any, **given: Any) -> Any:
        keys = [key for key in given if key.startswith(_SECURITY)]
        chosen = {_security_option(key): value for key in keys if (value := given.pop(key)) is not None}
        return command(*args, security=SecurityOptions(**chosen), **given)

    return section_options(CONNECTING, SecuritySection, _SECURITY)(with_security)


def insecure_option(command: Command) -> Command:
    """Add --insecure to a command that listens; goes above `security_options`."""
    return section_options(LISTENING, SecuritySection, _SECURITY)(command)


# The prefix of keys in [security].
_SECURITY: Final = "security."


def _security_option(key: str) -> str:
    """Return the SecurityOptions field of a [security] key, such as "tls_ca" for "security.ca"."""
    name = key.removeprefix(_SECURITY)
    return name if name in SecurityOptions.__match_args__ else f"tls_{name}"


# What a command reads of an experiment beside its options. ps-lab run reads all of it.
_READ: Final[dict[str, tuple[str, ...]]] = {
    SERVER: ("policy.", "optimizer.", "security.", "cluster.metrics.", "job.patience."),
    WORKER: ("job.", "workers.", "security.", "run.seed."),
    RUN: ("",),
}


def chosen_keys(
    command: str, keys: Mapping[str, object], overrides: Sequence[str], more: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return all that was said of an experiment's keys, as overrides of it: by options, by `more` and by `--set`.

    `keys`: the values of options. Raises OptionError for a key that was said twice, and for one that `command` does not
    read.
    """
    said = typed_options(keys)
    for override in overrides:
        key = override.partition("=")[0].strip()
        twice = next((each for each in said if f"{each}.".startswith(f"{key}.")), None)
        if twice is not None:
            raise OptionError(f"--set {key}: {said[twice]} says it, too; expected one of the two")
        readers = _readers(key)
        if readers and command not in readers:
            raise OptionError(f"--set {key}: {command} does not read it; expected it for {readers[0]}")
        said[key] = "another --set"
    return (*overrides_of(keys), *more, *overrides)


def _readers(key: str) -> list[str]:
    """Return the commands that read a key; none for a key that no experiment has."""
    if any(f"{key}.".startswith(f"{name}.") for name in OF_THE_LAB):
        return [RUN]
    section, _, name = key.partition(".")
    found = Experiment.model_fields.get(section)
    model: Any = None if found is None else found.annotation
    fields, config = getattr(model, "model_fields", {}), getattr(model, "model_config", {})
    if found is None or (fields and name.partition(".")[0] not in fields and config.get("extra") != "allow"):
        return []
    flags = {command for command in _READ if name in fields and flag_of(fields[name], command)}
    return [each for each, read in _READ.items() if each in flags or f"{key}.".startswith(read)]


def typed_options(given: Mapping[str, object]) -> dict[str, str]:
    """Return, for each experiment key given on the command line, the option that the user typed."""
    options = [each for each in click.get_current_context().command.params if isinstance(each, _KeyOption)]
    return {
        each.key: each.opts[0]
        for each in options
        if given.get(each.key) not in (None, ()) and "." in each.key
    }


class _KeyOption(click.Option):
    """An option whose parameter name has dots, which no function argument could have."""

    def __init__(self, *arguments: Any, key: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.name = self.key = key


def _kind(field: "FieldInfo", flag: Flag) -> dict[str, Any]:
    """Return click's settings for the type of a value. The section checks its bounds."""
    kind, words = kind_of(field)
    if kind is bool:
        return {"is_flag": True, "default": None}
    if words and kind is not str:
        return {"type": _number_or_word}
    if words:
        return {"type": click.Choice(words)}
    if kind is Path:
        # With another metavar it may be a file.
        return {"type": click.Path(path_type=Path, file_okay=flag.metavar is not None)}
    return {"multiple": kind is list, "type": {int: int, float: float, Any: float}.get(kind, str)}


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _about(meaning: str, field: "FieldInfo", more: str) -> str:
    """Return the help: the meaning as a sentence without Markdown, then default and bounds."""
    text = " ".join(meaning.replace("`", "").split())
    default = field.get_default(call_default_factory=True, validated_data={})
    shown = number(default) if isinstance(default, float) else str(default)
    known = [] if isinstance(default, bool) or default in (None, "", []) else [f"default: {shown}"]
    limits = "; ".join([*known, *filter(None, [", ".join(bounds_of(field))])])
    repeats = "Repeatable." if kind_of(field)[0] is list else ""
    sentences = (f"{text[0].upper()}{text[1:].rstrip('.')}.", more, repeats, limits and f" [{limits}]")
    return " ".join(filter(None, sentences))
