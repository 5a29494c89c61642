"""Which payloads are ordinary: so small in every number that what they can do to an update is bounded beforehand."""

from typing import Final

from psserver.policies import TensorParts

# Far above any gradient of a training that goes well. Its square and all that optimizers make of it stay far below the
# largest float32.
LARGEST: Final = 2.0**20
# A compensator multiplies weights with the square of a gradient: bounds would soon prove nothing.
LARGEST_COMPENSATED: Final = 8.0


def ordinary(tensors: TensorParts) -> float:
    """The largest magnitude in an ordinary payload, in a job with these parts."""
    return LARGEST if tensors.compensator is None else LARGEST_COMPENSATED
