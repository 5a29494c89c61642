"""Declarations of a policy: which parts see tensors, and what its workers do between pull and push.

A declaration has names and numbers, never an array. psserver.shard has the tensor parts themselves, psworker.local the
local rules. Every shard receives the declaration as JSON. It is also in the first entry of the decision log, so that
the log alone suffices for a replay.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from psserver.policies.decisions import PolicyError
from pswire.domains import LARGEST_DOUBLE

# Name of a part -> its knobs. psserver.shard builds the parts.
COMPENSATORS: Mapping[str, tuple[str, ...]] = {
    "taylor": (),
    "adaptive-taylor": ("decay", "epsilon"),
    "gap-aware": ("decay", "epsilon"),
}
AGGREGATORS: Mapping[str, tuple[str, ...]] = {
    "mean": (),
    "median": ("fewest",),
    "trimmed-mean": ("trim",),
    "krum": ("byzantine", "select"),
}
# Aggregators that compare whole vectors and so cannot work coordinate by coordinate.
UNDIVIDED = ("krum",)


def _check_numbers(owner: str, knobs: object) -> None:
    """Raise PolicyError unless `knobs` is a mapping from names to finite numbers."""
    if not isinstance(knobs, Mapping):
        raise PolicyError(f"{owner}: expected its knobs as a mapping from names to numbers, got {knobs!r}")
    for name, value in knobs.items():
        if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, int | float):
            raise PolicyError(f"{owner}: expected a number under a name, got {name!r}: {value!r}")
        if not -LARGEST_DOUBLE <= value <= LARGEST_DOUBLE:
            raise PolicyError(f"{owner}: {name} is {value}; expected a finite number")


@dataclass(frozen=True, slots=True)
class TensorParts:
    """Which compensator and aggregator the shards use.

    `compensator` turns each contribution whose decision has a compensation
    other than 0 into g' = f(g, x_now, x_base); None: there is none.
    `aggregator` makes one gradient of an update's K. "mean" stands for the
    running sum of factor * g, scaled by the Apply; any other needs the list
    of all K, from different workers, and returns a gradient that is scaled already.
    `knobs`: the numbers of both, all of them and no others.
    `fragments`: the number of groups of rows into which the model is cut. An update
    changes one group: the version that it starts from, modulo `fragments`.

    Raises PolicyError for an unknown name or knob, or a missing one.
    """

    compensator: str | None = None
    aggregator: str = "mean"
    knobs: Mapping[str, float] = field(default_factory=dict)
    fragments: int = 1

    def __post_init__(self) -> None:
        for what, name, known in (
            ("compensator", self.compensator, COMPENSATORS),
            ("aggregator", self.aggregator, AGGREGATORS),
        ):
            if name is not None and name not in known:
                raise PolicyError(f"unknown {what} {name!r}; expected one of {', '.join(known)}")
        if isinstance(self.fragments, bool) or not isinstance(self.fragments, int) or self.fragments < 1:
            raise PolicyError(f"fragments: expected a whole number from 1 on, got {self.fragments!r}")
        if self.fragments > 1 and (self.compensator is not None or self.aggregator != "mean"):
            raise PolicyError("fragments: expected neither a compensator nor an aggregator beside them")
        _check_numbers(f"compensator {self.compensator} and aggregator {self.aggregator}", self.knobs)
        wanted = {*AGGREGATORS[self.aggregator], *COMPENSATORS.get(self.compensator or "", ())}
        if set(self.knobs) != wanted:
            raise PolicyError(
                f"compensator {self.compensator} and aggregator {self.aggregator} take the numbers "
                f"{sorted(wanted)}, got {sorted(self.knobs)}"
            )

    @property
    def keep_bases(self) -> bool:
        """Whether an update reads the versions that its contributions started from."""
        return self.compensator is not None

    @property
    def lists(self) -> bool:
        """Whether the aggregator needs the list of an update's contributions, not just a running sum."""
        return self.aggregator != "mean"

    @property
    def fewest(self) -> int:
        """The number of contributions below which the aggregator cannot keep its promise."""
        match self.aggregator:
            case "median":
                return int(self.knobs["fewest"])
            case "trimmed-mean":
                return 2 * int(self.knobs["trim"]) + 1
            case "krum":
                return 2 * int(self.knobs["byzantine"]) + 3
        return 1

    def tolerated(self, members: int) -> int:
        """Return how many of `members` workers may be dishonest without deciding an update alone."""
        match self.aggregator:
            case "median":
                return (members - 1) // 2
            case "trimmed-mean":
                return int(self.knobs["trim"])
            case "krum":
                return int(self.knobs["byzantine"])
        return 0

    def check_servers(self, servers: int) -> None:
        """Raise PolicyError when the parts cannot work on a model that is divided over `servers`."""
        if self.aggregator in UNDIVIDED and servers > 1:
            raise PolicyError(
                f"{self.aggregator} compares whole gradients, and with {servers} servers each holds only a part "
                "of them: they would choose different workers, and the model would be torn; expected 1 server, "
                "or a policy that goes by coordinates, such as median or trimmed-mean"
            )

    @property
    def config(self) -> dict[str, object]:
        """JSON-able; `from_config` reads it back as an equal declaration. Empty for the default."""
        if self == BARE:
            return {}
        made: dict[str, object] = {
            "compensator": self.compensator,
            "aggregator": self.aggregator,
            "knobs": dict(self.knobs),
        }
        if self.fragments > 1:
            made["fragments"] = self.fragments
        return made


# The default: no compensator, and the mean.
BARE = TensorParts()


def from_config(config: Mapping[str, object]) -> TensorParts:
    """Read `TensorParts.config` back. Raises PolicyError for anything else."""
    try:
        parts = TensorParts(**config)  # type: ignore[arg-type]
        return replace(parts, knobs={name: float(value) for name, value in parts.knobs.items()})
    except PolicyError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise PolicyError(
            f"expected compensator, aggregator and knobs of a policy, got {config}: {error}"
        ) from error


@dataclass(frozen=True, slots=True)
class LocalRule:
    """The work of a worker between pull and push: the name of a rule in `psworker.local`, and all of its knobs.

    `remembers`: a contribution depends on those that the worker committed
    before. Such a rule cannot be combined with cancelling: when a cancel crosses a commit on its way, the worker
    believes that the commit counted.

    Raises PolicyError for a knob that is not a finite number. Workers check the name and the set of knobs when they
    join.
    """

    name: str
    knobs: Mapping[str, float] = field(default_factory=dict)
    remembers: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name):
            raise PolicyError(f"local rule: expected its name, got {self.name!r}")
        if not isinstance(self.remembers, bool):
            raise PolicyError(
                f"local rule {self.name}: expected remembers=True or False, got {self.remembers!r}"
            )
        _check_numbers(f"local rule {self.name}", self.knobs)

    @property
    def batches(self) -> int:
        """The largest number of batches of one ticket."""
        return max(1, int(self.knobs.get("steps", 1)))

    @property
    def plain(self) -> bool:
        """Whether a ticket is one batch and one gradient."""
        return self.name == "gradient"


# The default: one batch, one gradient.
PLAIN = LocalRule("gradient")
