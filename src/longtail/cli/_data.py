"""Options of commands that take a data set, and how it is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli import _console
from longtail.cli._console import Failure, option

if TYPE_CHECKING:
    from longtail.data import LongTailedData
    from longtail.runs import DataSpec

Profile = StrEnum("Profile", ["exp", "step", "natural"])
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="cifar10-lt, cifar100-lt, digits-lt, a frozen file or a folder of images.",
    ),
]
DataDir = Annotated[Path | None, option("FOLDER", "The original files; LONGTAIL_DATA if absent.")]
ProfileOption = Annotated[Profile | None, option(None, "How class sizes fall off; exp if absent.")]
Ratio = Annotated[
    float | None, option("X", "Largest class over smallest; the literature's if absent.")
]
Counts = Annotated[Path | None, option("FILE", "Class sizes of a natural profile, one a line.")]
Fit = Annotated[bool, option(None, "Scale those sizes to fit this data set.", "--fit")]
SubsetSeed = Annotated[int | None, option("N", "Which subset; 0 is the literature's.", min=0)]
# Options that choose a subset of what is read into memory.
SUBSET = ("--profile", "--ratio", "--counts", "--fit", "--subset-seed")


def load(name: str, given: dict[str, Any], *, development: int | None = None) -> LongTailedData:
    """Load the data that a command's parameters name, with progress shown while it is read."""
    from longtail.data import load as load_data

    options: dict[str, Any] = {k: given[k] for k in ("data_dir", "profile", "counts", "fit")}
    options |= {"imbalance_ratio": given["ratio"], "seed": given["subset_seed"] or 0}
    with _console.progress(f"reading {Path(name).name}") as progress:
        return load_data(name, **options, development=development, progress=progress)


def is_on_disk(name: str, option: str) -> bool:
    """Return whether a data set is streamed from disk: by its name, or a folder of lists.

    A name that is neither a data set nor a path is refused; `option` took it.
    """
    from longtail._checks import InputError
    from longtail.data import DATASETS
    from longtail.data.large import LARGE, find_sources
    from longtail.train.methods import unknown

    known = [*DATASETS, *LARGE]
    if name in known:
        return name in LARGE
    if not Path(name).exists():
        # Many of these names are half alike by their "-lt".
        error = unknown("data set, file or folder", name, known, alike=0.7)
        raise Failure(
            f"{option}: {error} A path may name a frozen file, a folder of images or one of their "
            f"lists."
        )
    try:
        files = find_sources(name).files.values() if Path(name).is_dir() else ()
    except InputError:
        return False  # what is wrong with it, its reader will say
    return bool(files) and all(path.is_file() for path in files)


def refuse_idle(context: typer.Context, idle: Sequence[str], *, on_disk: bool) -> None:
    """Refuse options that were given and do nothing to images on disk, or to images in memory."""
    kind = "stay on disk" if on_disk else "are read into memory"
    for p in context.command.params:
        source = context.get_parameter_source(p.name or "")
        if p.opts[0] in idle and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"{p.opts[0]} does nothing here: the images of this data set {kind}"
            )


def subset_words(spec: DataSpec) -> str:
    """Return a subset's name for people: ``exp, imbalance ratio 100``."""
    words = [spec.profile or "its own class sizes"]
    if spec.imbalance_ratio is not None:
        words.append(f"imbalance ratio {spec.imbalance_ratio:g}")
    if spec.seed:
        words.append(f"subset {spec.seed}")
    return ", ".join(words)
