"""What can go wrong in a session.

SessionError
  Unreachable      a server did not answer for too long
    JobStopped     the job has ended without success, and without it
  Refused          the servers do not want this worker: another model, job or newer process
    JobOver        the job has succeeded without it: nothing is left to do
  Untrusted        a certificate, token, role or name is refused, or only one end speaks TLS
  PayloadRefused   one payload was not accepted (NaN, wrong shape); the ticket is still open
  Voided           the ticket is no longer valid; abandon it and ask again
  RolledBack       the job went back to a checkpoint, and some commits of this worker are undone with it
  IllegalInput     a call that the session's state does not allow; nothing has changed
  Diverged         gradient after gradient is NaN or infinite
Unsupported      of `psworker.keras`: something in a model, an optimizer or a script that servers cannot do
"""


class SessionError(RuntimeError):
    """Base of all errors of a session."""


class Unreachable(SessionError):
    """A server did not answer within the session's server_timeout; the text names it."""


class JobStopped(Unreachable):
    """The job had ended without success before this worker came, or came back; the text says how. It may begin again:
    the servers say so by their exit code. Or it has begun again, at a checkpoint, since this worker heard its end."""


class Refused(SessionError):
    """The servers refuse this worker for good; the text says why."""


class JobOver(Refused):
    """The job had succeeded before this worker came, or came back; the text says how it ended."""


class Untrusted(SessionError):
    """One end does not believe the other, or speaks no TLS; the text says which, and what to do."""


class PayloadRefused(SessionError):
    """A payload was not accepted and has changed nothing; the text says what was expected."""


class Voided(SessionError):
    """The ticket was cancelled or lost its version: abandon it and ask for the next."""


class RolledBack(SessionError):
    """Commits of this worker are undone: go on at `Session.next_batch`. Raised once for each time, and only where the
    loop has said that it can (`Session.goes_back`)."""


class IllegalInput(SessionError):
    """The session's state does not allow this call, and has not changed; the text names both."""


class Diverged(SessionError):
    """Gradient after gradient is NaN or infinite."""


class Unsupported(Exception):
    """Parameter servers cannot do what a model, an optimizer or a script wants; the text says what they can."""
