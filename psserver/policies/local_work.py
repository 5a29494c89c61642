"""What a policy may ask of its workers: to do more between pull and push than compute one gradient.

A policy sees no tensors, so it only names the rule, with its numbers; workers
know what it means (psworker.local).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LocalRule:
    """A name that workers know, and every knob it has.

    `remembers`: a contribution depends on those that the worker committed
    before. Such a rule must not meet cancelling: a worker takes a commit that a
    cancel crosses on its way for one that counts.
    """

    name: str
    knobs: Mapping[str, float] = field(default_factory=dict)
    remembers: bool = False

    @property
    def plain(self) -> bool:
        """One batch, one gradient."""
        return self.name == "gradient"


PLAIN = LocalRule("gradient")


def local_rule_of(policy: object) -> LocalRule:
    """Its `local_rule`; a policy that has none asks for gradients."""
    rule = getattr(policy, "local_rule", PLAIN)
    assert isinstance(rule, LocalRule), f"local_rule: expected a LocalRule, got {type(rule).__name__}"
    return rule
