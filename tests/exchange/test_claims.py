"""Every claim about codecs names tests that there are."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_claim_has_its_tests() -> None:
    lines = (Path(__file__).parent / "claims.md").read_text(encoding="utf-8").splitlines()
    claims = [line for line in lines if re.match(r"\| \d+ \|", line)]
    assert len(claims) == 20
    named = {name for line in lines for name in re.findall(r"`(test_\w+)`", line)}
    code = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    assert [name for name in sorted(named) if f"def {name}(" not in code] == []
