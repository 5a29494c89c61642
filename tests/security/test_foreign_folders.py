"""Looking at a run folder of somebody else runs nothing that it names, unless its reader says so."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pslab.dashboard import sources
from pslab.runs.folder import Run
from psserver.checkpoint.store import name_of
from psserver.policies import PolicyError, build
from pswire.exits import ExitCode
from tests.replay.command import ps_lab
from tests.replay.simulated import simulate

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
def test_compare_predicts_with_policies_that_are_built_in(
    tmp_path: Path, marker: Path, trust: tuple[str, ...]
) -> None:
    run = folder_that_names("others_policy:Mine", tmp_path / "run")
    own = simulate(tmp_path / "own", "async", simulation=TIMING)
    for folder, source in ((run, own), (own, run)):
        said = ps_lab("compare", folder.path, "--predict", source.path, "--repeat", 1, *trust)
        if trust:
            assert said.code == ExitCode.OK, said.err
        else:
            assert said.code == ExitCode.USAGE and "others_policy:Mine is code" in said.err
        assert marker.exists() == bool(trust)


@pytest.mark.parametrize("trusted", [False, True])
def test_the_page_asks_policies_that_are_built_in(tmp_path: Path, marker: Path, trusted: bool) -> None:
    run = folder_that_names("others_policy:Mine", tmp_path / "run")
    pages = sources.find(str(run.path), trusted=trusted).run
    assert pages is not None
    assert ("--trust" in json.loads(pages.part(-1))["unexplained"]) == (not trusted)
    assert marker.exists() == trusted


@pytest.mark.parametrize("trust", [(), ("--trust",)])
def test_checkpoints_are_held_against_policies_that_are_built_in(
    tmp_path: Path, marker: Path, trust: tuple[str, ...]
) -> None:
    run = folder_that_names("others_policy:Mine", tmp_path / "run")
    (run.path / "checkpoints" / name_of(1, "j")).mkdir(parents=True)
    ps_lab("checkpoints", run.path, *trust)
    assert marker.exists() == bool(trust)


def test_nothing_but_a_policy_is_called(tmp_path: Path) -> None:
    """Its arguments are the folder's choice, too."""
    kept = tmp_path / "kept"
    kept.write_text("something", encoding="utf-8")
    with pytest.raises(PolicyError, match="it is <function basicConfig"):
        build("logging:basicConfig", {"filename": str(kept), "filemode": "w"}, 1)
    assert kept.read_text(encoding="utf-8") == "something"
