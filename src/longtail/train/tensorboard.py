"""The numbers of each epoch for TensorBoard; `log.jsonl` has the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from longtail import _checks

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from longtail.train.engine import EpochEnd


class TensorBoard:
    """Writes each run's loss, learning rate and held-out error below ``RUN/tensorboard``.

    Give it to `train_cohort` as `after_epoch`. The step is the number of epochs done. A resumed
    run goes on in its folder, and no step is shown twice.
    """

    def __init__(self) -> None:
        _checks.require("tensorboard", extra="tensorboard")
        self._writers: dict[Path, SummaryWriter] = {}

    def __call__(self, end: EpochEnd) -> None:
        """Write the numbers of one run after one epoch."""
        from torch.utils.tensorboard import SummaryWriter

        if end.folder not in self._writers:
            # A resumed run goes on here: readers drop what they have from this epoch on.
            folder = str(end.folder / "tensorboard")
            self._writers[end.folder] = SummaryWriter(folder, purge_step=end.epoch)  # type: ignore[no-untyped-call]
        writer = self._writers[end.folder]
        writer.add_scalar("loss", end.loss, end.epoch)
        writer.add_scalar("learning rate", end.rate, end.epoch)
        if end.held_out_error is not None:
            writer.add_scalar("held-out balanced error", end.held_out_error, end.epoch)
        writer.flush()  # a kill must not lose what the checkpoint already has behind it
        if end.epoch == end.epochs:
            self._writers.pop(end.folder).close()  # a long list of runs needs no open files

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():  # of runs that did not come to their end
            writer.close()  # type: ignore[no-untyped-call]
        self._writers.clear()
