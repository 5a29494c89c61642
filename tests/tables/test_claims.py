"""The list of claims names tests that exist."""

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_claim_names_tests_that_exist() -> None:
    rows = re.findall(r"^\| (?!claim|---)(.+?) \| (.+) \|$", (HERE / "README.md").read_text(), re.MULTILINE)
    assert len(rows) == 36
    for claim, named in rows:
        files = re.findall(r"`([\w/]+\.py)`", named)
        sources = [(HERE / name if "/" not in name else HERE.parents[1] / name).read_text() for name in files]
        assert files or "scripts/" in named, claim
        for test in re.findall(r"`(test_\w+)`", named):
            assert any(f"def {test}(" in source for source in sources), (claim, test)
