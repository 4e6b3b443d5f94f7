"""What `reproduce table-large` adds: columns, processes, and hours from a short trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail.cli import _console, _training

if TYPE_CHECKING:
    from longtail.data.large import ListedData
    from longtail.experiments.large_hours import Hours
    from longtail.train.distributed import World
    from longtail.train.streamed import Streaming


def options(
    *,
    datasets: list[str] | None,
    models: list[str] | None,
    epochs: list[int] | None,
    seeds: int | None,
    overrides: list[str],
    minutes: float | None,
    runs: Path,
    folder: Path,
) -> dict[str, Any]:
    """What `experiments.table_large.run` takes, checked; what was not typed has its defaults."""
    from longtail.experiments.large_runs import columns
    from longtail.train.recipe import parse_overrides

    found: dict[str, Any] = {
        "columns": columns(datasets=datasets, models=models, epochs=epochs),
        "overrides": parse_overrides(overrides),
        "minutes": minutes,
        "runs": runs,
        "folder": folder,
    }
    return found if seeds is None else {**found, "seeds": seeds}


@contextmanager
def processes(device: str, *, wanted: bool) -> Iterator[World | None]:
    """The processes that torchrun started, or this one alone; None if nothing is trained."""
    if not wanted:
        yield None
        return
    with _training.joined(device) as world:
        yield world


def training(
    world: World,
    *,
    precision: str,
    data_dir: Path | None,
    root: Path | None,
    streaming: Streaming,
    command: str,
) -> dict[str, Any]:
    """The options of training itself."""
    return {
        "load": _loader(data_dir, root),
        "device": world.device,
        "precision": precision,
        "world": world,
        "streaming": streaming,
        "command": _training.as_launched(command, world),
    }


def _loader(data_dir: Path | None, root: Path | None) -> Callable[[str], ListedData]:
    def load(name: str) -> ListedData:
        from longtail.data.large import load_listed

        return load_listed(name, data_dir=data_dir, root=root)

    return load


def estimated(given: dict[str, Any], *, talks: bool) -> Hours:
    """The hours of `experiments.table_large.run` with these options."""
    from longtail.experiments import table_large

    unused = ("minutes", "runs", "folder", "command")
    asked = {name: value for name, value in given.items() if name not in unused}
    if not talks:
        return table_large.estimate(**asked)
    with _console.progress("trying networks for a minute") as progress:
        return table_large.estimate(**asked, progress=progress)


def show_hours(hours: Hours) -> None:
    """The estimate as tables."""
    from longtail.report.table_large import hours_tables

    for table in hours_tables(hours):
        _console.show_table(table)
