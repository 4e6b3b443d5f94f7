"""Classes cut into slices, one to a process, and the collectives between these.

Three operations know autograd, and between them they make a head in slices differentiable:

    everywhere   the same features on every process; their gradients are added up
    all_rows     every process's features, gathered; each gets its own rows' gradient back
    own_rows     a process's own entries of a result that all of them know

Nothing here knows margins or losses. Without a mesh there is one process, and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from longtail._checks import InputError

# Their names since torch 2.13, and before.
_ALL_GATHER: Callable[..., Any] = getattr(
    distributed, "all_gather_single", distributed.all_gather_into_tensor
)
_REDUCE_SCATTER: Callable[..., Any] = getattr(
    distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor
)


class Slice(NamedTuple):
    """The classes start .. stop − 1 of `num_classes`, which process `rank` of `size` holds.

    DTensor cuts as `torch.chunk` does: all slices are as long as the first, but for the last one
    that has any, and with few classes to many processes some may be empty. `group` is whom to
    talk to, None where there is nobody.

    Examples:
        >>> [Slice.cut(11, rank=rank, size=3)[:2] for rank in range(3)]
        [(0, 4), (4, 8), (8, 11)]
    """

    start: int
    stop: int
    num_classes: int
    rank: int = 0
    size: int = 1
    group: distributed.ProcessGroup | None = None

    @classmethod
    def cut(
        cls,
        num_classes: int,
        *,
        rank: int = 0,
        size: int = 1,
        group: distributed.ProcessGroup | None = None,
    ) -> Slice:
        """The slice of one process."""
        length = -(-num_classes // size)
        start, stop = (min(num_classes, length * edge) for edge in (rank, rank + 1))
        return cls(start, stop, num_classes, rank, size, group)

    @classmethod
    def of_mesh(cls, num_classes: int, mesh: DeviceMesh | None) -> Slice:
        """The slice of this process in a one-dimensional mesh; all classes without one."""
        if mesh is None:
            return cls.cut(num_classes)
        if mesh.size() > num_classes:
            raise InputError(
                f"`mesh` has {mesh.size()} processes for {num_classes} classes, so some would "
                f"hold none; cut the classes over at most {num_classes} processes."
            )
        rank, group = mesh.get_local_rank(), mesh.get_group()
        return cls.cut(num_classes, rank=rank, size=mesh.size(), group=group)

    def __deepcopy__(self, memo: dict[int, Any]) -> Slice:
        """Itself: a copy of a head talks to the same processes, whose group can't be copied."""
        return self

    @property
    def width(self) -> int:
        """How many classes it holds."""
        return self.stop - self.start

    def gather(self, tensor: Tensor) -> Tensor:
        """Every process's tensor of this shape, stacked along a new first dimension."""
        if self.group is None:
            return tensor.unsqueeze(0)
        out = tensor.new_empty((self.size * tensor.shape[0], *tensor.shape[1:]))
        _ALL_GATHER(out, tensor.contiguous(), group=self.group)
        return out.reshape(self.size, *tensor.shape)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, in place."""
        if self.group is not None:
            distributed.all_reduce(tensor, group=self.group)
        return tensor


class Rows(NamedTuple):
    """Layout of the rows of all processes behind each other: padded to the longest.

    Attributes:
        counts: rows of each process.
        length: the largest of them; process r's rows start at r · length.
    """

    counts: tuple[int, ...]
    length: int

    @classmethod
    def of(cls, own: Tensor, part: Slice) -> Rows:
        """From each process's own rows; on a GPU this waits for the device."""
        count = torch.tensor([own.shape[0]], device=own.device)
        counts = tuple(part.gather(count).flatten().tolist())
        return cls(counts, max(counts))

    def pad(self, own: Tensor, value: float = 0.0) -> Tensor:
        """A process's rows with as many more as the longest has."""
        missing = self.length - own.shape[0]
        if missing == 0:
            return own
        return torch.cat([own, own.new_full((missing, *own.shape[1:]), value)])

    def places(self, device: torch.device) -> Tensor:
        """Where the rows are that are not padding, in the order of the processes."""
        starts = (rank * self.length for rank in range(len(self.counts)))
        pairs = zip(starts, self.counts, strict=True)
        return torch.cat([torch.arange(s, s + n, device=device) for s, n in pairs])


def everywhere(features: Tensor, part: Slice) -> Tensor:
    """Features that are the same on every process; their gradients are added up over these."""
    return features if part.group is None else cast(Tensor, _Everywhere.apply(features, part))  # type: ignore[no-untyped-call]


def all_rows(features: Tensor, rows: Rows, part: Slice, *, factor: float) -> Tensor:
    """Each process's features behind each other, shape (size · length, width).

    Args:
        features: this process's own, shape (rows, width).
        rows: how many rows the others have.
        part: whom to gather them from.
        factor: multiplies the gradient that comes back to this process's features.
    """
    padded = rows.pad(features)
    return padded if part.group is None else cast(Tensor, _AllRows.apply(padded, part, factor))  # type: ignore[no-untyped-call]


def own_rows(values: Tensor, rows: Rows, part: Slice) -> Tensor:
    """This process's entries of what every process computed for all rows."""
    return cast(Tensor, _OwnRows.apply(values, rows, part))  # type: ignore[no-untyped-call]


class _Everywhere(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, part: Slice) -> Tensor:
        ctx.part = part
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.part.sum(grads[0].contiguous().clone()), None


class _AllRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, part: Slice, factor: float) -> Tensor:
        ctx.part, ctx.factor = part, factor
        return part.gather(features).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        rows = grads[0].shape[0] // ctx.part.size
        out = grads[0].new_empty((rows, *grads[0].shape[1:]))
        _REDUCE_SCATTER(out, grads[0].contiguous(), group=ctx.part.group)
        return out.mul_(ctx.factor), None, None


class _OwnRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, rows: Rows, part: Slice) -> Tensor:
        ctx.rows, ctx.part = rows, part
        start = part.rank * rows.length
        return values[start : start + rows.counts[part.rank]].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        # Every process holds a slice of every row's logits, so it needs every row's gradient.
        return ctx.part.gather(ctx.rows.pad(grads[0])).flatten(0, 1), None, None


def as_slice(local: Tensor, part: Slice, mesh: DeviceMesh | None, *, dim: int = 0) -> Tensor:
    """A process's own classes as the DTensor that they are a part of; the tensor without a mesh."""
    if mesh is None:
        return local
    shape = list(local.shape)
    shape[dim] = part.num_classes
    # Said explicitly, since slices of unequal length can't tell the whole; nothing is sent.
    stride = torch.empty(shape, device="meta").stride()
    where = [Shard(dim)]
    return DTensor.from_local(
        local, mesh, where, run_check=False, shape=torch.Size(shape), stride=stride
    )


def local(tensor: Tensor) -> Tensor:
    """This process's part of a DTensor, differentiable; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _slices(tensor: DTensor) -> tuple[distributed.ProcessGroup, int, list[Slice], list[int]]:
    """The group, this process's rank in it, and of each process the slice and the global rank."""
    group, rank = tensor.device_mesh.get_group(), tensor.device_mesh.get_local_rank()
    size = tensor.device_mesh.size()
    parts = [Slice.cut(tensor.shape[0], rank=n, size=size) for n in range(size)]
    return group, rank, parts, [distributed.get_global_rank(group, n) for n in range(size)]


def gather_slices(tensor: Tensor) -> Tensor | None:
    """The whole of a tensor in slices of classes, on the CPU of the mesh's first process.

    One slice after the other is sent, so no device ever holds more than two. Every process of the
    mesh must call this.

    Args:
        tensor: a DTensor, sharded along dimension 0 of a one-dimensional mesh, or a plain tensor.

    Returns:
        A copy on the CPU; None on the other processes of the mesh.

    Examples:
        >>> gather_slices(torch.ones(2))
        tensor([1., 1.])
    """
    if not isinstance(tensor, DTensor):
        return tensor.detach().to("cpu", copy=True)
    own = local(tensor.detach()).contiguous()
    group, rank, parts, places = _slices(tensor)
    whole = torch.empty(tensor.shape, dtype=tensor.dtype) if rank == 0 else None
    for part, place in zip(parts, places, strict=True):
        if part.width == 0:
            continue
        values = own if part.rank == rank else own.new_empty((part.width, *own.shape[1:]))
        distributed.broadcast(values, src=place, group=group)
        if whole is not None:
            whole[part.start : part.stop] = values.cpu()
    return whole


def scatter_slices(tensor: Tensor, whole: Tensor | None) -> None:
    """Fill a tensor in slices of classes from the whole, the reverse of `gather_slices`.

    Args:
        tensor: a DTensor, sharded along dimension 0 of a one-dimensional mesh.
        whole: of the same shape, on any device; None on the processes but the mesh's first.
    """
    assert isinstance(tensor, DTensor)
    own = local(tensor.detach())
    group, rank, parts, places = _slices(tensor)
    for part, place in zip(parts, places, strict=True):
        if part.width == 0 or rank not in (0, part.rank):
            continue
        if rank != 0:
            values = own.new_empty(own.shape)
            distributed.recv(values, src=places[0], group=group)
        else:
            assert whole is not None
            values = whole[part.start : part.stop].to(own.device, own.dtype).contiguous()
        if rank == part.rank:
            own.copy_(values)
        else:
            distributed.send(values, dst=place, group=group)


def full_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """A module's state under the names and in the shapes of the unsharded one, on the CPU.

    Args:
        module: any, with sharded heads somewhere in it. Every process of the mesh must call this.

    Returns:
        Whole tensors on the mesh's first process, fit for safetensors and for `load_state_dict`
        of a module with any number of slices or none; on the others, what is not in slices.

    Examples:
        >>> sorted(full_state_dict(nn.Sequential(nn.Linear(2, 3))))
        ['0.bias', '0.weight']
    """
    state = {name: gather_slices(value) for name, value in module.state_dict().items()}
    return {name: value for name, value in state.items() if value is not None}


def gather_all(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors without slices, on the mesh's first process; the others keep only what is whole."""
    found = {
        name: gather_slices(value) if isinstance(value, DTensor) else value
        for name, value in tensors.items()
    }
    return {name: value for name, value in found.items() if value is not None}
