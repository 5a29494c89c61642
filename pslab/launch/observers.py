"""Who may look at a run that has certificates of its own: whoever started it, from any of this user's shells.

The certificate of an observer, which may read the status and no more, is kept in the user's state folder as long as
the run goes on. It is found by the path of the run folder; the run folder itself holds no key.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pslab.launch.security import RunSecurity
from pswire.security.files import TlsFiles
from pswire.security.settings import SecurityOptions

NAME = "observer"


def place_of(run: Path) -> Path:
    """Where the certificate for a run folder is, if there is one: below $XDG_STATE_HOME, else ~/.local/state."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    digest = hashlib.sha256(os.fsencode(run.resolve())).hexdigest()[:32]
    return Path(state) / "paramserver" / "runs" / digest


@contextmanager
def remembered(run: Path, security: RunSecurity | None) -> Iterator[None]:
    """For as long as the block lasts. Where this user cannot write, a note says that nobody else can look."""
    if security is None:
        yield
        return
    place = place_of(run)
    try:
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            TlsFiles.in_folder(place, NAME).write(security.observer, replace=True)
        except OSError as error:
            said = f"{place}: {error.strerror or error}"
            print(f"note: ps-lab status will not be answered elsewhere: {said}", file=sys.stderr)
        yield
    finally:
        shutil.rmtree(place, ignore_errors=True)


def options_for(run: Path) -> SecurityOptions:
    """What to show to the run's servers; nothing where the run has no certificates of its own."""
    files = TlsFiles.in_folder(place_of(run), NAME)
    if files.cert is None or files.key is None or not files.cert.is_file():
        return SecurityOptions()
    return SecurityOptions(str(files.ca), str(files.cert), str(files.key))
