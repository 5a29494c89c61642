"""ps-lab check and the final weights: an edited, lost or foreign file is found."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pslab.check.checker import CheckResult, check_run
from pslab.runs.folder import Run
from psserver.weights_file import load, save
from tests.lab.logs import WEIGHTS, async_log, write_run
from tests.sentences import Recorder

Edit = Callable[[Path], object]


def checked(folder: Path, edit: Edit, **summary: object) -> CheckResult:
    write_run(folder, async_log(), **summary)
    edit(folder / "weights.safetensors")
    return check_run(Run(folder))


def resave(file: Path, order: object, **changed: np.ndarray) -> None:
    save_file({**load_file(file), **changed}, file, {"order": json.dumps(order)})


def flip_one_bit(file: Path) -> None:
    whole = bytearray(file.read_bytes())
    whole[-1] ^= 1
    file.write_bytes(whole)


def call_it_integers(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"F32"', b'"I32"'))


ORDER = list(WEIGHTS)
EDITS: list[tuple[Edit, str]] = [
    (flip_one_bit, "weights.safetensors has "),
    (lambda file: resave(file, ORDER[::-1]), "weights.safetensors has "),
    (lambda file: resave(file, ORDER, bias=np.ones(4, np.float32)), "weights.safetensors has "),
    (
        lambda file: resave(file, ORDER, more=np.ones(1, np.float32)),
        "list of variables is not that of its arrays",
    ),
    (lambda file: resave(file, "kernel"), "is not a list of names"),
    (lambda file: resave(file, ORDER, bias=np.ones(3, np.float64)), "expected float32 for 'bias', got F64"),
    (call_it_integers, "expected float32 for "),
    (lambda file: save_file(WEIGHTS, file), "does not state the order of its variables"),
    (lambda file: file.write_bytes(file.read_bytes()[:-1]), "cannot be read: "),
    (lambda file: file.write_bytes(b""), "cannot be read: "),
    (Path.unlink, "but weights.safetensors is missing"),
]


@pytest.mark.parametrize(("edit", "words"), EDITS)
def test_edited_weights_are_found(tmp_path: Path, edit: Edit, words: str) -> None:
    (violation,) = checked(tmp_path / "a", edit).violations
    assert violation.check == "final weights"
    assert words in violation.message


def test_weights_of_a_job_that_came_to_none_are_foreign(tmp_path: Path, sentences: Recorder) -> None:
    verdict = checked(tmp_path / "a", lambda file: None, weights_sha256=None)
    sentences.check(*[v.message for v in verdict.violations])
    assert checked(tmp_path / "b", Path.unlink, weights_sha256=None).ok


def test_saved_weights_come_back_in_their_order(tmp_path: Path) -> None:
    weights = {
        "z": np.float32(3).reshape(()),
        "a": np.ones((2, 2), np.float32).T,
        "m": np.zeros(1, np.float32),
    }
    save(tmp_path / "file", weights)
    saved = load(tmp_path / "file")
    assert saved.order == ("z", "a", "m")
    for name, values in weights.items():
        np.testing.assert_array_equal(saved.arrays[name], values)


def test_a_single_number_is_not_a_vector_of_one(tmp_path: Path) -> None:
    scale, lists = np.float32(2.5).reshape(()), np.ones((3, 2), np.float32).T
    save(tmp_path / "weights.safetensors", {"scale": scale, "turned": lists})
    arrays = load(tmp_path / "weights.safetensors").arrays
    assert arrays["scale"].shape == () and arrays["scale"] == 2.5
    assert arrays["turned"].shape == (2, 3)
