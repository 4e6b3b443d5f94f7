"""What the experiments of `longtail reproduce` take, from what was typed, checked before work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from longtail.cli import _training

if TYPE_CHECKING:
    from longtail.data import LongTailedData


def of_simulation(
    datasets: list[str] | None,
    data_dir: Path | None,
    seeds: int | None,
    multiples: str | None,
    device: str,
) -> dict[str, Any]:
    """What `experiments.large_simulation.run` takes, checked."""
    from longtail import _checks
    from longtail.experiments.large_simulation import DATASETS, Settings

    caller = "longtail reproduce"
    _checks.require("torch", extra="torch", caller=caller)
    for dataset in datasets or []:
        _checks.choice(dataset, DATASETS, caller, name="--dataset")
    changed: dict[str, Any] = {} if seeds is None else {"trials": seeds}
    if multiples is not None:
        several = sorted({_multiple(word) for word in multiples.split(",")})
        changed["multiples"] = dict.fromkeys(DATASETS, several)
    found: dict[str, Any] = {"settings": Settings(**changed), "data_dir": data_dir}
    if datasets:
        found["datasets"] = list(dict.fromkeys(datasets))
    return {**found, "device": _training.find_device(device)}


def _multiple(word: str) -> int:
    if not word.strip().isdecimal() or not int(word):
        raise typer.BadParameter(
            f"--multiples takes whole numbers above 0 with commas between, such as 1,10; got "
            f"{word.strip()!r}"
        )
    return int(word)


def of_runs(**typed: Any) -> dict[str, Any]:
    """What `run` of an experiment on the CIFARs takes, checked; without what was not typed."""
    from longtail import _checks
    from longtail.experiments.exp_runs import CIFARS, TABLE
    from longtail.experiments.strong_runs import RATIOS, STAGES
    from longtail.train.recipe import parse_overrides, recipe_values

    caller = "longtail reproduce"
    typed["overrides"] = parse_overrides(typed["overrides"])
    if typed.get("recipe"):
        recipe_values(typed["recipe"])  # refuses an unknown name
    for dataset in typed["datasets"] or []:
        _checks.choice(dataset, CIFARS, caller, name="--dataset")
    if typed.get("rows"):
        _checks.choice(typed["rows"], ("table", "figures", "extra"), caller, name="--rows")
    for kind in typed.get("only") or []:
        _checks.choice(kind, [known.name for known in TABLE], caller, name="--only")
    if typed.get("only") and not typed["rows"]:
        typed["rows"] = "table"  # what it picks from
    for stage in typed.get("stages") or []:
        _checks.choice(stage, STAGES, caller, name="--stage")
    for ratio in typed.get("ratios") or []:
        _checks.choice(f"{ratio:g}", [f"{one:g}" for one in RATIOS], caller, name="--rho")
    return {key: value for key, value in typed.items() if value is not None}


def of_training(data_dir: Path | None, device: str, typed: str | None) -> dict[str, Any]:
    """What `run` of an experiment on the CIFARs takes besides, where it is to train."""
    require_torch()
    where = _training.find_device(device)
    return {
        "load": _loader(data_dir),
        "device": where,
        "precision": precision(typed, where.type),
    }


def require_torch() -> None:
    """Refuse, in one line, to train without torch."""
    from longtail import _checks

    for module in ("torch", "safetensors"):
        _checks.require(module, extra="torch", caller="longtail reproduce")


def precision(asked: str | None, kind: str) -> str:
    """The precision that was asked for, or that of the kind of device."""
    from longtail import _checks

    if asked is None:
        return "bfloat16" if kind == "cuda" else "float32"
    return _checks.choice(asked, ("float32", "bfloat16"), "longtail reproduce", name="--precision")


def _loader(data_dir: Path | None) -> Callable[..., LongTailedData]:
    def load(name: str, ratio: float | None = None) -> LongTailedData:
        from longtail.data import load as load_data

        return load_data(name, data_dir=data_dir, imbalance_ratio=ratio)

    return load
