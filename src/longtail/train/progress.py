"""How far training is: what a caller hears after an epoch, and the count over all runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from longtail.runs import RunSpec
from longtail.train.recipe import Recipe

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class EpochEnd:
    """What is known of a run after an epoch.

    Attributes:
        spec: of the run.
        folder: of the run.
        epoch: how many are done.
        epochs: how many there will be.
        loss: mean loss of the epoch's examples.
        held_out_error: balanced error on the held-out part, where it was measured.
        rate: learning rate of the epoch's last step.
    """

    spec: RunSpec
    folder: Path
    epoch: int
    epochs: int
    loss: float
    held_out_error: float | None
    rate: float


class Report:
    """Tells the caller how far the whole cohort is.

    Args:
        progress: see `engine.train_cohort`, and so the next two.
        after_epoch: see there.
        within_epoch: see there.
        specs: of the runs to train, by their folders.
        done: the epochs that resumed runs have behind them, by folder.
    """

    def __init__(
        self,
        progress: Progress | None,
        after_epoch: Callable[[EpochEnd], None] | None,
        within_epoch: Callable[[float], None] | None,
        specs: Mapping[Path, RunSpec],
        done: Mapping[Path, int],
    ) -> None:
        self.progress, self.after_epoch, self.within_epoch = progress, after_epoch, within_epoch
        self.total = sum(Recipe.of(spec).epochs for spec in specs.values())
        self.at = dict(done)
        if progress is not None and specs:
            progress(sum(self.at.values()), self.total, "")

    def epoch(self, end: EpochEnd) -> None:
        """After an epoch of a run."""
        self.at[end.folder] = end.epoch
        if self.after_epoch is not None:
            self.after_epoch(end)
        if self.progress is not None:
            words = [f"{end.spec.method.name}, seed {end.spec.seed}"]
            words.append(f"epoch {end.epoch}/{end.epochs}")
            words.append(f"loss {end.loss:.3f}")
            if end.held_out_error is not None:
                words.append(f"held-out error {end.held_out_error:.1%}")
            self.progress(sum(self.at.values()), self.total, ", ".join(words))
