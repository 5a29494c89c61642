"""Areas of oracles, each a function that finds what they are now."""

from collections.abc import Callable, Mapping

from pslab.verify.trace_format import replay
from tests.oracles import entry_points, outcomes, recorded, runs, wire
from tests.oracles.frozen import Value

AREAS: Mapping[str, Callable[[], dict[str, Value]]] = {
    "traces": runs.traces,
    "policies": runs.policies,
    "rough": runs.rough,
    "weights": runs.weights,
    "wire": wire.sessions,
    "recorded run": recorded.made_again,
    "replay": recorded.replays,
    "check": recorded.checks,
    "reports": recorded.reports,
}

# Real processes, some minutes: only where they are asked for.
SLOW: Mapping[str, Callable[[], dict[str, Value]]] = {
    "outcomes": outcomes.outcomes,
    "entry points": entry_points.entry_points,
}


def moved_traces() -> list[str]:
    """The golden traces that do not replay as they are written."""
    return [f"{path}: replays otherwise" for path in runs.TRACES if replay(path)[0] != path.read_text()]
