"""Processes that train one run together: their ranks, and the few things they exchange.

torchrun starts the processes and tells each its rank in environment variables; `joined` makes
them one group. What a run computes is defined by the global batch, of which each process takes
its share, so nothing here knows about recipes; and one process alone is a group of one, for which
every function is a formality. Every wait for another process ends after `PATIENCE`.
"""

from __future__ import annotations

import inspect
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, nn

from longtail._checks import InputError
from longtail.runs.folder import RunError

# An error that every process has is told by the first one: the others wait so long for the
# launcher to end them before they tell it too.
_GRACE = 2.0
PATIENCE = timedelta(minutes=10)
# How torch's backends speak of a lost neighbour where they raise no error of a kind of its own.
_LOST = ("gloo", "connection closed", "connection reset", "broken pipe", "nccl")


@dataclass(frozen=True)
class World:
    """Processes that train one run together, as one of them sees them.

    Attributes:
        rank: this process's number, from 0; the first one writes and prints.
        count: how many there are.
        device: where this one computes.

    Examples:
        >>> [World(rank=rank, count=3).share(8) for rank in range(3)]
        [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
    """

    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def share(self, size: int) -> slice:
        """Return this process's part of a global batch; of a very small one it may be empty."""
        return slice(size * self.rank // self.count, size * (self.rank + 1) // self.count)

    def sum_(self, values: Tensor) -> Tensor:
        """Add up a tensor over the processes, in place; all get the sum."""
        if self.count > 1:
            distributed.all_reduce(values)
        return values

    def send_(self, tensor: Tensor) -> None:
        """Give every process the first one's tensor, in place."""
        if self.count > 1:
            # A part of a larger tensor can't be sent as it is, nor can GPUs send the host's.
            whole = tensor.to(self.device).contiguous()
            distributed.broadcast(whole, src=0)
            if whole is not tensor:
                tensor.copy_(whole)

    def tell(self, value: Any = None) -> Any:
        """Return the first process's value; no process goes on before it is told."""
        told = [value]
        if self.count > 1:
            distributed.broadcast_object_list(told, src=0, device=self.device)
        return told[0]

    def gather(self, rows: Tensor, total: int) -> NDArray[Any] | None:
        """Put together what the processes computed for every `count`-th example from their rank on.

        Returns shape (total, ...) in the examples' order on the first process; None elsewhere.
        """
        if self.count == 1:
            return rows.cpu().numpy()
        if self.rank > 0:
            if len(rows):
                distributed.send(rows.contiguous(), dst=0)
            return None
        own = rows.cpu().numpy()
        whole = np.empty((total, *own.shape[1:]), own.dtype)
        whole[:: self.count] = own
        for rank in range(1, self.count):
            part = whole[rank :: self.count]
            if len(part):
                theirs = rows.new_empty(part.shape)
                distributed.recv(theirs, src=rank)
                part[:] = theirs.cpu().numpy()
        return whole

    def average_gradients(self, module: nn.Module) -> nn.Module:
        """Wrap a module so that its backward pass averages gradients over the processes.

        Batch norm stays local: each process normalises by its own part of the batch.
        """
        if self.count == 1:
            return module
        from torch.nn.parallel import DistributedDataParallel

        # The option has a new name since torch 2.13.
        known = inspect.signature(DistributedDataParallel).parameters
        buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        options: dict[str, Any] = {buffers: False, "gradient_as_bucket_view": True}
        device = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=device, **options)


ALONE = World()


@contextmanager
def joined(device: torch.device | str, *, patience: timedelta = PATIENCE) -> Iterator[World]:
    """Join the processes that torchrun started, for as long as the context lasts.

    Args:
        device: "cpu", or "cuda" without a number: each process of a machine takes a GPU of its own.
        patience: how long to wait for the others, here and at every step.

    Yields:
        The world; without a launcher, that of one process.
    """
    device = torch.device(device)
    if distributed.is_initialized():  # by whoever calls this, and theirs to end
        yield World(distributed.get_rank(), distributed.get_world_size(), device)
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:  # torchrun's
        yield World(device=device)
        return
    if device.type == "cuda":
        local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if device.index is not None or local >= count:
            raise InputError(
                f"torchrun started process {local + 1} of this machine, which has {count} GPU(s), "
                f"for {device}: each process takes a GPU of its own, so start at most {count} and "
                f"leave the number out; choose among GPUs with CUDA_VISIBLE_DEVICES."
            )
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    world = World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), device)
    _meet(device, patience)
    try:
        yield world
    except Exception as error:
        if world.rank > 0:
            time.sleep(_GRACE)
        if device.type == "cpu":  # a GPU may wait there for a process that is gone
            distributed.destroy_process_group()
        cause = error.__cause__ or error  # of NCCL's, another error may have been made
        said = str(cause) or repr(cause)
        lost = isinstance(cause, RuntimeError) and any(word in said.lower() for word in _LOST)
        if not lost and not isinstance(cause, distributed.DistError):
            raise
        raise RunError(
            f"another process of this training stopped, so this one can't go on; what it said is "
            f"the reason ({said.splitlines()[0]})."
        ) from error
    distributed.destroy_process_group()


def _meet(device: torch.device, patience: timedelta) -> None:
    """Make the processes one group, or say why they can't meet."""
    from torch.distributed.rendezvous import rendezvous

    where = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    gpu = device.type == "cuda"
    try:
        store, rank, count = next(rendezvous("env://", timeout=patience))
        distributed.init_process_group(
            "nccl" if gpu else "gloo",
            store=_fresh(store, rank, count, patience),
            rank=rank,
            world_size=count,
            timeout=patience,
            device_id=device if gpu else None,
        )
    except (RuntimeError, ValueError, TimeoutError) as error:
        text = str(error).lower()
        if "eaddrinuse" in text or "address already in use" in text:
            raise InputError(
                f"the processes can't meet at {where}: another program uses that port. Choose "
                f"another (torchrun --master-port N), or let torchrun find a free one "
                f"(--standalone on one machine)."
            ) from error
        if "timed out" in text or "timeout" in text:
            raise InputError(
                f"not all {os.environ['WORLD_SIZE']} processes came to {where} within "
                f"{patience.total_seconds():.0f} s; start torchrun on every machine, with the same "
                f"--nnodes and --rdzv-endpoint, and see that its port is open between them."
            ) from error
        raise RunError(f"the processes could not meet at {where}: {error}") from error


def _fresh(store: Any, rank: int, count: int, patience: timedelta) -> Any:
    """Return a part of torchrun's store with nothing left of processes that were killed.

    torchrun starts processes again with the store it has, and in it are the addresses of those
    that are gone. So the first process names a new part of the store; each of the others answers
    with a word of its own, and goes on only where the first one has repeated it.
    """
    from torch.distributed.distributed_c10d import PrefixStore

    word, deadline = secrets.token_hex(8), time.monotonic() + patience.total_seconds()
    if rank == 0:
        store.set("longtail/part", word)
        answers = [f"longtail/{word}/{other}" for other in range(1, count)]
        store.wait(answers, patience)
        store.set(f"longtail/{word}/all", b" ".join(store.get(answer) for answer in answers))
        return PrefixStore(f"longtail/{word}", store)
    while time.monotonic() < deadline:
        part = store.get("longtail/part").decode()
        store.set(f"longtail/{part}/{rank}", word)
        repeated = f"longtail/{part}/all"
        if store.check([repeated]) and word in store.get(repeated).decode().split():
            return PrefixStore(f"longtail/{part}", store)
        time.sleep(0.02)
    raise TimeoutError("timed out")
