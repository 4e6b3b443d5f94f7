"""Batches of images from disk: decoded and cropped in worker processes, in a fixed order.

What a crop is, `photos` says; which examples an epoch has, `samplers`. Pixels stay bytes here:
they are normalised where the network is.
"""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import select
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from longtail import _checks
from longtail._checks import InputError, IntArray
from longtail.data.decoding import _cores
from longtail.data.lists import ListedImages
from longtail.data.photos import CenterCrop, RandomCrop
from longtail.data.samplers import ClassSampler

_checks.require("torch", extra="torch")

import torch
from torch import distributed
from torch.utils.data import DataLoader

from longtail.data._requests import (
    Fetched,
    InOrder,
    Planned,
    Request,
    Requests,
    Sampled,
    StreamedImages,
    View,
)
from longtail.data.torch_samplers import DistributedClassSampler

_SHARED = "/dev/shm"  # where Linux keeps memory that processes share
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


def planned_stream(
    data: ListedImages,
    *,
    batch_size: int,
    view: View,
    seed: int,
    workers: int | None = None,
    prefetch: int = 4,
    on_error: str = "stop",
    pin_memory: bool | None = None,
) -> ImageStream:
    """Batches that the caller lays down, epoch by epoch, with `ImageStream.set_plan`.

    For a trainer that knows its global batches and takes a part of each.

    Args:
        data: what to stream.
        batch_size: of the largest batch there will be.
        view: the crop.
        seed: of the crops.
        workers: and what follows: see `ImageStream`.
        prefetch: likewise.
        on_error: likewise.
        pin_memory: likewise.

    Returns:
        The stream, empty until a plan is set.
    """
    return ImageStream(
        data,
        Planned(),
        batch_size=batch_size,
        view=view,
        seed=_checks.whole(seed, "planned_stream", name="seed", at_least=0),
        workers=workers,
        prefetch=prefetch,
        on_error=on_error,
        pin_memory=pin_memory,
    )


def training_stream(
    data: ListedImages,
    *,
    batch_size: int,
    sampler: DistributedClassSampler | None = None,
    view: RandomCrop | None = None,
    seed: int = 0,
    workers: int | None = None,
    prefetch: int = 4,
    on_error: str = "stop",
    drop_last: bool = False,
    pin_memory: bool | None = None,
) -> ImageStream:
    """Shuffled or resampled epochs with random crops.

    A crop depends on `seed`, the epoch and the number of its draw in the epoch of all processes,
    on nothing else: neither workers nor processes change it, and an example that is drawn more
    than once is cropped anew each time.

    Args:
        data: what to stream.
        batch_size: of this process.
        sampler: which examples, and this process's share; every example once if None.
        view: the crop; `RandomCrop` to 224 pixels if None.
        seed: of crops, and of the order where there is no sampler.
        workers: and what follows: see `ImageStream`.
        prefetch: likewise.
        on_error: likewise.
        drop_last: likewise.
        pin_memory: likewise.

    Returns:
        The stream; call `set_epoch` before each epoch.
    """
    caller = "training_stream"
    seed = _checks.whole(seed, caller, name="seed", at_least=0)
    if sampler is None:
        drawn = ClassSampler(data.labels, num_classes=data.num_classes, seed=seed)
        sampler = DistributedClassSampler(drawn)
    elif not isinstance(sampler, DistributedClassSampler):
        raise InputError(
            f"{caller}: `sampler` must be a DistributedClassSampler, which is right for one "
            f"process too; got {type(sampler).__name__}."
        )
    examples = int(sampler.sampler.counts.sum())
    if examples != len(data):
        raise InputError(
            f"{caller}: `sampler` draws from {examples:,} examples, but the data has "
            f"{len(data):,}; make it from data.labels."
        )
    return ImageStream(
        data,
        Sampled(sampler),
        batch_size=batch_size,
        view=view or RandomCrop(),
        seed=seed,
        workers=workers,
        prefetch=prefetch,
        on_error=on_error,
        drop_last=drop_last,
        pin_memory=pin_memory,
    )


def evaluation_stream(
    data: ListedImages,
    *,
    batch_size: int,
    view: CenterCrop | None = None,
    num_replicas: int | None = None,
    rank: int | None = None,
    workers: int | None = None,
    prefetch: int = 4,
    on_error: str = "stop",
    pin_memory: bool | None = None,
) -> ImageStream:
    """Every example once, over all processes together, with nothing random.

    Args:
        data: what to stream.
        batch_size: of this process.
        view: the crop; `CenterCrop`, 256 to 224 pixels, if None.
        num_replicas: number of processes; by default torch.distributed's, or 1 without it.
        rank: of this process, likewise; it sees every `num_replicas`-th example from here on.
        workers: and what follows: see `ImageStream`.
        prefetch: likewise.
        on_error: likewise.
        pin_memory: likewise.

    Returns:
        The stream; `Batch.indices` says where results belong.
    """
    return ImageStream(
        data,
        InOrder(len(data), num_replicas, rank),
        batch_size=batch_size,
        view=view or CenterCrop(),
        seed=0,
        workers=workers,
        prefetch=prefetch,
        on_error=on_error,
        pin_memory=pin_memory,
    )


def _context() -> Any | None:
    """How workers start: forked, but not by a process with CUDA, or one that is one of several.

    Its threads may hold a lock at that moment, which the worker would wait for forever. A server
    forks them instead, which has torch loaded and no threads.
    """
    several = distributed.is_available() and distributed.is_initialized()
    if not several and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["longtail.data.streaming"])
    return context


def _end_with(trainer: int, _: int) -> None:
    """In a worker that a server forked: end when the training process is gone.

    Its own parent is the server, which lives as long as its workers do; so both would stay, with
    all their memory, after the process that they work for was killed.
    """

    def wait() -> None:
        try:
            select.select([os.pidfd_open(trainer)], [], [])  # readable once it has ended
        except ProcessLookupError:
            pass  # it ended before
        except (AttributeError, OSError):  # not Linux, or an old one
            while _is_there(trainer):
                time.sleep(5.0)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


class ImageStream:
    """An iterable of `Batch`es; made by the functions above.

    Args:
        data: what to stream.
        source: which examples, in which order.
        batch_size: of this process.
        view: the crop.
        seed: of the crops.
        workers: processes that decode; by default this process's share of the cores. With 0
            the images are decoded here, when they are asked for.
        prefetch: batches that each worker keeps ready.
        on_error: what a file that can't be decoded does: ``stop``, with its name; or ``skip``,
            which leaves it out of its batch, logs its name and counts it.
        drop_last: whether to leave out a last batch that is smaller than the others.
        pin_memory: page-locked batches, which reach a GPU faster; by default where there is one.

    Attributes:
        skipped: position of each example that was left out -> how often so far.
    """

    def __init__(
        self,
        data: ListedImages,
        source: Sampled | InOrder | Planned,
        *,
        batch_size: int,
        view: View,
        seed: int,
        workers: int | None = None,
        prefetch: int = 4,
        on_error: str = "stop",
        drop_last: bool = False,
        pin_memory: bool | None = None,
    ) -> None:
        caller = "ImageStream"
        _checks.require("PIL", extra="train")
        batch_size = _checks.whole(batch_size, caller, name="batch_size")
        if workers is None:
            workers = default_workers()
        self.workers = _checks.whole(workers, caller, name="workers", at_least=0)
        self.prefetch = _checks.whole(prefetch, caller, name="prefetch")
        self.on_error = _checks.choice(on_error, ("stop", "skip"), caller, name="on_error")
        self.data, self.skipped = data, Counter[int]()
        self._source = source
        self._batch_bytes = batch_size * 3 * view.size**2
        self._check_shared_memory()
        planned = isinstance(source, Planned)
        requests = source if planned else Requests(source, batch_size, drop_last)
        context = _context() if self.workers else None
        self._loader: DataLoader[Any] = DataLoader(
            StreamedImages(data, view=view, seed=seed),
            batch_sampler=requests,  # type: ignore[arg-type]
            num_workers=self.workers,
            collate_fn=_as_it_is,  # a request is answered with a batch
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            prefetch_factor=self.prefetch if self.workers else None,
            generator=torch.Generator(),  # nothing here draws from it; torch's own stays untouched
            persistent_workers=self.workers > 0,
            multiprocessing_context=context,
            timeout=_WAIT_SECONDS if self.workers else 0,
            # Workers that were forked here look at their parent themselves.
            worker_init_fn=None if context is None else partial(_end_with, os.getpid()),
        )

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        return len(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next, for its order and its crops."""
        if not isinstance(self._source, Sampled):
            raise InputError(
                "ImageStream.set_epoch: evaluation has no epochs, and a planned stream takes "
                "`set_plan`."
            )
        self._source.sampler.set_epoch(epoch)

    def set_plan(self, epoch: int, batches: Iterable[tuple[IntArray, IntArray]]) -> None:
        """Lay down the next epoch, in a stream that `planned_stream` made.

        Args:
            epoch: for the crops.
            batches: for each batch the positions in the data, and the number of each example's
                draw in the epoch of all processes, on which its crop depends.
        """
        if not isinstance(self._source, Planned):
            raise InputError("ImageStream.set_plan: this stream has its own plan.")
        self._source.requests = [Request(epoch, rows, draws) for rows, draws in batches]

    def __iter__(self) -> Iterator[Batch]:
        """The batches of an epoch, or what the sampler's state has left of it."""
        try:  # all of it: torch tells of a lost worker by a signal, which may come at any line
            try:
                for fetched in self._loader:
                    if fetched.failures:
                        self._leave_out(fetched)
                    yield Batch(fetched.images, fetched.labels, fetched.indices)
            except _CUT_OFF:
                if self.workers:  # that signal is on its way, and is to meet us here
                    time.sleep(_SIGNAL_SECONDS)
                raise
        except (RuntimeError, *_CUT_OFF) as error:
            raise self._explained(error) from error

    def _leave_out(self, fetched: Fetched) -> None:
        """Count files that can't be decoded, if that was asked for; else stop at the first."""
        index, reason = fetched.failures[0]
        if self.on_error == "stop":
            raise InputError(
                f"ImageStream: {self.data.file(index)} {reason}. Replace it or take it off the "
                f"list; `longtail data check` finds all such files beforehand, and "
                f"on_error='skip' leaves them out."
            )
        if not len(fetched.indices):
            raise InputError(
                f"ImageStream: none of the {len(fetched.failures)} images of a batch can be "
                f"decoded, so nothing is left of it; the first, {self.data.file(index)}, {reason}."
            )
        for index, reason in fetched.failures:
            if index not in self.skipped:
                _logger.warning("%s %s; left out", self.data.file(index), reason)
            self.skipped[index] += 1

    def _check_shared_memory(self) -> None:
        """Refuse before any work what would fail when the batches are ready."""
        if not self.workers or not os.path.isdir(_SHARED):
            return
        need = self._batch_bytes * (self.workers * self.prefetch + 1)
        free = shutil.disk_usage(_SHARED).free
        if need > free:
            raise InputError(
                f"ImageStream: {self.workers} workers that keep {self.prefetch} batches of "
                f"{_megabytes(self._batch_bytes)} ready need {_megabytes(need)} of shared memory, "
                f"but {_SHARED} has {_megabytes(free)} free; {_MORE_SHARED}."
            )

    def _explained(self, error: Exception) -> Exception:
        """What torch says when a worker is lost, with what to do about it."""
        text = str(error)
        if self.workers and isinstance(error, _CUT_OFF):
            text = f"DataLoader worker exited: {text or type(error).__name__}"
        if "shared memory" in text or "Bus error" in text or "No space left" in text:
            return OSError(
                errno.ENOSPC,
                f"a worker process found too little shared memory in {_SHARED} for batches of "
                f"{_megabytes(self._batch_bytes)}; {_MORE_SHARED}",
            )
        if "DataLoader timed out" in text:
            return TimeoutError(
                errno.ETIMEDOUT,
                f"no worker process delivered a batch of images within {_WAIT_SECONDS:.0f} s. See "
                f"whether the disk still answers; workers=0 decodes without other processes",
            )
        if "DataLoader worker" in text and ("killed" in text or "exited" in text):
            said = text.split("\n")[0].rstrip(". ")
            return ChildProcessError(
                errno.ECHILD,
                f"a worker process that decodes images died ({said}). If the machine ran out of "
                f"memory, use fewer workers or a smaller prefetch; if a file crashes the decoder, "
                f"`longtail data check` says which; and beside a GPU or several processes a script "
                f'must keep what it does under `if __name__ == "__main__":`',
            )
        return error


# What comes of asking a worker that has just died for a batch that it had announced.
_CUT_OFF = (EOFError, ConnectionError, FileNotFoundError)
_WAIT_SECONDS = 600.0  # for a batch: a disk may sleep, but a worker that hangs must not go unseen
_SIGNAL_SECONDS = 1.0  # from a lost connection to the signal, on a busy machine too
_MORE_SHARED = (
    "enlarge it (docker run --shm-size=8g), or use fewer workers, a smaller prefetch or smaller "
    "batches"
)


def _as_it_is(fetched: Any) -> Any:
    return fetched


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"


def default_workers() -> int:
    """This process's share of the cores that it may use; torchrun says among how many."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, _cores() // (int(local) if local.isdigit() and int(local) else 1))
