"""The combinations of codecs or sparse tables with a policy or an optimizer that are refused, and why."""

from psserver.optimizers import Optimizer
from psserver.policies import Policy, PolicyError
from pswire.transport.codecs import Codec


def check_codec(codec: Codec, policy: Policy, optimizer: Optimizer | None) -> None:
    """Raise PolicyError if gradients sent by `codec` would be wrong. `optimizer`: None if not known yet."""
    if not codec.scaled:
        return
    name = "sgd" if optimizer is None else optimizer.name
    rule, tensors = policy.local_rule.name, policy.tensors
    why, expected = "", "float32, bfloat16 or float16"
    if rule == "elastic":
        why = "elastic averaging subtracts what it sends from the worker's weights, before it is rounded"
    elif codec.sparse and tensors.lists:
        why = f"most elements of a payload are zero, and {tensors.aggregator} of such payloads is zero"
        expected += ", int8 or int4"
    elif codec.sparse and tensors.compensator is not None:
        why = (
            f"the compensator {tensors.compensator} squares gradients, and these are sums of several batches"
        )
        expected += ", int8 or int4"
    elif codec.sparse and name != "sgd":
        why = f"{name} would divide sums of several batches by the size of single ones"
        expected += ', int8 or int4, or optimizer "sgd"'
    elif codec.name != "int8" and "dana-slim" == rule:
        why = "the rule dana-slim predicts from the gradient that it sends"
        expected += " or int8"
    elif codec.name != "int8" and name == "lamb":
        why = "lamb scales by the norm of the whole update"
        expected += " or int8"
    if why:
        raise PolicyError(f"wire_dtype {codec.name}: {why}; expected {expected}")


def check_rows(policy: Policy, optimizer: Optimizer) -> None:
    """Raise PolicyError if sparse tables would be trained wrongly. The rules of rows check their own optimizers."""
    rule, tensors, why = policy.local_rule, policy.tensors, ""
    if tensors.lists:
        why = (
            f"the {tensors.aggregator} of gradients would be zero for a row that only some workers have, and it would "
            "never be trained"
        )
    elif tensors.compensator not in (None, "taylor"):
        why = (
            f"the compensator {tensors.compensator} has a mean for each number, which moves with every update"
        )
    elif not rule.plain:
        why = f"the local rule {rule.name} needs a copy of the model at each worker"
    if why:
        raise PolicyError(
            f"sparse tables under policy {policy.name}: {why}; expected a policy of plain gradients, such as sync, "
            "async, bounded or ssp"
        )
