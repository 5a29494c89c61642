"""A picture of each policy: what five workers do under it, the last one slow, simulated by the policy's own code."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from pslab.experiment import Experiment
from pslab.launch.simulated import run_simulated
from pslab.runs.folder import Run
from pslab.runs.work import COMPUTING, WAITING, WASTED, WorkFold
from psserver.decisions import entries as facts
from psserver.policies.builtin import BUILTIN, PolicySpec
from pswire.knobs import knobs_of

WORKERS, SLOW, STEPS = 5, 3.3, 4
# Of the window, in tickets of a usual worker, and of the run behind it, in which what was begun comes to an end.
SHOWN, RUN = 11.0, 18.0
# Pixels.
LEFT, TOP, LANE, UNIT = 34, 22, 26, 54
WIDTH, HEIGHT = LEFT + int(SHOWN * UNIT) + 8, TOP + WORKERS * LANE + 6
FILL = {COMPUTING: "#9dbbe0", WAITING: "url(#waiting)", WASTED: "#f5c6c0"}


def pictures() -> dict[str, str]:
    """SVG of every policy, by its path on the site."""
    with tempfile.TemporaryDirectory(prefix="policies-") as folder:
        return {f"policies/{name}.svg": picture(spec, Path(folder) / name) for name, spec in BUILTIN.items()}


def picture(spec: type[PolicySpec], folder: Path) -> str:
    """SVG of a policy; `folder`: where its run is made."""
    return _svg(spec.name, _run(spec, folder))


def _run(spec: type[PolicySpec], folder: Path) -> Run:
    # A ticket of several steps takes as long as one of one step elsewhere.
    steps = STEPS if any(knob.name == "steps" for knob in knobs_of(spec)) else 1
    document = {
        "cluster": {"workers": WORKERS},
        "policy": {"name": spec.name} | ({"steps": steps} if steps > 1 else {}),
        "optimizer": dict(spec.optimizer),
        "simulation": {
            "compute": f"gamma(25, {1 / 25 / steps})",
            "factors": {str(WORKERS - 1): SLOW},
            "seconds": RUN,
        },
    }
    run_simulated(Experiment.parse(document), out=folder, quiet=True)
    return Run(folder)


def _svg(name: str, run: Run) -> str:
    title = f"Five workers under {name}, one of them slow"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}" '
            'font-family="Helvetica, Arial, \'DejaVu Sans\', sans-serif" font-size="11" fill="#475569">',
            f"<title>{title}</title>",
            '<defs><pattern id="waiting" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect width="6" height="6" fill="#f8fafc"/>'
            '<line x1="0" y1="0" x2="0" y2="6" stroke="#94a3b8" stroke-width="2"/></pattern></defs>',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            *_lanes(run),
            *_versions(run),
            *_fates(run),
            "</svg>",
        ]
    )


def _x(seconds: float) -> float:
    return round(LEFT + min(seconds, SHOWN) * UNIT, 1)


def _places(run: Run) -> dict[str, int]:
    return {worker: place for place, worker in enumerate(run.fold().members)}


def _lanes(run: Run) -> Iterator[str]:
    places, begun, fold = _places(run), run.first_grant(), WorkFold()
    for worker, place in places.items():
        yield f'<text x="6" y="{TOP + place * LANE + 16}">{worker}</text>'
    for entry in run.decisions():
        for work in fold.work(entry.fact, max(0.0, entry.t - begun)):
            for stretch in (*work.before, *work.held):
                begin, end = _x(stretch.begin), _x(stretch.end)
                if end > begin and stretch.kind in FILL:
                    yield (
                        f'<rect x="{begin}" y="{TOP + places[work.worker] * LANE + 3}" '
                        f'width="{round(end - begin, 1)}" height="{LANE - 6}" '
                        f'fill="{FILL[stretch.kind]}" stroke="#ffffff"/>'
                    )


def _versions(run: Run) -> Iterator[str]:
    """A line for each new version; its number where there is room."""
    begun, free = run.first_grant(), 0.0
    for entry in run.decisions():
        if not isinstance(entry.fact, facts.Apply) or entry.t - begun > SHOWN:
            continue
        x = _x(entry.t - begun)
        yield f'<line x1="{x}" y1="{TOP - 6}" x2="{x}" y2="{HEIGHT - 4}" stroke="#64748b" stroke-dasharray="2 2"/>'
        if x >= free:
            yield f'<text x="{x}" y="{TOP - 9}" text-anchor="middle">{entry.fact.version}</text>'
            free = x + 18


def _fates(run: Run) -> Iterator[str]:
    """At the end of each gradient a dot, the larger the more it counts beside the others, or a cross."""
    begun, most = run.first_grant(), max(weight for _, weight in _weights(run))
    ends, places = dict[int, tuple[str, float]](), _places(run)
    for entry in run.decisions():
        match entry.fact:
            case facts.Commit(worker, ticket):
                ends[ticket] = worker, entry.t - begun
            case facts.Drop(worker, ticket) if ticket in ends:
                x, y = _place(places, *ends[ticket])
                if x < WIDTH - 8:
                    yield f'<path d="M{x - 5} {y - 5}l10 10m0 -10l-10 10" stroke="#b91c1c" stroke-width="2.5"/>'
    for ticket, weight in _weights(run):
        x, y = _place(places, *ends[ticket])
        if x < WIDTH - 8:
            yield f'<circle cx="{x}" cy="{y}" r="{round(1.5 + 4 * weight / most, 1)}" fill="#15803d"/>'


def _weights(run: Run) -> Iterator[tuple[int, float]]:
    """(ticket, what it counted) of everything that was applied."""
    for entry in run.decisions():
        if isinstance(entry.fact, facts.Apply):
            for part in entry.fact.parts:
                yield part.ticket, part.weight * entry.fact.lr_scale


def _place(places: dict[str, int], worker: str, seconds: float) -> tuple[float, float]:
    return _x(seconds), TOP + places[worker] * LANE + LANE / 2
