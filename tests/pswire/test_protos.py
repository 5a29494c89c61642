"""scripts/protos proves that the generated code is current, and notices when it is not."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc_tools")
ROOT = Path(__file__).parents[2]


def protos(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / "scripts" / "protos"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for part in ("protos", "pswire/v1", "scripts"):
        shutil.copytree(ROOT / part, tmp_path / part)
    return tmp_path


def test_the_generated_code_is_current() -> None:
    done = protos(ROOT, "--check")
    assert done.returncode == 0, done.stderr


def test_a_changed_contract_is_noticed_and_mended(checkout: Path) -> None:
    model = checkout / "protos" / "pswire" / "v1" / "model.proto"
    model.write_text(model.read_text().replace("string name = 1", "string label = 1"))
    (checkout / "pswire" / "v1" / "gone_pb2.py").write_text("")
    done = protos(checkout, "--check")
    assert done.returncode == 1
    assert "run scripts/protos" in done.stderr
    assert "out of date: pswire/v1/model_pb2.py" in done.stderr
    assert "left over: pswire/v1/gone_pb2.py" in done.stderr
    assert protos(checkout).returncode == 0
    assert protos(checkout, "--check").returncode == 0


def test_a_broken_contract_is_refused(checkout: Path) -> None:
    (checkout / "protos" / "pswire" / "v1" / "model.proto").write_text("message {")
    done = protos(checkout, "--check")
    assert done.returncode not in (0, 2) and "protoc refused" in done.stderr
