"""What the training loop may do in each state of the engine.

What it has in hand decides (`LEGAL`). A dash is an illegal input: it raises
`IllegalInput`, which names input and state, and changes nothing.

    input            idle     waiting  granted  working     cancelled  committing  exhausted
    ready            waiting  waiting  granted  -           waiting*   -           -
    take_grant       -        -        working  -           -          -           -
    begin_commit     -        -        -        committing  committing -           -
    rollback_commit  -        -        -        -           -          working     -
    commit           -        -        -        waiting**   waiting**  waiting**   -
    abandon          -        -        -        idle*       idle*      -           -
    done             exhausted in every state but committing

    *   granted, when another ticket was granted ahead
    **  idle without `ready`; granted, when another ticket was granted ahead
"""

from collections.abc import Mapping
from typing import Literal

from pswire.protocol import Refusal
from psworker.errors import IllegalInput, Refused, SessionError

WorkState = Literal["idle", "waiting", "granted", "working", "cancelled", "committing", "exhausted"]
"""Where the training loop stands, as the engine sees it."""

_HOLDING: frozenset[WorkState] = frozenset({"working", "cancelled"})
_BETWEEN: frozenset[WorkState] = frozenset({"idle", "waiting", "granted"})

LEGAL: Mapping[str, frozenset[WorkState]] = {
    "ready": _BETWEEN | {"cancelled"},
    "take_grant": frozenset({"granted"}),
    "begin_commit": _HOLDING,
    "rollback_commit": frozenset({"committing"}),
    "commit": _HOLDING | {"committing"},
    "abandon": _HOLDING,
    "done": _BETWEEN | _HOLDING | {"exhausted"},
}
"""From each input of the training loop to the states in which it is legal."""


def illegal(action: str, ticket: int | None, state: WorkState, in_hand: int | None) -> IllegalInput:
    """What the table refuses. `ticket`: that `action` is about; `in_hand`: that the state is about."""
    what = action if ticket is None else f"{action} of ticket {ticket}"
    where = state if in_hand is None else f"{state} on ticket {in_hand}"
    # The steps of an exchange's commit are not named: no program that calls a session makes them.
    public = ("ready", "commit", "abandon", "done")
    expected = " or ".join(name for name in public if state in LEGAL[name])
    return IllegalInput(f"{what} while {where}: expected {expected or 'nothing before the next grant'}")


def error_of(refusal: Refusal) -> SessionError:
    """What the coordinator's refusal stands for: it makes every input of the table illegal but `rollback_commit`."""
    return Refused(refusal.message) if refusal.fatal else SessionError(refusal.message)
