"""How long a checkpoint may take: by all that a server has to write, rows of tables included."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from psserver.service.store import checkpoints
from psserver.service.store.checkpoints import PATIENCE, Checkpoints, limit
from pswire.model.plan import Plan, make_plan
from pswire.model.variables import VariableSpec
from pswire.patience import SLOWEST_LINK

PLAN = make_plan([VariableSpec("w", (3,))], 1)


def test_rows_have_the_time_of_as_many_bytes_of_variables() -> None:
    assert limit(PLAN, 10.0) == PATIENCE + 41
    assert limit(PLAN, 10.0, 100 * SLOWEST_LINK) == PATIENCE + 4 * (10 + 100) + 1


@pytest.mark.parametrize("rows", [0, 6 << 30])
def test_a_server_with_many_rows_has_more_time_for_its_part(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    class Changes:
        async def wait_for(self, _: Callable[[], bool], seconds: float) -> bool:
            limits.append(seconds)
            return False

    host = SimpleNamespace(
        saver=SimpleNamespace(parts={}), state=SimpleNamespace(changes=Changes()), rows_nbytes=rows
    )
    store = SimpleNamespace(discard=lambda name: None, make_room=lambda void: [])
    monkeypatch.setattr(checkpoints, "save_coordinator", lambda *_: {})
    taken = Checkpoints(tmp_path, store, 1, host, SimpleNamespace(), [], set(), lambda *_: None)  # type: ignore[arg-type]

    async def order() -> None:
        entry = SimpleNamespace(to_json=lambda: {"version": 7})
        terms, plan = SimpleNamespace(job="job", worker_timeout=10.0), PLAN
        given: tuple[Any, Any, Any, Any, Plan] = (
            *(SimpleNamespace(entry=entry, index=3), lambda: SimpleNamespace(version=7), terms, None),
            plan,
        )
        taken.order(*given)
        await taken.finish()

    asyncio.run(order())
    assert limits == [limit(PLAN, 10.0, rows)]
