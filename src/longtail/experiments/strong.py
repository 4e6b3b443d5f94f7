"""How far the plain logit-adjusted loss goes: the recipes `strong` and `strong-distilled`.

`run` trains what is missing (see `strong_runs`) and returns a `Study`, which is made of records
alone. Only the published rows are copied. Every number is of the last epoch; the test set is
opened once for each run. How it looks is in `longtail.report.strong`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail._checks import InputError
from longtail.experiments import Progress, records, selection
from longtail.experiments.exp_runs import CIFARS, Shelf
from longtail.experiments.records import Record
from longtail.experiments.selection import Selection
from longtail.experiments.strong_part import DISTILLED, Part, percents
from longtail.experiments.strong_runs import RATIOS, Setting, StrongTrainer

if TYPE_CHECKING:
    import torch

    from longtail.data import LongTailedData

DEFAULT_STAGES = ("strong", "students")
# Mean errors in percent at ratio 100, set after a first trial of one seed and before these runs.
GOALS = {
    "strong": {"cifar10-lt": 13.6, "cifar100-lt": 47.5},
    DISTILLED: {"cifar10-lt": 12.6, "cifar100-lt": 44.5},
}
# What students were to come near after that.
FURTHER_GOALS = {"cifar10-lt": 11.5, "cifar100-lt": 43.0}


def _in_percent(found: Selection) -> dict[str, Any]:
    """A selection for JSON, with its errors in percent as all others."""
    document = found.to_dict()
    for trial in document["trials"]:
        for key in ("dev_error", "dev_error_again"):
            (trial[key],) = percents([trial[key]])
    return document


@dataclass(frozen=True, eq=False)
class Study:
    """All settings.

    Attributes:
        parts: those with records, by data set and then by ratio.
        absent: those without any.
        stopped: whether training ended before everything was trained.
        selections: what ways to train students reached on the development set.
    """

    parts: tuple[Part, ...]
    absent: tuple[Setting, ...] = ()
    stopped: bool = False
    selections: tuple[Selection, ...] = ()

    @classmethod
    def of(
        cls,
        found: Iterable[Record],
        *,
        datasets: Sequence[str] = CIFARS,
        ratios: Sequence[float] = RATIOS,
        seeds: int | None = None,
        overrides: Mapping[str, Any] | None = None,
        selections: Iterable[Selection] = (),
    ) -> Study:
        """The study of some records; others than its own play no part.

        Args:
            found: records.
            datasets: which to show.
            ratios: which to show.
            seeds: how many there should be of each kind; None for the usual numbers.
            overrides: recipe values that were changed, for a trial in small.
            selections: to show beside them.
        """
        shelf = Shelf(found)
        settings = [
            Setting(dataset, ratio, seeds, overrides or {})
            for dataset in datasets
            for ratio in ratios
        ]
        parts = [part for setting in settings if (part := Part(setting, shelf)).records]
        there = [part.setting for part in parts]
        absent = tuple(setting for setting in settings if setting not in there)
        return cls(tuple(parts), absent, selections=tuple(selections))

    def part(self, dataset: str, ratio: float = RATIOS[0]) -> Part | None:
        """One part, or None where there are no records of it."""
        for part in self.parts:
            if (part.setting.dataset, part.setting.ratio) == (dataset, ratio):
                return part
        return None

    def require_parts(self) -> None:
        """Refuse a study without any run, naming the commands that make them."""
        if not self.parts:
            raise InputError(
                "strong: there is no record of any of its runs; train them with: "
                + " ; ".join(setting.command() for setting in self.absent)
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; errors in percent."""
        return {
            "absent": [setting.command() for setting in self.absent],
            "selections": [_in_percent(found) for found in self.selections],
            "parts": [
                {
                    "dataset": part.setting.dataset,
                    "imbalance_ratio": part.setting.ratio,
                    "minutes": round(part.minutes, 2),
                    "missing": part.missing(),
                    "lines": [line.to_dict() for line in part.lines],
                    "teachers": [line.to_dict() for line in part.teachers],
                    "further_teachers": [line.to_dict() for line in part.further_teachers],
                    "longer_teachers": [line.to_dict() for line in part.longer_teachers],
                    "ablation": [line.to_dict() for line in part.ablation],
                    "removal": [line.to_dict() for line in part.removal],
                }
                for part in self.parts
            ],
        }


def run(
    *,
    load: Callable[..., LongTailedData] | None = None,
    runs: Path | str = "runs",
    folder: Path | str = "results/strong",
    datasets: Sequence[str] = CIFARS,
    ratios: Sequence[float] | None = None,
    seeds: int | None = None,
    stages: Sequence[str] = DEFAULT_STAGES,
    overrides: Mapping[str, Any] | None = None,
    minutes: float | None = None,
    device: torch.device | str = "cpu",
    precision: str = "float32",
    command: str | None = None,
    progress: Progress | None = None,
) -> Study:
    """Train what has no record yet, and make the tables.

    Args:
        load: gives a data set by name and imbalance ratio; None trains nothing.
        runs: the folder of run folders.
        folder: of records, read and written.
        datasets: of `exp_runs.CIFARS`.
        ratios: of `strong_runs.RATIOS`; 100 if None, and all of them without training.
        seeds: of each kind of run; None for five of `strong` at ratio 100, and else three.
        stages: of `strong_runs.STAGES`.
        overrides: recipe values to change, for a trial in small.
        minutes: stop at an epoch's end after so long; the same call goes on.
        device: where to train.
        precision: of the networks, ``float32`` or ``bfloat16``.
        command: what to type to do this again, for the runs' own records.
        progress: called as ``progress(epochs done, epochs in all, what)``.

    Returns:
        The Study; `stopped` if time ran out.
    """
    shown = tuple(ratios or (RATIOS if load is None else RATIOS[:1]))
    ended = True
    if load is not None:
        trainer = StrongTrainer(
            load=load,
            runs=Path(runs),
            folder=Path(folder),
            device=device,
            precision=precision,
            command=command,
            deadline=None if minutes is None else time.monotonic() + 60.0 * minutes,
            progress=progress,
        )
        settings = [
            Setting(name, rho, seeds, overrides or {}) for rho in shown for name in datasets
        ]
        ended = trainer.run_stages(settings, stages)
    study = Study.of(
        records.read_all(folder),
        datasets=datasets,
        ratios=shown,
        seeds=seeds,
        overrides=overrides,
        selections=selection.read_all(folder, datasets),
    )
    if ended:
        study.require_parts()
    return replace(study, stopped=not ended)
