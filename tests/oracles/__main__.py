"""Compare what must not change by itself with what is frozen: logs, weights, bytes on the wire, verdicts, numbers.

    python -m tests.oracles                          compare all; ends with 1 where something moved
    python -m tests.oracles --only wire policies     these areas
    python -m tests.oracles --only outcomes          what each way into a job comes to, by real processes: minutes
    python -m tests.oracles --only 'entry points'    what each way in makes of each setting: half a minute
    python -m tests.oracles --regenerate             freeze what is found now; read the difference of frozen.json
    python -m tests.oracles --record                 record the run of tests/oracles/run anew, and freeze

The golden traces lie in tests/coordinator/traces, and are compared where they lie.
"""

import argparse
import sys
import time

from tests.oracles import recorded
from tests.oracles.areas import AREAS, SLOW, moved_traces
from tests.oracles.frozen import moved, write


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.oracles",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=[*AREAS, *SLOW], default=list(AREAS), metavar="AREA")
    parser.add_argument("--regenerate", action="store_true")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    if options.record:
        recorded.record()
    lines = moved_traces()
    for area in options.only:
        began = time.process_time()
        found = {**AREAS, **SLOW}[area]()
        lines += moved(area, found)
        if options.regenerate or options.record:
            write({area: found})
        print(
            f"{area}: {len(found)} oracles, {time.process_time() - began:.1f} s of the processor", flush=True
        )
    print("\n".join(lines) or "nothing moved")
    return int(bool(lines) and not (options.regenerate or options.record))


if __name__ == "__main__":
    sys.exit(main())
