"""Settings that become overrides are what they were once they are read again."""

import os

import pytest

from pswire.config.toml import apply_overrides, overrides_of


@pytest.mark.parametrize(
    "value",
    [
        *(3, 0.5, True, "true", "3", "1e5", "", 'a "b" \\c', "two\nlines", "a = 1", "2024-01-01"),
        *(["w0", "w1"], "große/\U0001f600.py:Job", os.fsdecode(b"/data/\xff.py")),
    ],
)
def test_a_setting_comes_back(value: object) -> None:
    document: dict[str, object] = {}
    apply_overrides(document, overrides_of({"job.module": value, "job.initial": None}))
    assert document == {"job": {"module": value}}
