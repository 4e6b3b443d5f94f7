"""Batches of images from disk: decoded and cropped in worker processes, in a fixed order.

`photos` defines the crops, `samplers` which examples an epoch has. Pixels stay bytes here: they
are normalised where the network is.
"""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from longtail import _checks
from longtail._checks import InputError, IntArray
from longtail.data.decoding import PhotoError, cores
from longtail.data.lists import ListedImages
from longtail.data.photos import CenterCrop, RandomCrop
from longtail.data.samplers import ClassSampler

_checks.require("torch", extra="torch")

import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset, get_worker_info

from longtail.data.torch_samplers import DistributedClassSampler, processes

View = RandomCrop | CenterCrop

_WAIT_SECONDS = 600.0  # for a batch: a disk may sleep, but a worker that hangs must not go unseen
# Errors of asking a worker that has just died for a batch that it had announced.
_CUT_OFF = (EOFError, ConnectionError, FileNotFoundError)
_logger = logging.getLogger("longtail")


class Batch(NamedTuple):
    """Some examples.

    Attributes:
        images: uint8, shape (examples, 3, size, size), channels last in memory.
        labels: int64, shape (examples,).
        indices: int64, shape (examples,); positions in the data set.
    """

    images: torch.Tensor
    labels: torch.Tensor
    indices: torch.Tensor


class Request(NamedTuple):
    """Batch to decode; `draws` number the draws of the epoch of all processes."""

    epoch: int
    indices: IntArray
    draws: IntArray


def training_stream(
    data: ListedImages,
    *,
    batch_size: int,
    sampler: DistributedClassSampler | None = None,
    view: RandomCrop | None = None,
    seed: int = 0,
    drop_last: bool = False,
    **options: Any,
) -> ImageStream:
    """Stream shuffled or resampled epochs with random crops.

    A crop depends only on `seed`, the epoch and the number of its draw in the epoch of all
    processes: neither workers nor processes change it, and an example that is drawn more than
    once is cropped anew each time.

    Args:
        data: images and labels.
        batch_size: of this process.
        sampler: draws the examples of this process; every example once if None.
        view: the crop; `RandomCrop` to 224 pixels if None.
        seed: of crops, and of the order where there is no sampler.
        drop_last: leave out a last batch that is smaller than the others.
        **options: workers, prefetch, on_error and pin_memory, see `ImageStream`.

    Returns:
        The stream; call `set_epoch` before each epoch.
    """
    batch_size = _checks.whole(batch_size, name="batch_size")
    if sampler is None:
        drawn = ClassSampler(data.labels, num_classes=data.num_classes, seed=seed)
        sampler = DistributedClassSampler(drawn)
    examples = int(sampler.sampler.counts.sum())
    if examples != len(data):
        raise InputError(
            f"`sampler` draws from {examples:,} examples, but the data has {len(data):,}; make it "
            f"from data.labels."
        )
    requests = _Sampled(sampler, batch_size, drop_last)
    return ImageStream(data, requests, view=view or RandomCrop(), seed=seed, **options)


class _Sampled:
    """Requests of a sampler's epoch, each index with its place in that of all processes."""

    def __init__(self, sampler: DistributedClassSampler, batch_size: int, drop_last: bool) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __len__(self) -> int:
        size = self.batch_size
        return (len(self.sampler) + (0 if self.drop_last else size - 1)) // size

    def __iter__(self) -> Iterator[Request]:
        sampler, size = self.sampler, self.batch_size
        epoch, rows = sampler.epoch, np.fromiter(sampler, np.int64)
        first = sampler.state_dict(taken=0)["position"] + sampler.rank
        draws = first + sampler.num_replicas * np.arange(len(rows))
        end = len(rows) // size * size if self.drop_last else len(rows)
        for start in range(0, end, size):
            some = slice(start, start + size)
            yield Request(epoch, rows[some], draws[some])


def evaluation_stream(
    data: ListedImages,
    *,
    batch_size: int,
    view: CenterCrop | None = None,
    num_replicas: int | None = None,
    rank: int | None = None,
    **options: Any,
) -> ImageStream:
    """Stream every example once, over all processes together, with nothing random.

    Args:
        data: images and labels.
        batch_size: of this process.
        view: the crop; `CenterCrop`, 256 to 224 pixels, if None.
        num_replicas: number of processes; by default torch.distributed's, or 1 without it.
        rank: of this process, likewise; it sees every `num_replicas`-th example from here on.
        **options: workers, prefetch, on_error and pin_memory, see `ImageStream`.

    Returns:
        The stream; `Batch.indices` tells where results belong.
    """
    batch_size = _checks.whole(batch_size, name="batch_size")
    num_replicas, rank = processes(num_replicas, rank)
    mine = np.arange(rank, len(data), num_replicas)
    parts = [mine[start : start + batch_size] for start in range(0, len(mine), batch_size)]
    requests = [Request(0, part, part) for part in parts]
    return ImageStream(data, requests, view=view or CenterCrop(), seed=0, **options)


def planned_stream(data: ListedImages, *, view: View, seed: int, **options: Any) -> ImageStream:
    """Stream batches that the caller lays down, epoch by epoch, with `ImageStream.set_plan`.

    For a trainer that knows its global batches and takes a part of each.
    """
    return ImageStream(data, [], view=view, seed=seed, **options)


class ImageStream:
    """Iterable of `Batch`es; made by the functions above.

    Args:
        data: images and labels.
        requests: an iterable of `Request`, the batches of an epoch, anew in each iteration.
        view: the crop.
        seed: of the crops.
        workers: processes that decode; by default this process's share of the cores. With 0
            the images are decoded here, when they are asked for.
        prefetch: batches that each worker keeps ready.
        on_error: for a file that can't be decoded, ``stop`` with its name; or ``skip``, which
            leaves it out of its batch, logs its name and counts it.
        pin_memory: page-locked batches, which reach a GPU faster; by default where there is one.

    Attributes:
        skipped: position of each example that was left out -> how often so far.
    """

    def __init__(
        self,
        data: ListedImages,
        requests: Any,
        *,
        view: View,
        seed: int,
        workers: int | None = None,
        prefetch: int = 4,
        on_error: str = "stop",
        pin_memory: bool | None = None,
    ) -> None:
        _checks.require("PIL", extra="train")
        self.workers = default_workers() if workers is None else workers
        self.on_error = _checks.choice(on_error, ("stop", "skip"), name="on_error")
        self.data, self.skipped = data, Counter[int]()
        self._requests = requests
        parallel: dict[str, Any] = {}
        if self.workers:
            parallel = {"prefetch_factor": prefetch, "persistent_workers": True}
            parallel |= {"timeout": _WAIT_SECONDS, "worker_init_fn": _end_with_parent}
        self._loader: DataLoader[Any] = DataLoader(
            StreamedImages(data, view, seed),
            sampler=requests,
            batch_size=None,  # a request is answered with a batch
            num_workers=self.workers,
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            generator=torch.Generator(),  # nothing here draws from it; torch's own stays untouched
            **parallel,
        )

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        return len(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Set which epoch of a `training_stream` comes next, for its order and its crops."""
        self._requests.sampler.set_epoch(epoch)

    def set_plan(self, epoch: int, batches: Iterable[tuple[IntArray, IntArray]]) -> None:
        """Lay down the next epoch, in a stream that `planned_stream` made.

        `batches` are the positions in the data, and the number of each example's draw in the
        epoch of all processes, on which its crop depends.
        """
        self._requests[:] = [Request(epoch, rows, draws) for rows, draws in batches]

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of an epoch, or what the sampler's state has left of it."""
        if self.workers:  # which start now, the first time
            self._loader.multiprocessing_context = _start_method()
        try:  # all of it: torch tells of a lost worker by a signal, which may come at any line
            try:
                for batch, failures in self._loader:
                    if failures:
                        self._leave_out(batch, failures)
                    yield batch
            except _CUT_OFF:
                if self.workers:
                    time.sleep(1)  # that signal is on its way, and is to meet us here
                raise
        except (RuntimeError, *_CUT_OFF) as error:
            text = str(error).strip() or type(error).__name__
            lost = text.startswith("DataLoader") or (self.workers and isinstance(error, _CUT_OFF))
            if not lost and "shared memory" not in text:
                raise
            raise ChildProcessError(
                errno.ECHILD,
                f"a worker process that decodes images died, or gave no batch within "
                f"{_WAIT_SECONDS:.0f} s ({text.splitlines()[-1].rstrip('. ')}). If memory or "
                f"/dev/shm ran out, enlarge it (docker run --shm-size=8g), or use fewer workers, a "
                f"smaller prefetch or smaller batches; workers=0 decodes without other processes; "
                f"and beside a GPU or several processes a script must keep what it does under "
                f'`if __name__ == "__main__":`',
            ) from error

    def _leave_out(self, batch: Batch, failures: list[tuple[int, str]]) -> None:
        """Count files that can't be decoded, if that was asked for; else stop at the first."""
        index, reason = failures[0]
        if self.on_error == "stop":
            raise InputError(
                f"{self.data.file(index)} {reason}. Replace it or take it off the list; `longtail "
                f"data check` finds all such files beforehand, and `on_error='skip'` leaves them "
                f"out."
            )
        if not len(batch.indices):
            raise InputError(
                f"none of the {len(failures)} images of a batch can be decoded; the first, "
                f"{self.data.file(index)}, {reason}."
            )
        for index, reason in failures:
            if index not in self.skipped:
                _logger.warning("%s %s; left out", self.data.file(index), reason)
            self.skipped[index] += 1


class StreamedImages(Dataset[Any]):
    """Data set that torch's workers hold; it answers requests for whole batches."""

    def __init__(self, data: ListedImages, view: View, seed: int) -> None:
        self.data, self.view, self.seed = data, view, seed

    def __getitem__(self, request: Request) -> tuple[Batch, list[tuple[int, str]]]:
        """Decode a batch.

        Images that can't be decoded are not in the batch but beside it, as (index, reason).
        """
        size, wanted = self.view.size, len(request.indices)
        pixels = torch.empty((wanted, size, size, 3), dtype=torch.uint8)
        if get_worker_info() is not None:
            # Too little of it is an error here; in the thread of torch's queue it is a hang.
            pixels.share_memory_()  # type: ignore[no-untyped-call]
        out = pixels.numpy()
        kept, failures = list[int](), list[tuple[int, str]]()
        for index, draw in zip(request.indices.tolist(), request.draws.tolist(), strict=True):
            random = np.random.default_rng([self.seed, request.epoch, draw])
            try:
                out[len(kept)] = self.view(self.data.file(index), random)
            except PhotoError as error:
                failures.append((index, error.reason))
            else:
                kept.append(index)
        chosen = torch.tensor(kept, dtype=torch.int64)
        images = pixels[: len(kept)].permute(0, 3, 1, 2)
        return Batch(images, torch.from_numpy(self.data.labels[chosen.numpy()]), chosen), failures


def _start_method() -> Any | None:
    """Return torch's way to start workers, but no fork of a process with CUDA or a group.

    Its threads may hold a lock at that moment, which the worker would wait for forever. A server
    forks them instead, which has torch loaded and no threads.
    """
    several = distributed.is_available() and distributed.is_initialized()
    if os.name == "nt" or not (several or torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["longtail.data.streaming"])
    return context


def _end_with_parent(_: int) -> None:
    """End a worker when the training process is gone, even where a server forked it."""

    def wait() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def default_workers() -> int:
    """Return this process's share of the cores that it may use; torchrun sets among how many."""
    return max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
