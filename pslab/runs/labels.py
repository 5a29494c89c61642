"""Names for runs and their policies, and the order of workers."""

from typing import Any

from pslab.runs.summary import Summary
from psserver.policies.builtin import BUILTIN
from pswire.knobs import knobs_of


def policy_label(policy: Any) -> str:
    """Return ``bounded (K=2, s<=4, drop)``: the policy's name and the knobs that distinguish runs."""
    name = str(policy.get("name", "?"))
    if name not in BUILTIN:
        return name
    knobs = {
        knob.name: (policy.get(knob.name, knob.default), knob.default) for knob in knobs_of(BUILTIN[name])
    }
    if label := BUILTIN[name].label:
        return f"{name} ({label.format(**{knob: value for knob, (value, _) in knobs.items()})})"
    changed = [f"{knob} {value}" for knob, (value, default) in knobs.items() if value != default]
    return f"{name} ({', '.join(changed)})" if changed else name


def run_label(summary: Summary) -> str:
    """Return the run's policy; if another has taken over meanwhile, the first and the last."""
    last = policy_label(summary.policy)
    return f"{policy_label(summary.began_with)}, at last {last}" if summary.began_with else last


def worker_order(worker: str) -> tuple[str, int]:
    """Return a sort key that puts w10 after w9."""
    head = worker.rstrip("0123456789")
    return head, int(worker[len(head) :] or 0)
