"""The commands and their options, and the exit codes: what ``--help`` prints, as pages."""

import re

import click

import pslab.cli
import psserver.cli
import psworker.cli
from docs.generate.docstrings import escaped
from docs.generate.table import code, table
from pswire.exits import ExitCode

PROGRAMS: dict[str, click.Command] = {
    "ps-server": psserver.cli.main,
    "ps-worker": psworker.cli.main,
    "ps-lab": pslab.cli.cli,
}


def pages() -> dict[str, str]:
    found = {"exit-codes.md": _exit_codes(), "commands/README.md": _overview()}
    for name, command in PROGRAMS.items():
        found[f"commands/{name}.md"] = _page(name, command)
        if isinstance(command, click.Group):
            for inner in command.commands.values():
                found[f"commands/{name}-{inner.name}.md"] = _page(f"{name} {inner.name}", inner)
    return found


def _overview() -> str:
    rows = [(f"[`{name}`]({name}.md)", escaped(_first(command))) for name, command in PROGRAMS.items()]
    return (
        "# Commands\n\nEvery command prints its options with `--help`; these pages are made from the same text.\n"
        "The [exit codes](../exit-codes.md) are the same for all.\n\n"
        + table(("command", "does"), rows)
        + f"\n{_subcommands('ps-lab')}\n{_COMPLETION}"
    )


_COMPLETION = """## Completion

Bash, zsh and fish complete commands, options, and the names of policies and optimizers, after one line for each program
in `~/.bashrc`, `~/.zshrc` or `~/.config/fish/config.fish`:

<!-- illustrative: lines for three shells -->
```sh
eval "$(_PS_LAB_COMPLETE=bash_source ps-lab)"       # and _PS_SERVER_COMPLETE, ps-server; _PS_WORKER_COMPLETE, ps-worker
eval "$(_PS_LAB_COMPLETE=zsh_source ps-lab)"
_PS_LAB_COMPLETE=fish_source ps-lab | source
```

The shell asks the command itself, which takes a second to start.
"""


def _first(command: click.Command) -> str:
    return (command.help or "").replace("\b", "").strip().split("\n\n")[0].split(". ")[0].rstrip(".") + "."


def _page(name: str, command: click.Command, level: str = "#") -> str:
    context = click.Context(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f"{level} {name}", f"```text\n{name} {usage}\n```", *_prose(command.help or "")]
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    assert all(each.human_readable_name in usage for each in arguments), name
    if name == "ps-lab":
        parts += [_subcommands(name)]
    elif isinstance(command, click.Group):
        parts += [_page(f"{name} {inner.name}", inner, f"{level}#") for inner in command.commands.values()]
    rows = [
        (", ".join(code(each) for each in record[0].split(", ")), escaped(record[1]))
        for option in command.get_params(context)
        if (record := option.get_help_record(context)) is not None
    ]
    parts += [f"{level}# Options", table(("option", "meaning"), rows)]
    return "\n\n".join(parts) + "\n"


def _subcommands(name: str) -> str:
    """Tables by what the commands are for."""
    return "\n".join(
        f"## {title}\n\n"
        + table(
            ("command", "does"),
            [(f"[`{name} {each.name}`]({name}-{each.name}.md)", escaped(_first(each))) for each in commands],
        )
        for title, commands in pslab.cli.SECTIONS.items()
    )


def _prose(text: str) -> list[str]:
    """Paragraphs of a help text; those behind a form feed or backspace mark keep their lines."""
    found = []
    for part in re.split(r"\n\s*\n", text.strip()):
        if part.lstrip().startswith("\b"):
            head, *lines = [line for line in part.replace("\b", "").split("\n") if line.strip()]
            if head.startswith(" "):
                head, lines = "", [head, *lines]
            found += [escaped(head)] if head else []
            found.append("```text\n" + "\n".join(line.strip() for line in lines) + "\n```")
        else:
            found.append(escaped(" ".join(part.split())))
    return found


_SUPERVISORS = (
    ("systemd", "`Restart=on-failure`, `RestartPreventExitStatus=2 5 6 8 9 11`"),
    ("Slurm", "`srun` passes codes on; 128 + the signal for what was killed: 137 is often the memory limit"),
    ("ssh", "passes codes on; 255 is its own: no connection"),
    ("Kubernetes", "`podFailurePolicy` by these codes, [as in the manifests](guides/kubernetes.md)"),
    ("`ps-lab run`", "starts again by the column above, so often as `--restarts` says"),
)


def _exit_codes() -> str:
    rows = [
        (code(int(each)), code(each.name), escaped(each.meaning), "yes" if each.restart else "")
        for each in ExitCode
    ]
    return (
        "# Exit codes\n\nThe same for `ps-server`, `ps-worker` and `ps-lab`; their `--help` prints them. "
        "In Python they are `pswire.exits.ExitCode`.\n\n"
        + table(("code", "name", "meaning", "a restart may help"), rows)
        + "\n\nWhat is killed by a signal that nobody meant (`SIGKILL`, `SIGSEGV`) may be started again, too; a server "
        "with `--resume auto` ([Recovery](recovery.md)).\n\n"
        "## For supervisors\n\n"
        "The exit code of server 0, or of `ps-lab run`, is the run's. A worker's says what became of that worker.\n\n"
        + table(("supervisor", "what it sees, and what to tell it"), _SUPERVISORS)
    )
