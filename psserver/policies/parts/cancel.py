"""Cancel: which open tickets does an update make void?"""

from dataclasses import dataclass

from psserver.policies.parts.view import View


@dataclass(frozen=True, slots=True)
class CancelStale:
    """Those that are `age` versions behind: their workers stop, and start anew from the current version.

    1 is all that started before the update: K-sync and backup workers (Dutta
    et al. 2018). Ringmaster "with stops" waits for more.
    """

    age: int = 1

    def void(self, view: View) -> list[int]:
        """Their ticket numbers, oldest first."""
        oldest = view.oldest_base()
        if oldest is None or view.version - oldest < self.age:
            return []
        # Grants come in the order of their versions: behind the first that is young enough all are.
        tickets = []
        for opened in view.open.values():
            if view.version - opened.base < self.age:
                break
            tickets.append(opened.ticket)
        return tickets
