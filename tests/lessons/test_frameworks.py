"""The lesson on three frameworks: its script as `ps-lab` runs it, with those that are installed."""

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.lessons.lesson import LESSONS, commands
from tests.replay.command import ps_lab

pytestmark = [pytest.mark.nightly, pytest.mark.tensorflow, pytest.mark.cluster, pytest.mark.timeout(600)]

EXTRAS = {"tensorflow": "worker", "jax": "jax", "torch": "torch"}


def test_gradients_differ_by_rounding_and_weights_on_the_server_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(LESSONS / "frameworks", tmp_path / "lesson")
    monkeypatch.chdir(tmp_path / "lesson")
    run, show = commands(Path("README.md").read_text(encoding="utf-8"))
    done = ps_lab(*run.split()[1:])
    assert done.code == 0, done.err
    said = Path(show.split()[1]).read_text(encoding="utf-8")
    installed = [name for name in EXTRAS if find_spec(name) is not None]
    for name, extra in EXTRAS.items():
        errors = re.findall(rf"^{name}: from float64 (\S+), at most (\S+),", said, re.MULTILINE)
        if name not in installed:
            assert f"{name} is not installed (scripts/install {extra}): left out" in said
            continue
        [(median, most)] = errors
        assert 0 < float(median) <= float(most) < 1e-5
    pairs = re.findall(
        r"^\w+ and \w+: .* alone weights differ by (\S+), on the server by (\S+)$", said, re.MULTILINE
    )
    assert len(pairs) == len(installed) * (len(installed) - 1) // 2
    for alone, server in pairs:
        assert 0 < float(alone) < 1e-2 and server == "0"
    lines = Path("runs/frameworks/decisions.jsonl").read_text(encoding="utf-8").splitlines()
    joins = [entry for entry in map(json.loads, lines) if entry["kind"] == "join"]
    expected = {f"w{number}": f"{(installed * 3)[number]} on the CPU" for number in range(3)}
    assert {entry["worker"]: entry["computes"] for entry in joins} == expected
