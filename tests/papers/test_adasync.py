"""The example of a program that changes a policy by the losses in the log: AdaSync."""

import io
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "adasync.py"))


@pytest.mark.parametrize("quotient", [1.0, 2.5, 40.0])
def test_the_paper_s_equation_holds(quotient: float) -> None:
    k = EXAMPLE["wanted"](2, 8, quotient)
    assert k**2 / (8 - k) == pytest.approx(2**2 / (8 - 2) * quotient)


def test_more_gradients_per_update_as_the_loss_falls() -> None:
    """Losses 4, 1 and 0.1 of six workers; one worker's is always 100, and steers nothing."""
    entries: list[dict[str, Any]] = [{"kind": "job", "policy": {"aggregate": 1}, "workers": 6}]
    for version in range(1, 61):
        loss = (4.0, 1.0, 0.1)[(version - 1) // 20]
        entries += [
            {"kind": "commit", "worker": f"w{n}", "loss": 100.0 if n == 5 else loss} for n in range(6)
        ]
        entries.append({"kind": "apply", "version": version})
    entries.append({"kind": "stop"})
    log = io.StringIO("".join(json.dumps(entry) + "\n" for entry in entries))
    assert [k for k, _ in EXAMPLE["changes"](log)] == [2, 4]
