"""Names of a job's generations."""

import pytest

from pswire.generations import Generation, follows


@pytest.mark.parametrize(
    "name", ["1f0c", "1f0c.1", "1f0c.12", "a.b", "a.b.3", ".1", "a.", "a.0", "a.01", "", "x.²"]
)
def test_a_name_is_read_as_it_was_written(name: str) -> None:
    found = Generation.named(name)
    assert found.name == name or Generation.named(found.name) == found


def test_a_later_one_of_the_same_job_follows() -> None:
    assert follows("1f0c.1", "1f0c") and follows("1f0c.10", "1f0c.9")
    assert not follows("1f0c", "1f0c") and not follows("1f0c.1", "1f0c.1") and not follows("1f0c.1", "1f0c.2")
    assert not follows("2222.5", "1f0c") and not follows("", "") and not follows("1f0c.1", "")
