"""The errors of a session.

SessionError
  Unreachable      a server did not answer within the session's server_timeout
    JobStopped     the job had ended without success
  Refused          the servers refuse this worker: another model, another job, or another process has its name
  JobOver          the job had succeeded: nothing is left to do
  Untrusted        a certificate, role or name is refused, or only one end uses TLS
  PayloadRefused   one payload was not accepted (NaN, wrong shape); the ticket is still open
  Voided           the ticket is no longer valid; abandon it and ask again
  RolledBack       the job went back to a checkpoint, which undid commits of this worker
  Diverged         gradient after gradient is NaN or infinite
Unsupported      servers cannot do what a model, an optimizer or a script wants
"""


class SessionError(RuntimeError):
    """Base of all errors of a session."""


class Unreachable(SessionError):
    """A server did not answer within the session's server_timeout; the text names it."""


class JobStopped(Unreachable):
    """The job had ended without success before this worker joined or rejoined; the text says how.

    It may begin again, which the servers announce by their exit code. Or it has begun again, at a checkpoint, since
    this worker received its end.
    """


class Refused(SessionError):
    """The servers refuse this worker for good; the text says why."""


class JobOver(SessionError):
    """The job had succeeded before this worker joined or rejoined; the text says how it ended."""


class Untrusted(SessionError):
    """One end does not trust the other, or does not use TLS; the text says which, and what to do."""


class PayloadRefused(SessionError):
    """A payload was not accepted and has changed nothing; the text says what was expected."""


class Voided(SessionError):
    """The ticket was cancelled or lost its version: abandon it and ask for the next."""


class RolledBack(SessionError):
    """Commits of this worker are undone: continue at `Link.info.next_batch`.

    Raised once for each rollback, and only after `Link.goes_back`.
    """


class Diverged(SessionError):
    """Too many gradients in a row were NaN or infinite."""


class Unsupported(Exception):
    """Parameter servers cannot do what a model, an optimizer or a script wants; the text says what they can."""
