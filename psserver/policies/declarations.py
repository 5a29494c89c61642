"""What a policy declares beside its decisions: which parts see tensors, and what its workers do between pull and push.

A declaration has names and numbers, never an array. The tensor parts themselves are psserver.shard's, the local
rules psworker.local's. A declaration travels to every shard as JSON and stands in the decision log's first entry,
so that a log alone is enough to execute it again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from psserver.policies.errors import PolicyError
from pswire.domains import LARGEST_DOUBLE

# Knobs by the name of the part. psserver.shard builds a part for each of them.
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
# Aggregators that look at whole vectors, not at one coordinate after the other.
UNDIVIDED = ("krum",)


def _check_numbers(owner: str, knobs: object) -> None:
    """Raises PolicyError unless `knobs` is a mapping from names to finite numbers."""
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

    Raises PolicyError for an unknown name or knob, or a missing one.
    """

    compensator: str | None = None
    aggregator: str = "mean"
    knobs: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, name, known in (
            ("compensator", self.compensator, COMPENSATORS),
            ("aggregator", self.aggregator, AGGREGATORS),
        ):
            if name is not None and name not in known:
                raise PolicyError(f"unknown {what} {name!r}; expected one of {', '.join(known)}")
        _check_numbers(f"compensator {self.compensator} and aggregator {self.aggregator}", self.knobs)
        wanted = {*AGGREGATORS[self.aggregator], *COMPENSATORS.get(self.compensator or "", ())}
        if set(self.knobs) != wanted:
            raise PolicyError(
                f"compensator {self.compensator} and aggregator {self.aggregator} take the numbers "
                f"{sorted(wanted)}, got {sorted(self.knobs)}"
            )

    @property
    def keep_bases(self) -> bool:
        """An update reads the versions that its contributions started from."""
        return self.compensator is not None

    @property
    def lists(self) -> bool:
        """The aggregator needs the list of an update's contributions; a sum that grows will not do."""
        return self.aggregator != "mean"

    @property
    def fewest(self) -> int:
        """Contributions without which the aggregator cannot do what it promises."""
        match self.aggregator:
            case "median":
                return int(self.knobs["fewest"])
            case "trimmed-mean":
                return 2 * int(self.knobs["trim"]) + 1
            case "krum":
                return 2 * int(self.knobs["byzantine"]) + 3
        return 1

    def tolerated(self, members: int) -> int:
        """How many of so many members may be dishonest without deciding an update alone."""
        match self.aggregator:
            case "median":
                return (members - 1) // 2
            case "trimmed-mean":
                return int(self.knobs["trim"])
            case "krum":
                return int(self.knobs["byzantine"])
        return 0

    def check_servers(self, servers: int) -> None:
        """Raises PolicyError when the parts cannot work on a model that is divided over `servers`."""
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
        return {"compensator": self.compensator, "aggregator": self.aggregator, "knobs": dict(self.knobs)}


# No compensator, and the mean.
BARE = TensorParts()


def from_config(config: Mapping[str, object]) -> TensorParts:
    """Raises PolicyError when it is no declaration of this release."""
    try:
        parts = TensorParts(**config)  # type: ignore[arg-type]
        return TensorParts(
            parts.compensator, parts.aggregator, {name: float(value) for name, value in parts.knobs.items()}
        )
    except PolicyError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise PolicyError(
            f"expected compensator, aggregator and knobs of a policy, got {config}: {error}"
        ) from error


@dataclass(frozen=True, slots=True)
class LocalRule:
    """What workers do between pull and push: a name that they know (`psworker.local`), and every knob it has.

    `remembers`: a contribution depends on those that the worker committed
    before. Such a rule must not meet cancelling: a worker takes a commit that a
    cancel crosses on its way for one that counts.

    Raises PolicyError for a knob that is no finite number. Whether the name is one that they know, and its knobs
    are all there, the workers say when they join.
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
        """Batches of a ticket, at most."""
        return max(1, int(self.knobs.get("steps", 1)))

    @property
    def plain(self) -> bool:
        """One batch, one gradient."""
        return self.name == "gradient"


# One batch, one gradient.
PLAIN = LocalRule("gradient")
