"""AdamW: Adam with decoupled weight decay by default.

``y = x - x * weight_decay * rate``, then Adam's step is subtracted from y; the step itself does not see the decay.
Loshchilov & Hutter (ICLR 2019), algorithm 2; keras.optimizers.AdamW, which decays first and by the scheduled rate, so
`lr_scale` scales the decay as well. Every trainable variable decays unless `exclude_from_weight_decay` names it.
"""

from dataclasses import dataclass

from psserver.optimizers.rule import decay_knob
from psserver.optimizers.rules.adam import Adam


@dataclass(frozen=True, slots=True)
class AdamW(Adam):
    """Adam that also shrinks the weights, independently of the gradient."""

    weight_decay: float = decay_knob(0.004)
