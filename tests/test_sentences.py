"""What users read stands in tests/<area>/sentences.txt, and a test says each of it."""

import platform
from pathlib import Path

import pytest

from tests.sentences import NAME, Recorder, exists, parse, plain, render, write

TESTS = Path(__file__).parent


@pytest.mark.parametrize("path", sorted(TESTS.glob(f"*/{NAME}")), ids=lambda path: path.parent.name)
def test_a_file_is_as_it_would_be_written_and_of_tests_that_are_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert render(parse(text)) == text
    assert not [name for name in parse(text) if not exists(path.parent, name)]


def test_another_sentence_is_found() -> None:
    sentences = Recorder(["expected a number"])
    with pytest.raises(AssertionError, match="regenerate"):
        sentences.check("expected a word")
    with pytest.raises(AssertionError, match="regenerate"):
        sentences.check("one that the file lacks")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / NAME
    (tmp_path / "test_a.py").write_text("def test_one(): ...\ndef test_two(): ...\n", encoding="utf-8")
    for test in ("test_two", "test_one[1]", "test_gone"):
        write(path, f"test_a.py::{test}", ["a line\nand another one", "a second text"])
    write(path, "test_a.py::test_two", ["another"])
    both = ["a line\nand another one", "a second text"]
    found = parse(path.read_text(encoding="utf-8"))
    assert found == {"test_a.py::test_one[1]": both, "test_a.py::test_two": ["another"]}


def test_what_differs_from_run_to_run_has_a_name(tmp_path: Path) -> None:
    said = plain(f"{tmp_path}/run: no server at 127.0.0.1:43210, see {TESTS.parent}/README.md  ")
    assert said == "{folder}/run: no server at 127.0.0.1:{port}, see {root}/README.md"
    assert plain(f"got Linux {platform.release()}: no") == "got Linux {kernel}: no"
