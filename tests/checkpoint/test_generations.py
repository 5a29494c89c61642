"""No two generations of a job have one name, whatever was lost of the folder."""

from pathlib import Path

import pytest

from psserver.checkpoint import Store, fence


def test_each_one_has_the_next_number(tmp_path: Path) -> None:
    store = Store(tmp_path / "checkpoints")
    assert fence.begin(store, "1f0c") == "1f0c"
    assert fence.begin_next(store, "1f0c", "fresh") == "1f0c.1"
    # Of one that wrote nothing to the log before it died.
    assert fence.begin_next(store, "1f0c", "fresh") == "1f0c.2"
    assert fence.begin_next(store, "", "fresh") == "1f0c.3"
    # The log of another job is followed.
    assert fence.begin_next(store, "bbbb.5", "fresh") == "bbbb.6"
    assert store.names() == []


@pytest.mark.parametrize(("logged", "named"), [("1f0c.4", "1f0c.5"), ("", "fresh")])
def test_the_log_is_enough(tmp_path: Path, logged: str, named: str) -> None:
    """Of a run before there were generations, or of which that file is lost; without either it is a new job."""
    assert fence.begin_next(Store(tmp_path / "checkpoints"), logged, "fresh") == named


def test_a_damaged_file_is_noticed_and_its_numbers_are_passed_over(tmp_path: Path) -> None:
    """One bit less, and it would be the number of a generation that there was, whose workers may still be there."""
    store = Store(tmp_path / "checkpoints")
    assert fence.begin_next(store, "1f0c.2", "fresh") == "1f0c.3"
    path = store.root / fence.GENERATION
    path.write_bytes(path.read_bytes().replace(b"1f0c.3", b"1f0c.2"))
    assert fence.begin_next(store, "1f0c.1", "fresh") == f"1f0c.{1 + fence.LEAP}"
    # Of a folder without a log the checkpoints know which job it is.
    path.write_bytes(b"")
    (store.root / "0000000812-1f0c.7").mkdir()
    assert fence.begin_next(store, "", "fresh") == f"1f0c.{7 + fence.LEAP}"
    path.write_bytes(b"1f0c")
    (store.root / "0000000812-1f0c.7").rmdir()
    assert fence.begin_next(store, "", "fresh") == "fresh"
