"""`ClassSampler` for torch's DataLoader, in one process or many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from longtail import _checks
from longtail._checks import InputError
from longtail.data.samplers import ClassSampler

_checks.require("torch", extra="torch")

from torch import distributed
from torch.utils.data import DistributedSampler


class DistributedClassSampler(DistributedSampler[int]):
    """This process's share of a `ClassSampler`'s epoch; in one process, all of it.

    Every process draws the same epoch from seed and epoch alone, without a word to the others,
    and takes every `num_replicas`-th index from its `rank` on. So together the processes see
    exactly the epoch of one process; only what is left when its length is no multiple of
    `num_replicas` is dropped, or with ``drop_last=False`` filled up from the epoch's start.

    Call `set_epoch` before each epoch, as for torch's own sampler, whose subclass this is:
    Lightning does so itself and leaves the sampler in place.

    Args:
        sampler: draws the epoch of all processes together.
        num_replicas: number of processes; by default torch.distributed's, or 1 without it.
        rank: of this process, likewise.
        drop_last: drop the up to num_replicas − 1 last indices; if False, repeat the epoch's
            first ones instead.

    Examples:
        >>> sampler = ClassSampler([0, 0, 0, 1, 1, 1, 1])
        >>> parts = [DistributedClassSampler(sampler, num_replicas=2, rank=r) for r in (0, 1)]
        >>> [len(part) for part in parts]
        [3, 3]
        >>> [i for pair in zip(*parts) for i in pair] == sampler.indices(0)[:6].tolist()
        True
    """

    def __init__(
        self,
        sampler: ClassSampler,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
        drop_last: bool = True,
    ) -> None:
        num_replicas, rank = processes(num_replicas, rank)
        # torch's sampler asks its data set only for its length.
        given: Any = sampler
        super().__init__(given, num_replicas, rank, False, sampler.seed, drop_last)
        self.sampler = sampler
        # Positions in the epoch of all processes together.
        self._start = 0  # where the next iteration begins
        self._begun = 0  # where the present one began
        self._handed_out = 0  # up to where it got

    def __iter__(self) -> Iterator[int]:
        """Yield this process's indices of the epoch, or what a loaded state has left of it."""
        self._begun = self._handed_out = self._start
        self._start, step = 0, self.num_replicas
        epoch = self.sampler.indices(self.epoch)
        rest = epoch[self._begun :]  # equally many for every process
        if not self.drop_last:
            rest = np.concatenate([rest, np.resize(epoch, -len(rest) % step)])
        mine = rest[: len(rest) // step * step][self.rank :: step]
        for first in range(0, len(mine), 4096):  # so that no epoch stands as a list of ints
            for index in mine[first : first + 4096].tolist():
                self._handed_out += step
                yield index

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next; another one than the present begins at its start."""
        if epoch != self.epoch:
            self._start = self._begun = self._handed_out = 0
        super().set_epoch(epoch)

    def state_dict(self, *, taken: int | None = None) -> dict[str, Any]:
        """Return where training stands in the epoch, the same on every process.

        Args:
            taken: number of indices that this process has trained on since the iteration
                began, such as batches × batch size. By default those that were handed out, which
                with worker processes runs ahead of training by what they have fetched.

        Returns:
            ``epoch``, ``position`` (in the epoch of all processes together) and
            ``drawn_from``, the sampler's repr.
        """
        position = self._handed_out if taken is None else self._begun + taken * self.num_replicas
        return {"epoch": self.epoch, "position": position, "drawn_from": repr(self.sampler)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken, with any number of processes.

        The next iteration yields what was left of the epoch, and the ones after it whole epochs;
        `len` is always that of a whole one.
        """
        if state["drawn_from"] != repr(self.sampler):
            raise InputError(
                f"the state was drawn from {state['drawn_from']}, and this sampler is "
                f"{self.sampler!r}."
            )
        self.epoch = int(state["epoch"])
        self._start = self._begun = self._handed_out = int(state["position"])


def processes(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Return how many processes share the work, and which one this is."""
    running = distributed.is_available() and distributed.is_initialized()
    if num_replicas is None:
        num_replicas = distributed.get_world_size() if running else 1
    if rank is None:
        rank = distributed.get_rank() if running else 0
    return num_replicas, rank
