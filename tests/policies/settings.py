"""Settings of the other built-in policies; `tests.coordinator.settings` has the first four."""

from psserver.policies import names
from tests.coordinator.settings import Setting

SETTINGS = {
    "k-sync": (
        Setting("k-sync", 3, {"aggregate": 2}),
        Setting("k-sync", 4, {"aggregate": 4}),
        Setting("k-sync", 4, {"aggregate": 2, "late": "drop"}),
    ),
    "k-batch-sync": (
        Setting("k-batch-sync", 3, {"aggregate": 2}),
        Setting("k-batch-sync", 4, {"aggregate": 4}),
        Setting("k-batch-sync", 2, {"aggregate": 1}),
        Setting("k-batch-sync", 2, {"aggregate": 5}),
    ),
    "rennala": (
        Setting("rennala", 3, {"aggregate": 2}),
        Setting("rennala", 4, {"aggregate": 3}),
        Setting("rennala", 2, {"aggregate": 5}),
    ),
    "k-async": (Setting("k-async", 3, {"aggregate": 2}), Setting("k-async", 4, {"aggregate": 4})),
    "k-batch-async": (
        Setting("k-batch-async", 3, {"aggregate": 3}),
        Setting("k-batch-async", 4),
        Setting("k-batch-async", 2, {"aggregate": 5}),
    ),
    "softsync": (
        Setting("softsync", 4, {"n": 1}),
        Setting("softsync", 4, {"n": 3}),
        Setting("softsync", 2, {"n": 2}),
    ),
    "fedbuff": (
        Setting("fedbuff", 3),
        Setting("fedbuff", 4, {"aggregate": 3, "weight": "hinge", "a": 10.0, "b": 1}),
        Setting("fedbuff", 2, {"aggregate": 7}),
    ),
    "fedbuff-timeout": (
        Setting("fedbuff-timeout", 3, {"timeout": 0.3}),
        Setting("fedbuff-timeout", 4, {"aggregate": 3, "timeout": 2.0}),
        Setting("fedbuff-timeout", 2, {"aggregate": 7, "timeout": 0.001}),
    ),
    "deadline-sync": (
        Setting("deadline-sync", 3, {"grace": 0.3}),
        Setting("deadline-sync", 4, {"grace": 0.1, "share": 0.0, "budget": 1.0, "patience": 0}),
        Setting("deadline-sync", 3, {"rule": "pace", "most": 1.0, "patience": 1, "budget": 0.2}),
    ),
    "dbw": (Setting("dbw", 3, {"noise": 1.0}), Setting("dbw", 4), Setting("dbw", 4, {"noise": 0.0})),
    "delay-adaptive": (Setting("delay-adaptive", 4), Setting("delay-adaptive", 3, {"concurrency": 1})),
    "ringmaster": (
        Setting("ringmaster", 3, {"threshold": 1}),
        Setting("ringmaster", 4, {"threshold": 2}),
        Setting("ringmaster", 3, {"threshold": 1, "stops": True}),
        Setting("ringmaster", 4, {"threshold": 3, "stops": True}),
    ),
    "dssp": (
        Setting("dssp", 3, {"lower": 0, "upper": 2}),
        Setting("dssp", 4, {"lower": 1, "upper": 1}),
    ),
    "dc-asgd": (Setting("dc-asgd", 3), Setting("dc-asgd", 2, {"compensation": 0.0})),
    "dc-asgd-a": (Setting("dc-asgd-a", 3), Setting("dc-asgd-a", 2, {"compensation": 0.0, "decay": 0.0})),
    "gap-aware": (Setting("gap-aware", 3), Setting("gap-aware", 2, {"decay": 0.0})),
    "median": (Setting("median", 4), Setting("median", 3), Setting("median", 2)),
    "trimmed-mean": (
        Setting("trimmed-mean", 3),
        Setting("trimmed-mean", 4),
        Setting("trimmed-mean", 2, {"trim": 0}),
    ),
    "krum": (
        Setting("krum", 3),
        Setting("krum", 4, {"select": 2}),
        Setting("krum", 5, {"byzantine": 1, "select": 2}),
    ),
}
# They differ from policies that are tested already in what their workers do, of which a policy sees nothing.
SAME = {
    "local-sgd": "sync",
    "diloco": "sync",
    "local-async": "async",
    "easgd": "async",
    "dana-slim": "async",
}
# A policy that is not named above has its defaults.
OTHERS = {
    name: SETTINGS.get(name, (Setting(name, 4),))
    for name in names()
    if name not in ("sync", "async", "bounded", "ssp", *SAME)
}
