"""What the workers of a stream are asked for, and what they answer: whole batches.

The orders of an epoch's examples are a sampler's (`Sampled`), that of the data (`InOrder`) or
the caller's own (`Planned`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from longtail._checks import IntArray
from longtail.data.lists import ListedImages
from longtail.data.photos import CenterCrop, PhotoError, RandomCrop
from longtail.data.torch_samplers import DistributedClassSampler, processes

View = RandomCrop | CenterCrop


class Request(NamedTuple):
    """What a worker is asked for; `draws` number an epoch's draws, over all processes."""

    epoch: int
    indices: IntArray
    draws: IntArray


class Fetched(NamedTuple):
    """What it answers: `failures` are (index, what is wrong), and their places are left out."""

    images: torch.Tensor
    labels: torch.Tensor
    indices: torch.Tensor
    failures: list[tuple[int, str]]


class StreamedImages(Dataset[Any]):
    """The data set that torch's workers hold; it answers requests for whole batches."""

    def __init__(self, data: ListedImages, *, view: View, seed: int) -> None:
        self.data, self.view, self.seed = data, view, seed

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, request: Request) -> Fetched:
        """Decode a batch; torch's fetcher calls this with what the batch sampler yields."""
        size, wanted = self.view.size, len(request.indices)
        pixels = torch.empty((wanted, size, size, 3), dtype=torch.uint8)
        if get_worker_info() is not None:
            # Too little of it is an error here; in the thread of torch's queue it is a hang.
            pixels.share_memory_()  # type: ignore[no-untyped-call]
        out = pixels.numpy()
        kept: list[int] = []
        failures: list[tuple[int, str]] = []
        for index, draw in zip(request.indices.tolist(), request.draws.tolist(), strict=True):
            random = np.random.default_rng([self.seed, request.epoch, draw])
            try:
                out[len(kept)] = self.view(self.data.file(index), random)
            except PhotoError as error:
                failures.append((index, error.reason))
            else:
                kept.append(index)
        chosen = np.array(kept, np.int64)
        return Fetched(
            pixels[: len(kept)].permute(0, 3, 1, 2),
            torch.from_numpy(self.data.labels[chosen]),
            torch.from_numpy(chosen),
            failures,
        )


class Requests:
    """The batch sampler: an epoch's indices with the numbers of their draws, in batches."""

    def __init__(self, source: Any, batch_size: int, drop_last: bool) -> None:
        self.source, self.batch_size, self.drop_last = source, batch_size, drop_last

    def __len__(self) -> int:
        full, rest = divmod(len(self.source), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Request]:
        epoch, some = self.source.epoch, list[tuple[int, int]]()
        for pair in self.source.draws():
            some.append(pair)
            if len(some) == self.batch_size:
                yield _request(epoch, some)
                some = []
        if some and not self.drop_last:
            yield _request(epoch, some)


def _request(epoch: int, pairs: list[tuple[int, int]]) -> Request:
    indices, draws = np.array(pairs, np.int64).T
    return Request(epoch, indices, draws)


class Sampled:
    """The draws of a sampler: each index with its place in the epoch of all processes."""

    def __init__(self, sampler: DistributedClassSampler) -> None:
        self.sampler = sampler

    @property
    def epoch(self) -> int:
        return int(self.sampler.epoch)

    def __len__(self) -> int:
        return len(self.sampler)

    def draws(self) -> Iterator[tuple[int, int]]:
        first = None
        for number, index in enumerate(self.sampler):
            if first is None:  # known once the sampler has begun
                first = self.sampler.state_dict(taken=0)["position"] + self.sampler.rank
            yield index, first + number * self.sampler.num_replicas


class InOrder:
    """Every num_replicas-th example from `rank` on: each one once, on one process."""

    epoch = 0

    def __init__(self, examples: int, num_replicas: int | None, rank: int | None) -> None:
        num_replicas, rank = processes(num_replicas, rank, caller="evaluation_stream")
        self.mine = range(rank, examples, num_replicas)

    def __len__(self) -> int:
        return len(self.mine)

    def draws(self) -> Iterator[tuple[int, int]]:
        return zip(self.mine, self.mine, strict=True)


class Planned:
    """What the caller lays down for each epoch: its batches, as positions and draws."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)
