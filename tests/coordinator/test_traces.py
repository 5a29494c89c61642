"""Golden traces. `pytest tests/coordinator/test_traces.py --regenerate` writes them anew; read the difference."""

from pathlib import Path

import pytest

from pslab.verify.trace_format import replay

# `traces` show what policies do, `rules` what holds under any of them.
TRACES = [
    path for folder in ("traces", "rules") for path in sorted((Path(__file__).parent / folder).glob("*.txt"))
]


@pytest.mark.parametrize("path", TRACES, ids=[path.stem for path in TRACES])
def test_a_golden_trace_replays_as_it_is_written(path: Path, regenerate: bool) -> None:
    told, harness = replay(path)
    if regenerate:
        path.write_text(told)
    assert told == path.read_text()
    verdict = harness.verdict()
    assert verdict.violations == (), [str(violation) for violation in verdict.violations]


def test_there_are_golden_traces() -> None:
    assert len(TRACES) >= 50
