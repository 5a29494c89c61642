"""From a schedule that shows a fault to a short one that shows the same: whatever can go without goes."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pslab.verify.schedules.play import Case
from psserver.policies import PolicyError

# The acts that were played up to the fault, or None when they do not show it.
Shows = Callable[[Case, Sequence[str]], list[str] | None]


def shrink(case: Case, acts: Sequence[str], shows: Shows) -> tuple[Case, list[str]]:
    """Fewer workers, then fewer acts, then plainer ones, until nothing of it works any more.

    Delta debugging (Zeller and Hildebrandt 2002, Simplifying and Isolating Failure-Inducing Input), greedy and
    without chance: the same schedule gives the same answer. No single act of it can be left out.
    """
    best = list(acts)
    while True:
        before = (case, list(best))
        case, best = _fewer_workers(case, best, shows)
        best = _fewer_acts(case, best, shows)
        best = _plainer_acts(case, best, shows)
        if (case, best) == before:
            return case, best


def signature(fault: str) -> str:
    """A fault's sentence without numbers, names and lists: two schedules show the same when these are equal."""
    text = re.sub(r"failed on (\w+)\(.*?\): ", r"failed on \1: ", fault)
    text = re.sub(r"\[.*\]|\(.*\)|'.*?'", "..", text)
    text = re.sub(r"\b\w*\d[\w.]*", "#", text)
    return re.sub(r"#(,? #)+", "#", text)


def _fewer_workers(case: Case, acts: list[str], shows: Shows) -> tuple[Case, list[str]]:
    """Without one of them, or with its acts done by another."""
    rank = case.workers - 1
    while rank >= 0 and case.workers > 1:
        smaller = replace(case, workers=case.workers - 1)
        up = {other: other - (other > rank) for other in range(case.workers) if other != rank}
        for given in (up, {**up, rank: max(rank - 1, 0)}):
            try:
                played = shows(smaller, _renamed(acts, given))
            except PolicyError:
                return case, acts  # its knobs need that many
            if played is not None:
                case, acts = smaller, played
                break
        rank = min(rank, case.workers) - 1
    return case, acts


def _renamed(acts: Sequence[str], ranks: Mapping[int, int]) -> list[str]:
    """The same with other ranks; the acts of whom `ranks` does not name are left out."""
    found = []
    for line in acts:
        who, _, rest = line.partition(" ")
        if not who.startswith("w"):
            found.append(line)
        elif int(who[1:]) in ranks:
            found.append(f"w{ranks[int(who[1:])]} {rest}")
    return found


def _fewer_acts(case: Case, acts: list[str], shows: Shows) -> list[str]:
    size = max(1, len(acts) // 2)
    while True:
        start, before = 0, len(acts)
        while start < len(acts):
            played = shows(case, acts[:start] + acts[start + size :])
            if played is None:
                start += size
            else:
                acts = played
        if size > 1:
            size //= 2
        elif len(acts) == before:
            return acts


def _plainer_acts(case: Case, acts: list[str], shows: Shows) -> list[str]:
    at = 0
    while at < len(acts):
        for plain in _plainer(acts[at]):
            played = shows(case, [*acts[:at], plain, *acts[at + 1 :]])
            if played is not None and len(played) <= len(acts):
                acts = played
                break
        at += 1
    return _in_order(case, acts, shows)


def _plainer(line: str) -> list[str]:
    """A leave rather than a loss, the first process of a worker, the ticket that it holds, an ordinary loss."""
    who, verb, *rest = line.split()
    if verb == "disconnects":
        return [f"{who} leaves"]
    if verb == "joins" and rest:
        return [f"{who} leaves", f"{who} joins"]
    if verb == "commits-its-last":
        return [f"{who} commits"]
    return [f"{who} {verb}"] if verb in ("commits", "abandons") and rest else []


def _in_order(case: Case, acts: list[str], shows: Shows) -> list[str]:
    """w0 for who comes first, w1 for the next."""
    ranks: list[int] = []
    for line in acts:
        who = line.partition(" ")[0]
        if who.startswith("w") and int(who[1:]) not in ranks:
            ranks.append(int(who[1:]))
    if ranks == sorted(ranks):
        return acts
    played = shows(case, _renamed(acts, {rank: number for number, rank in enumerate(ranks)}))
    return acts if played is None or len(played) > len(acts) else played
