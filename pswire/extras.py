"""How to install one of this project's extras, for errors that name a missing package."""

import json
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def how_to_install(
    extra: str, root: Path = _ROOT, prefix: str = sys.prefix, origin: str | None = None
) -> str:
    """Return the command that installs `extra` into this environment.

    `root`: the folder above this package; `prefix`: the environment; `origin`: the URL that the project was installed
    from, if pip recorded one.
    """
    script = root / "scripts" / "install"
    if script.is_file() and Path(prefix).resolve().parent == root.resolve():
        return f"{_short(script)} {extra}"
    url = _origin() if origin is None else origin
    return f"pip install 'paramserver[{extra}]{f' @ {url}' if url else ''}'"


def _short(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _origin() -> str:
    try:
        recorded = distribution("paramserver").read_text("direct_url.json")
    except PackageNotFoundError:
        return ""
    return str(json.loads(recorded).get("url", "")) if recorded else ""
