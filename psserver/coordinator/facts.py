"""What a worker says of a contribution that it commits."""

from pswire.protocol import UNTOLD
from pswire.values import value


@value
class CommitFacts:
    """What a worker reports of the contribution that it commits: the number of its (last) batch in the worker's data,
    over how many samples it was averaged, its mean loss and the L2 norm of its gradient.

    `times` are for the log, as in `Times`; nothing is decided by them. `unit_ends`: the ticket's work unit has no
    more parts.
    """

    batch: int = 0
    samples: int = 0
    loss: float = 0.0
    norm: float = 0.0
    times: tuple[float | None, float | None, float | None] = UNTOLD
    # The optimizer's, from this contribution on; None: as before.
    learning_rate: float | None = None
    # By the receipts of the shards: no number of the payload is beyond what `Assurance` takes for ordinary.
    ordinary: bool = True
    unit_ends: bool = False


NO_FACTS = CommitFacts()
