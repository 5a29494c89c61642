"""The inputs of the training loop that are legal in each state of the engine (`LEGAL`).

The state follows from what the loop has in hand. A dash is an illegal input: it changes nothing, and raises an
`IllegalInput` that names input and state.

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
"""The training loop's state, as the engine sees it."""

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
"""For each input of the training loop, the states in which it is legal."""


def illegal(action: str, ticket: int | None, state: WorkState, in_hand: int | None) -> IllegalInput:
    """Return the error for an input that the table refuses. `ticket`: of the input; `in_hand`: of the state."""
    what = action if ticket is None else f"{action} of ticket {ticket}"
    where = state if in_hand is None else f"{state} on ticket {in_hand}"
    # Only a session, not a program that uses one, takes the steps of an exchange's commit.
    public = ("ready", "commit", "abandon", "done")
    expected = " or ".join(name for name in public if state in LEGAL[name])
    return IllegalInput(f"{what} while {where}: expected {expected or 'nothing before the next grant'}")


def error_of(refusal: Refusal) -> SessionError:
    """Return the error of a coordinator's refusal. It makes every input but `rollback_commit` illegal."""
    return Refused(refusal.message) if refusal.fatal else SessionError(refusal.message)
