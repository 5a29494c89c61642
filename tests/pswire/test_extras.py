"""An error that names a missing package says a command that installs it here."""

from pathlib import Path

import pytest

from pswire.extras import how_to_install

ROOT = Path(__file__).resolve().parents[2]


def test_in_a_checkout_s_own_environment_it_is_the_script(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prefix = str(ROOT / ".venv")
    monkeypatch.chdir(ROOT)
    assert how_to_install("ray", prefix=prefix) == "scripts/install ray"
    monkeypatch.chdir(tmp_path)
    assert how_to_install("ray", prefix=prefix) == f"{ROOT}/scripts/install ray"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ("file:///tmp/x.whl", "pip install 'paramserver[tls] @ file:///tmp/x.whl'"),
        ("", "pip install 'paramserver[tls]'"),
    ],
)
def test_elsewhere_pip_has_the_place_that_it_was_installed_from(
    tmp_path: Path, origin: str, command: str
) -> None:
    assert how_to_install("tls", tmp_path, str(tmp_path / ".venv"), origin) == command
    assert how_to_install("tls", ROOT, str(tmp_path), origin) == command


def test_each_message_asks_this_one_place() -> None:
    files = [
        path for name in ("pswire", "psserver", "psworker", "pslab") for path in (ROOT / name).rglob("*.py")
    ]
    assert [path.name for path in files if "pip install" in path.read_text(encoding="utf-8")] == ["extras.py"]
