"""What is known of the trust between this process and one server, once calls to it fail."""

from pswire.addresses import Address
from pswire.security.credentials import Credentials
from pswire.security.probe import Problem, find_problem

# A server that is about to end may look like one that refuses this process: so often, one after the other, it is none.
LIKELY = 3


class Contact:
    """Of one server. A server that has answered once may be exchanging its certificates: it is waited for."""

    def __init__(self, address: Address, credentials: Credentials) -> None:
        self._address, self._credentials = address, credentials
        self._answered = False
        self._alike = 0
        # The last that was found.
        self.problem: Problem | None = None

    def answered(self) -> None:
        self._answered, self._alike, self.problem = True, 0, None

    def look(self) -> None:
        """A call has failed: why? Takes a second or two at most. Without TLS of its own a process asks only until the
        first answer."""
        if self._answered and not self._credentials.encrypted:
            return
        self.problem = find_problem(self._address, self._credentials)
        untrusted = self.problem is not None and not self.problem.passing
        self._alike = self._alike + 1 if untrusted else 0

    @property
    def hopeless(self) -> bool:
        """Nobody has to wait any longer to know."""
        return not self._answered and self.untrusted and (self._certain or self._alike >= LIKELY)

    @property
    def untrusted(self) -> bool:
        return self.problem is not None and not self.problem.passing

    @property
    def _certain(self) -> bool:
        return self.problem is not None and self.problem.certain
