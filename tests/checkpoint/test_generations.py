"""No two generations of a job have one name, whatever was lost of the folder."""

from pathlib import Path

from psserver.checkpoint import Store, generations


def test_each_one_has_the_next_number(tmp_path: Path) -> None:
    store = Store(tmp_path / "checkpoints")
    assert generations.begin(store, "1f0c") == "1f0c"
    assert generations.begin_next(store, "1f0c", "fresh") == "1f0c.1"
    # Of one that wrote nothing to the log before it died.
    assert generations.begin_next(store, "1f0c", "fresh") == "1f0c.2"
    assert generations.begin_next(store, "", "fresh") == "1f0c.3"
    assert store.names() == []


def test_the_log_is_enough(tmp_path: Path) -> None:
    """Of a run before there were generations, or of which that file is lost."""
    store = Store(tmp_path / "checkpoints")
    assert generations.begin_next(store, "1f0c.4", "fresh") == "1f0c.5"


def test_the_log_of_another_job_is_followed(tmp_path: Path) -> None:
    store = Store(tmp_path / "checkpoints")
    generations.begin(store, "aaaa.7")
    assert generations.begin_next(store, "bbbb.2", "fresh") == "bbbb.3"


def test_a_folder_without_a_job_gets_a_new_one(tmp_path: Path) -> None:
    assert generations.begin_next(Store(tmp_path / "checkpoints"), "", "fresh") == "fresh"
