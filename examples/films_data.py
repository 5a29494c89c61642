"""Who liked which film: MovieLens-100k (Harper and Konstan 2015), or made-up people and films.

MovieLens has 100,000 ratings of 1,682 films by 943 people; 4 and more of 5 count as liked. Its terms forbid to pass it
on, so it is taken from the wheel of RecBole 1.2.1 (2 MB), which pip fetches once into `folder`. The newest tenth is
held out.
"""

import csv
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

Batch = tuple[dict[str, np.ndarray], np.ndarray]
KINDS = 6  # places for the kinds of a film; 0 is none
WHEEL = "recbole-1.2.1-py3-none-any.whl"
FOLDER = Path(tempfile.gettempdir()) / "films"


def films(name: str, part: str, folder: Path = FOLDER) -> Batch:
    """({"user": int64[n], "film": int64[n], "kinds": int64[n, 6]}, liked float32[n]) of "train" or "heldout".

    `name`: "movielens" or "generated".
    """
    x, liked = movielens(folder) if name == "movielens" else generated()
    first = len(liked) * 9 // 10
    chosen = slice(0, first) if part == "train" else slice(first, None)
    return {key: values[chosen] for key, values in x.items()}, liked[chosen]


def movielens(folder: Path) -> Batch:
    """All ratings, oldest first."""
    if not (folder / WHEEL).is_file():
        fetch = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder)]
        subprocess.run([*fetch, "recbole==1.2.1"], check=True)
    ratings, about = _table(folder / WHEEL, "inter"), _table(folder / WHEEL, "item")
    ratings.sort(key=lambda row: float(row["timestamp:float"]))
    names = sorted({kind for row in about for kind in row["class:token_seq"].split()})
    kinds = np.zeros((len(about) + 1, KINDS), np.int64)
    for row in about:
        found = [names.index(kind) + 1 for kind in row["class:token_seq"].split()][:KINDS]
        kinds[int(row["item_id:token"]), : len(found)] = found
    film = np.array([int(row["item_id:token"]) for row in ratings])
    user = np.array([int(row["user_id:token"]) for row in ratings])
    liked = np.array([float(row["rating:float"]) >= 4 for row in ratings], np.float32)
    return {"user": user, "film": film, "kinds": kinds[film]}, liked


def _table(wheel: Path, kind: str) -> list[dict[str, str]]:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"recbole/dataset_example/ml-100k/ml-100k.{kind}").decode()
    return list(csv.DictReader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE))


def generated(people: int = 300, works: int = 400, ratings: int = 30_000) -> Batch:
    """People and films with a hidden taste of four numbers each; people like what is near to theirs."""
    dice = np.random.default_rng(0)
    taste, style = dice.normal(size=(people, 4)), dice.normal(size=(works, 4))
    user, film = dice.integers(0, people, ratings), dice.zipf(1.3, ratings) % works
    liked = (taste[user] * style[film]).sum(axis=1) + dice.normal(size=ratings) > 0
    kinds = np.where(style > 0.5, np.arange(1, 5), 0)[film]
    x = {"user": user, "film": film, "kinds": np.pad(kinds, ((0, 0), (0, KINDS - 4)))}
    # Ids are whatever somebody numbered people with: any 64 bits.
    x["user"] = x["user"] * 1_000_003 - 7
    return x, liked.astype(np.float32)
