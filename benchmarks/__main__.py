"""`scripts/bench`: some sections are commands with options of their own; all else is steps."""

import sys
from importlib import import_module

# Loaded when asked for: some load TensorFlow, which others do not need.
SECTIONS = {
    "fit": "benchmarks.fit.cli",
    "swarm": "benchmarks.swarm.cli",
    "tables": "benchmarks.tables.cli",
    "availability": "benchmarks.availability.cli",
}

if sys.argv[1:2] and sys.argv[1] in SECTIONS:
    section = sys.argv.pop(1)
    import_module(SECTIONS[section]).main(prog_name=f"bench {section}")
else:
    import_module("benchmarks.steps").main(prog_name="bench")
