"""The inputs of the training loop that are legal in each state of the engine (`LEGAL`).

The state follows from the ticket in hand. A dash is an illegal input: it changes nothing, and raises an `IllegalInput`
that names input and state.

    input        idle       waiting    working     committing  exhausted
    ready        waiting    waiting    waiting*    -           -
    take_grant   -          working**  -           -           -
    commit       -          -          committing  -           -
    abandon      -          -          idle        -           -
    done         exhausted  exhausted  exhausted   -           exhausted

    *   only if the ticket in hand was cancelled
    **  only if a grant is here

The answer to a commit, or `take_back`, ends `committing`. The answer and `abandon` lead to `waiting` if the next ticket
was asked for or granted already.
"""

from collections.abc import Mapping
from typing import Literal

from pswire.protocol import Refusal
from psworker.errors import IllegalInput, Refused, SessionError

WorkState = Literal["idle", "waiting", "working", "committing", "exhausted"]
"""The training loop's state, as the engine sees it."""

LEGAL: Mapping[str, frozenset[WorkState]] = {
    "ready": frozenset({"idle", "waiting"}),
    "take_grant": frozenset({"waiting"}),
    "commit": frozenset({"working"}),
    "abandon": frozenset({"working"}),
    "done": frozenset({"idle", "waiting", "working", "exhausted"}),
}
"""For each input of the training loop, the states in which it is legal."""


def illegal(action: str, ticket: int | None, state: WorkState, in_hand: int | None) -> IllegalInput:
    """Return the error for an input that the table refuses. `ticket`: of the input; `in_hand`: of the state."""
    what = action if ticket is None else f"{action} of ticket {ticket}"
    where = state if in_hand is None else f"{state} on ticket {in_hand}"
    public = ("ready", "commit", "abandon", "done")
    expected = " or ".join(name for name in public if state in LEGAL[name])
    return IllegalInput(f"{what} while {where}: expected {expected or 'nothing before the next grant'}")


def error_of(refusal: Refusal) -> SessionError:
    """Return the error of a coordinator's refusal. It makes every input of the table illegal."""
    return Refused(refusal.message) if refusal.fatal else SessionError(refusal.message)
