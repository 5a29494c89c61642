"""Looking at a run folder of somebody else runs nothing that it names, and shows nobody a
certificate."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pslab.authority import Authority
from pslab.cli import cli
from pslab.commands.live import observer_credentials
from pslab.runs.folder import Run
from psserver.checkpoint.store import name_of
from psserver.policies import PolicyError, build
from pswire.exits import ExitCode
from pswire.security.files import TlsFiles
from pswire.security.names import Role
from pswire.security.settings import SecurityOptions
from tests.replay.command import ps_lab
from tests.replay.simulated import simulate
from tests.sentences import Recorder

SECRET = "s" * 43
TIMING = {"problem": "none", "batches": 8, "compute": "constant(1)"}
OWN = """
from pathlib import Path
from psserver.policies import Composition, Count, Immediate, KeepAll, ComposedPolicy

Path(__file__).with_name("ran").touch()

class Mine(ComposedPolicy):
    def __init__(self, workers):
        super().__init__(Composition(gate=Immediate(), trigger=Count(1), staleness=KeepAll()))
"""


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """It is there once the module of the policy has run."""
    (tmp_path / "others_policy.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "ran"
    sys.modules.pop("others_policy", None)


def folder_that_names(policy: str, path: Path) -> Run:
    run = simulate(path, "async", simulation=TIMING)
    for name in ("experiment.toml", "decisions.jsonl"):
        text = (run.path / name).read_text(encoding="utf-8")
        (run.path / name).write_text(text.replace('"async"', f'"{policy}"'), encoding="utf-8")
    return Run(run.path)


@pytest.mark.parametrize("trust", [(), ("--trust",)])
def test_predictions_are_made_with_policies_that_are_built_in(
    tmp_path: Path, marker: Path, trust: tuple[str, ...]
) -> None:
    run = folder_that_names("others_policy:Mine", tmp_path / "run")
    own = simulate(tmp_path / "own", "async", simulation=TIMING)
    for folder, source in ((run, own), (own, run)):
        said = ps_lab("predict", folder.path, "--pace", source.path, "--repeat", 1, *trust)
        if trust:
            assert said.code == ExitCode.OK, said.err
        else:
            assert said.code == ExitCode.USAGE and "others_policy:Mine is code" in said.err
        assert marker.exists() == bool(trust)


def test_checkpoints_are_listed_without_the_policy(tmp_path: Path, marker: Path) -> None:
    run = folder_that_names("others_policy:Mine", tmp_path / "run")
    (run.path / "checkpoints" / name_of(1, "j")).mkdir(parents=True)
    ps_lab("checkpoints", run.path)
    assert not marker.exists()


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """It has an address and an authority of its maker's, and names a certificate of the user's."""
    run = tmp_path / "run"
    run.mkdir()
    own = TlsFiles.in_folder(tmp_path, "me")
    own.write(Authority.make("c").issue(Role.OBSERVER, "me"))
    says = f'[security]\nca = "{own.ca}"\ncert = "{own.cert}"\nkey = "{own.key}"\n'
    (run / "experiment.toml").write_text(says, encoding="utf-8")
    (run / "address").write_text("127.0.0.1:1", encoding="utf-8")
    return run


def test_a_folder_gets_no_certificate_for_the_address_that_it_names(
    planted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not observer_credentials(SecurityOptions(), planted).encrypted
    assert "names certificates, which are not used" in capsys.readouterr().err


def test_nothing_but_a_policy_is_called(tmp_path: Path, sentences: Recorder) -> None:
    """Its arguments are the folder's choice, too."""
    kept = tmp_path / "kept"
    kept.write_text("something", encoding="utf-8")
    with pytest.raises(PolicyError) as refused:
        build("logging:basicConfig", {"filename": str(kept), "filemode": "w"}, 1)
    sentences.check(refused)
    assert kept.read_text(encoding="utf-8") == "something"


@pytest.mark.parametrize("command", ["check", "compare"])
def test_a_foreign_folder_gives_no_control_characters_to_the_terminal(tmp_path: Path, command: str) -> None:
    bad = "\x1b[31m\x07\x9b"
    folder = simulate(tmp_path / "run", "async", simulation=TIMING).path
    log, summary = folder / "decisions.jsonl", folder / "summary.json"
    log.write_text(log.read_text().replace('"w0"', json.dumps(bad)))
    said = json.loads(summary.read_text().replace('"w0"', json.dumps(bad)))
    said |= {"reason": bad, "policy": {"name": bad}, "missing": {"batches": {bad: 3}}}
    summary.write_text(json.dumps(said))
    shown = CliRunner().invoke(cli, [command, str(folder)], color=True).output
    assert r"\x1b[31m\x07\x9b" in shown
    assert not {"\x07", "\x9b"} & set(shown) and bad[:5] not in shown


@pytest.mark.parametrize("text", ['name = "\\u001b[31m\\u0000"', '"\\u001b[31m\\u0000" = 1'])
def test_a_foreign_experiment_gives_none_either(tmp_path: Path, text: str) -> None:
    folder = simulate(tmp_path / "run", "async", simulation=TIMING).path
    (folder / "experiment.toml").write_text(f"[run]\n{text}\n")
    shown = CliRunner().invoke(cli, ["compare", str(folder)], color=True).output
    assert r"\x1b[31m\x00" in shown and "\x1b" not in shown
