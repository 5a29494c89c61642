"""The experiment as `ps-lab` reads it: with the sections that no daemon reads, and written as a file again."""

from typing import Any, ClassVar

from pslab.sections import ClusterSection, FaultsSection, LinksSection, SimulationSection
from pswire.config import experiment
from pswire.config.experiment import FROM_JOB
from pswire.config.run_sections import JobSection
from pswire.config.toml import toml_text


class Experiment(experiment.Experiment):
    """A whole experiment."""

    unread: ClassVar[tuple[str, ...]] = ()

    cluster: ClusterSection = ClusterSection()
    links: LinksSection = LinksSection()
    faults: FaultsSection = FaultsSection()
    simulation: SimulationSection = SimulationSection()

    @property
    def own_code(self) -> dict[str, str]:
        """The keys that name code of the user's for the simulation, and their values."""
        named = {"policy.name": self.policy.name, "simulation.problem": self.simulation.problem}
        return {key: value for key, value in named.items() if ":" in value}

    def to_toml(self) -> str:
        """Return the resolved experiment, with defaults; `load` reads it back to an equal one."""
        unsaid = set() if self.policy.then else {"then"}
        tables: dict[str, dict[str, object]] = {
            "run": self.run.model_dump(),
            "cluster": self.cluster.written,
            "policy": self.policy.model_dump(exclude=unsaid),
            "optimizer": self.optimizer.model_dump(),
        }
        if self.optimizer.name == FROM_JOB:
            tables["optimizer"] = {"name": FROM_JOB}
        if self.job != JobSection():
            tables["job"] = _job(self.job)
        for number, worker in sorted(self.workers.items()):
            tables[f"workers.{number}"] = worker.model_dump()
        # Written only if the file uses them.
        for name in sorted(self.model_fields_set & {"security", "links", "faults", "simulation"}):
            tables[name] = getattr(self, name).model_dump()
        return toml_text(tables)


def _job(section: JobSection) -> dict[str, Any]:
    """Return the keys that apply: those of a module, those of a script, or only the epochs."""
    of_script = {"script", "arguments"}
    if section.module:
        return section.model_dump(exclude=of_script)
    return section.model_dump(include=of_script if section.script else {"epochs"})
