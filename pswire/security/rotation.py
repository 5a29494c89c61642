"""The identity of a running process: its files are read again when they have changed."""

import logging
import threading

from pswire.logs.events import event
from pswire.security.files import TlsFiles
from pswire.security.identity import Identity
from pswire.security.names import IdentityError

log = logging.getLogger("security")


class LiveIdentity:
    """Ask `now` for every new connection: connections that stand keep what they were made with. Any thread.

    While new files do not fit together, because they are being written one after
    the other, or are wrong, the former identity holds; the log says so once.
    """

    def __init__(self, source: TlsFiles | Identity) -> None:
        """An `Identity` is one that never changes. Raises IdentityError as `TlsFiles.read`."""
        self._files = source if isinstance(source, TlsFiles) else None
        self._guard = threading.Lock()
        # What the files were when they were last read.
        self._stamps = self._files.stamps if self._files is not None else ()
        self._identity = source.read() if isinstance(source, TlsFiles) else source
        self._said = ""

    def now(self) -> Identity:
        """The same object for as long as nothing has changed."""
        files = self._files
        if files is None:
            return self._identity
        with self._guard:
            stamps = files.stamps
            if stamps != self._stamps:
                self._read(files)
                self._stamps = stamps
            return self._identity

    def _read(self, files: TlsFiles) -> None:
        try:
            self._identity = files.read()
        except IdentityError as error:
            if str(error) != self._said:
                self._said = str(error)
                told = event("identity_not_renewed")
                log.warning("the new certificate is not used yet, the former one is: %s", error, extra=told)
            return
        self._said = ""
        if self._identity.cert:
            told = event("identity_renewed", subject=str(self._identity.facts.subject))
            log.info("the certificate was renewed: %s", self._identity.facts.subject, extra=told)
