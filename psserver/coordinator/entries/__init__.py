"""The entries of the decision log."""

from psserver.coordinator.entries.facts import (
    NO_FACTS as NO_FACTS,
)
from psserver.coordinator.entries.facts import (
    UNTOLD as UNTOLD,
)
from psserver.coordinator.entries.facts import (
    CommitFacts as CommitFacts,
)
from psserver.coordinator.entries.facts import (
    Times as Times,
)
from psserver.coordinator.entries.fields import (
    Fields as Fields,
)
from psserver.coordinator.entries.fields import (
    field_names as field_names,
)
from psserver.coordinator.entries.fields import (
    plain as plain,
)
from psserver.coordinator.entries.kinds import (
    CODEC as CODEC,
)
from psserver.coordinator.entries.kinds import (
    KINDS as KINDS,
)
from psserver.coordinator.entries.kinds import (
    LOCAL_RULE as LOCAL_RULE,
)
from psserver.coordinator.entries.kinds import (
    NONFINITE as NONFINITE,
)
from psserver.coordinator.entries.kinds import (
    Abandon as Abandon,
)
from psserver.coordinator.entries.kinds import (
    AppliedPart as AppliedPart,
)
from psserver.coordinator.entries.kinds import (
    Apply as Apply,
)
from psserver.coordinator.entries.kinds import (
    Back as Back,
)
from psserver.coordinator.entries.kinds import (
    Cancel as Cancel,
)
from psserver.coordinator.entries.kinds import (
    Checkpoint as Checkpoint,
)
from psserver.coordinator.entries.kinds import (
    Commit as Commit,
)
from psserver.coordinator.entries.kinds import (
    Done as Done,
)
from psserver.coordinator.entries.kinds import (
    Drop as Drop,
)
from psserver.coordinator.entries.kinds import (
    Entry as Entry,
)
from psserver.coordinator.entries.kinds import (
    Fold as Fold,
)
from psserver.coordinator.entries.kinds import (
    Grant as Grant,
)
from psserver.coordinator.entries.kinds import (
    Initialise as Initialise,
)
from psserver.coordinator.entries.kinds import (
    Install as Install,
)
from psserver.coordinator.entries.kinds import (
    Job as Job,
)
from psserver.coordinator.entries.kinds import (
    Join as Join,
)
from psserver.coordinator.entries.kinds import (
    Leave as Leave,
)
from psserver.coordinator.entries.kinds import (
    Lost as Lost,
)
from psserver.coordinator.entries.kinds import (
    Rate as Rate,
)
from psserver.coordinator.entries.kinds import (
    Refuse as Refuse,
)
from psserver.coordinator.entries.kinds import (
    Restore as Restore,
)
from psserver.coordinator.entries.kinds import (
    Resume as Resume,
)
from psserver.coordinator.entries.kinds import (
    Start as Start,
)
from psserver.coordinator.entries.kinds import (
    Stop as Stop,
)
from psserver.coordinator.entries.kinds import (
    Work as Work,
)
