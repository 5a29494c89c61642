"""Plant one fault after the other in a copy of the project, and see that tests fail for it.

    python -m tests.planted                 every fault
    python -m tests.planted --list          their names
    python -m tests.planted staleness       those whose name has this word

Ends with 1 if a fault is not caught or no longer applies. First the same tests must pass without a fault.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.planted.faults import FAULTS, Fault, FaultError, sources

ROOT = Path(__file__).parents[2]
# Exit codes of pytest.
PASSED, FAILED = 0, 1
# Of one fault: a test that hangs for it has caught it, too.
SECONDS = 600.0
FIRST = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def copy_project(into: Path) -> None:
    """Copy the files that git knows or does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name)


def run_tests(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run these tests against the copy, until one fails. Returns pytest's exit code and the first failed test."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header"]
    environment = os.environ | {"PYTHONPATH": str(copy)}
    try:
        found = subprocess.run(
            [*command, *(f"tests/{test}" for test in tests)],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return FAILED, f"a test that hangs for {SECONDS:g} s"
    first = FIRST.search(found.stdout)
    return found.returncode, first[1] if first else found.stdout[-2000:]


def catch(fault: Fault, copy: Path) -> str:
    """Plant the fault, run its tests and mend it. Returns what is wrong; empty if it was caught."""
    try:
        path, wrong = fault.plant(sources(copy))
    except FaultError as error:
        return str(error)
    right = path.read_text(encoding="utf-8")
    path.write_text(wrong, encoding="utf-8")
    began = time.monotonic()
    try:
        code, first = run_tests(copy, fault.tests)
    finally:
        path.write_text(right, encoding="utf-8")
    if code == FAILED:
        print(f"caught: {fault.name}: {first} ({time.monotonic() - began:.0f} s)", flush=True)
        return ""
    if code == PASSED:
        return f"{fault.name}: none of {', '.join(fault.tests)} fails"
    return f"{fault.name}: pytest ended with {code}: {first}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.planted",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="in the names of the faults; default: all")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    options = parser.parse_args()
    chosen = [fault for fault in FAULTS if all(word in fault.name for word in options.words)]
    if not chosen:
        parser.error(f"no fault has {' and '.join(options.words)} in its name")
    if options.list:
        print("\n".join(fault.name for fault in chosen))
        return 0
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = Path(folder).resolve()
        copy_project(copy)
        code, first = run_tests(copy, sorted({test for fault in chosen for test in fault.tests}))
        if code != PASSED:
            print(f"planted: without a fault the tests must pass, got: {first}")
            return 1
        problems = [problem for fault in chosen if (problem := catch(fault, copy))]
    for problem in problems:
        print(f"NOT CAUGHT: {problem}")
    print(f"planted: {len(chosen) - len(problems)} of {len(chosen)} faults caught")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
