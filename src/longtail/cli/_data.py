"""Options of commands that take a data set, and how it is loaded."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console
from longtail.cli._console import option

if TYPE_CHECKING:
    from longtail.data import LongTailedData
    from longtail.runs import DataSpec


class Profile(StrEnum):
    """Profiles of class sizes."""

    exp = "exp"
    step = "step"
    natural = "natural"


def _complete(incomplete: str) -> list[str]:
    from longtail.data import DATASETS

    return [name for name in DATASETS if name.startswith(incomplete)]


NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="cifar10-lt, cifar100-lt, digits-lt, a frozen file or a folder of images.",
        autocompletion=_complete,
    ),
]
DataDirOption = Annotated[
    Path | None, option("FOLDER", "Where the original files are; LONGTAIL_DATA if absent.")
]
ProfileOption = Annotated[Profile | None, option(None, "How class sizes fall off; exp if absent.")]
RatioOption = Annotated[
    float | None, option("X", "Largest class over smallest; the literature's if absent.")
]
CountsOption = Annotated[
    Path | None, option("FILE", "Class sizes of a natural profile, one a line.")
]
FitOption = Annotated[
    bool, option(None, "Fit those sizes to this data set, keeping their shape.", "--fit")
]
SubsetSeedOption = Annotated[int, option("N", "Which subset; 0 is the literature's.", min=0)]


def load(
    name: str,
    *,
    profile: str | None = None,
    ratio: float | None = None,
    subset_seed: int = 0,
    **options: Any,
) -> LongTailedData:
    """Load the data that the options name, with progress shown while it is read."""
    from longtail.data import load as load_data

    options |= {"profile": profile and str(profile), "imbalance_ratio": ratio, "seed": subset_seed}
    with _console.progress(f"reading {Path(name).name}") as progress:
        return load_data(name, progress=progress, **options)


def subset_words(spec: DataSpec) -> str:
    """Return a subset's name for people: ``exp, imbalance ratio 100``."""
    words = [spec.profile or "its own class sizes"]
    if spec.imbalance_ratio is not None:
        words.append(f"imbalance ratio {spec.imbalance_ratio:g}")
    if spec.seed:
        words.append(f"subset {spec.seed}")
    return ", ".join(words)
