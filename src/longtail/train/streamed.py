"""Training of one run on photographs that stay on disk, in one process or in several.

The global batch defines a step. Each process takes its share of it, in parts where the share is
larger than a micro-batch, and gradients add up to those of the mean over the global batch: sums
of losses are divided by the weight of the whole batch, whoever holds how much of it. Only batch
norm sees the parts.

Images come as bytes from worker processes (`data.streaming`) and are normalised on the device. The
last layer is whole in every process, with a loss from all classes or from some that are drawn, or
cut over the processes (`sharded`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from longtail import _checks, margins
from longtail._checks import InputError, IntArray
from longtail.data.lists import ListedImages
from longtail.data.photos import CenterCrop, RandomCrop
from longtail.data.streaming import Batch, evaluation_stream, planned_stream
from longtail.losses import EqualizedThresholdLoss, SampledSoftmaxLoss
from longtail.losses.pairwise import counted
from longtail.train.augment import normalize
from longtail.train.distributed import ALONE, World
from longtail.train.loop import new_network, training_state
from longtail.train.optimizers import make_optimizer, set_rate
from longtail.train.plan import EpochPlan, Planner, stream_seed
from longtail.train.recipe import Recipe

_PIECE = 64  # images a worker decodes at a time: few, so that an epoch begins soon
EVALUATED = 128  # images at a time where no gradients are kept

# Values of a recipe that do nothing to photographs from disk.
_IN_MEMORY = {"crop_padding", "crop_fill", "image_seed", "trivial_augment", "cutout", "cutmix"}
_IN_MEMORY |= {"mixup", "mixup_alpha", "mix_partner", "sam_rho", "ema_decay", "distill_weight"}


@dataclass(frozen=True)
class Streaming:
    """Settings of speed and memory for images from disk; they do not change what is computed.

    Attributes:
        workers: processes that decode, for each training process; its share of the cores if None.
        prefetch: batches of 64 images that each worker keeps ready.
        on_error: what an image that can't be decoded does in training: ``stop``, with its name,
            or ``skip``, which leaves it out and counts it. Evaluation always stops: errors on
            fewer examples would be those of another test set.
        micro_batch: images that go through the network at once; a larger share of the batch is
            taken in parts whose gradients add up. Batch norm sees the parts.
        compile: `torch.compile` the network; on a GPU only if None.
    """

    workers: int | None = None
    prefetch: int = 4
    on_error: str = "stop"
    micro_batch: int = 256
    compile: bool | None = None

    def __post_init__(self) -> None:
        if self.workers is not None:
            _checks.whole(self.workers, name="workers", at_least=0)
        _checks.whole(self.prefetch, name="prefetch")
        _checks.whole(self.micro_batch, name="micro_batch")
        _checks.choice(self.on_error, ("stop", "skip"), name="on_error")


def check_recipe(recipe: Recipe) -> None:
    """Refuse a recipe that is not for photographs on disk, or has values that do nothing there."""
    if not recipe.image_size:
        raise InputError(
            f"recipe {recipe.name!r} is for images of one size in memory; photographs on disk need "
            f"an `image_size` to be cropped to: take the recipe imagenet-lt or inaturalist, or "
            f"override image_size (and crop_padding=0)."
        )
    for entry in fields(Recipe):
        if entry.name in _IN_MEMORY and getattr(recipe, entry.name) != entry.default:
            raise InputError(
                f"recipe {recipe.name!r}: `{entry.name}` is for images in memory and would do "
                f"nothing to photographs from disk; leave it at {entry.default!r}."
            )


def micro_batches(first: int, size: int, world: World, micro_batch: int) -> list[IntArray]:
    """Return the places in the epoch that a process takes of a batch, a micro-batch at a time.

    Every process has as many parts as the largest share needs, since all must take part in each.
    One that has no images left looks at the batch's first, and does not count it.

    Args:
        first: the batch's first place.
        size: of the global batch.
        world: the process among the others.
        micro_batch: the most places at a time.

    Examples:
        >>> [part.tolist() for part in micro_batches(10, 3, World(rank=0, count=2), 1)]
        [[10], [10]]
        >>> [part.tolist() for part in micro_batches(10, 3, World(rank=1, count=2), 1)]
        [[11], [12]]
    """
    mine, largest = world.share(size), -(-size // world.count)
    places = first + np.arange(mine.start, mine.stop)
    parts = np.array_split(places, -(-largest // micro_batch))
    return [part if len(part) else np.array([first]) for part in parts]


class PixelNetwork(nn.Module):
    """Network that takes bytes, which it normalises; it returns logits, or a sampled loss."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        *,
        device: torch.device,
        precision: str = "float32",
        loss: SampledSoftmaxLoss | None = None,
    ) -> None:
        super().__init__()
        self.model, self.device, self.precision, self.loss = model, device, precision, loss
        for name in ("mean", "std"):
            values = torch.tensor(getattr(recipe, name), device=device)
            self.register_buffer(name, values, persistent=False)

    def forward(
        self, pixels: Tensor, labels: Tensor | None = None, sampled: Tensor | None = None
    ) -> Tensor:
        """Return logits in float32, or the sum of the losses against the `sampled` classes."""
        images = normalize(pixels, mean=self.mean, std=self.std, pixel_range=255)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision != "float32"):
            features = self.model.features(images)  # type: ignore[operator]
        fc: Any = self.model.fc
        if self.loss is None:
            return cast(Tensor, fc(features.float()))
        loss = self.loss(features.float(), fc.weight, labels, bias=fc.bias, sampled=sampled)
        return cast(Tensor, loss)


def _read_steps(
    arriving: Iterator[Batch],
    steps: list[list[list[IntArray]]],
    counts: list[int],
    device: torch.device,
    ignore_index: int,
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield images and labels of each part of each step, on the device.

    `counts` are a process's images in each step. It holds nothing of the training, so that the
    worker processes end with the training and not when a cycle is found.
    """
    for step, count in zip(steps, counts, strict=True):
        found = []
        for number, part in enumerate(step):
            images, labels = (
                torch.cat([values.to(device, non_blocking=True) for values in column])
                for column in list(zip(*islice(arriving, len(part)), strict=True))[:2]
            )
            if number >= count:  # the first parts have the images
                labels.fill_(ignore_index)
            found.append((images, labels))
        yield found


class StreamedTraining:
    """Run whose images come from disk; it steps as `loop.Training` does.

    Attributes:
        losses: the mean loss of each step of the epoch; of the global batches once `mean_losses`
            was called, before that this process's part of them.
        skipped: images of the last epoch that were left out since they can't be read.
    """

    block = 1  # steps whose batches are made at once
    active, graphs = nullcontext, None  # set by `cuda_graphs.place`

    def __init__(
        self,
        planner: Planner,
        data: ListedImages,
        *,
        precision: str = "float32",
        device: torch.device | str = "cpu",
        world: World = ALONE,
        how: Streaming | None = None,
    ) -> None:
        recipe = self.recipe = planner.recipe
        self.planner, self.data, self.world, self.how = planner, data, world, how or Streaming()
        self.device, self.batch_sizes, self.skipped = torch.device(device), planner.batch_sizes, 0
        on_gpu = self.device.type == "cuda"
        self.criterion = planner.method.criterion(planner.prior).to(self.device)
        self.generator = torch.Generator(self.device)
        if isinstance(self.criterion, EqualizedThresholdLoss):
            self.criterion.generator = self.generator
        self.criterion.reduction = "sum"
        self.sampled: SampledSoftmaxLoss | None = None
        if recipe.sampled_classes:
            # Classes are drawn once for each global batch, whatever a process's share and parts.
            method, prior = planner.method, planner.prior
            self.sampled = SampledSoftmaxLoss(
                prior,
                num_sampled=recipe.sampled_classes,
                margin=margins.by_name(method.loss, prior, **method.settings),
                reduction="sum",
                generator=self.generator,
            ).to(self.device)
            self.sampled.class_weight = self.criterion.weight  # the tensor that an epoch's go into
        self.sharded = recipe.classifier == "sharded"
        self.model = trunk = new_network(recipe, data, seed=planner.seed)
        if self.sharded:
            from longtail.train.sharded import shard, without_head

            shard(self.model, world, self.device)
            trunk = without_head(self.model)  # what a step calls is whole in every process
        else:
            self.model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = make_optimizer(self.model, recipe, self.device)
        self._averaged = world.average_gradients(
            PixelNetwork(trunk, recipe, precision=precision, device=self.device, loss=self.sampled)
        )
        self.call: Any = self._averaged
        if on_gpu if self.how.compile is None else self.how.compile:
            torch.compiler.reset()  # after some networks in one process torch would stop compiling
            self.call = torch.compile(self._averaged, dynamic=False)
        self.stream = planned_stream(
            data,
            view=RandomCrop(recipe.image_size, flip=0.5 if recipe.flip else 0.0),
            seed=stream_seed(planner.seed, "crop"),
            workers=self.how.workers,
            prefetch=self.how.prefetch,
            on_error=self.how.on_error,
            pin_memory=on_gpu,
        )
        self.losses = torch.zeros(len(self.batch_sizes), dtype=torch.float64, device=self.device)
        self.plans: list[EpochPlan] = []
        self.at = 0  # the step that comes next
        self._parts: list[tuple[Tensor, Tensor]] = []  # images and labels of this step

    def load(self, epoch: int) -> None:
        """Get ready for an epoch, counted from 0; its images are read from the first step on."""
        self.plans = [self.planner.plan(epoch)]
        if self.criterion.weight is not None and self.plans[0].weights is not None:
            self.criterion.weight.copy_(self.plans[0].weights)
        self.generator.manual_seed(stream_seed(self.planner.seed, "loss", epoch))
        self.losses.zero_()
        self.model.train(not self.recipe.freeze_backbone)
        self._left_out = self.stream.skipped.total()
        self._steps = self._read(epoch)

    def _read(self, epoch: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Start to read an epoch; see `_read_steps`."""
        rows, first = self.plans[0].images.rows.numpy(), 0
        steps: list[list[list[IntArray]]] = []  # the pieces of each part of each step
        for size in self.batch_sizes:
            parts = micro_batches(first, size, self.world, self.how.micro_batch)
            steps.append([np.array_split(part, -(-len(part) // _PIECE)) for part in parts])
            first += size
        pieces = [piece for step in steps for part in step for piece in part]
        self.stream.set_plan(epoch, [(rows[piece], piece) for piece in pieces])
        shares = [self.world.share(size) for size in self.batch_sizes]
        counts = [share.stop - share.start for share in shares]
        return _read_steps(
            iter(self.stream), steps, counts, self.device, self.criterion.ignore_index
        )

    def prepare(self, number: int) -> None:
        """Take the images of step `number`; a GPU copies them after the step before."""
        self.at, self._parts = number, next(self._steps)

    def step(self, size: int) -> None:
        """Take a step on this process's part of the next `size` examples."""
        self.optimizer.zero_grad(set_to_none=True)
        criterion, world = self.criterion, self.world
        # The mean's denominator, as torch has it: class weights count.
        weights = [counted(y, criterion.weight, criterion.ignore_index) for _, y in self._parts]
        total = world.sum_(torch.stack([weight.double().sum() for weight in weights]).sum())
        drawn = None  # over the global batch
        if self.sampled is not None:
            drawn = self.sampled.draw()
        elif isinstance(criterion, EqualizedThresholdLoss):
            drawn = criterion.draw(torch.empty(size, self.data.num_classes, device=self.device))
        for number in range(len(self._parts)):
            # Gradients stay here until the last part of a step has added its own.
            sent = world.count == 1 or number + 1 == len(self._parts)
            with nullcontext() if sent else self._averaged.no_sync():  # type: ignore[operator]
                loss = self._sum(number, size, drawn) / total
                # Times the processes, since gradients are averaged over them.
                (loss * world.count).backward()  # type: ignore[no-untyped-call]
            self.losses[self.at] += loss.detach()
        set_rate(self.optimizer, float(self.plans[0].rates[self.at]))
        self.optimizer.step()
        self._parts = []

    def _sum(self, number: int, size: int, drawn: Tensor | None) -> Tensor:
        """Return a part's losses, summed; those of all parts and processes add up to the whole."""
        (images, labels), world = self._parts[number], self.world
        if self.sharded:  # each process knows the sum of all, and takes an equal share of it
            rows = None
            if self.how.on_error == "stop":  # how many each process has is known
                every = [World(rank, world.count) for rank in range(world.count)]
                taken = [micro_batches(0, size, one, self.how.micro_batch) for one in every]
                rows = [len(parts[number]) for parts in taken]
            fc: Any = self.model.fc
            return cast(
                Tensor, fc.loss(self.call(images), labels, self.criterion, rows=rows) / world.count
            )
        if self.sampled is not None:
            return cast(Tensor, self.call(images, labels, drawn))
        if drawn is not None:
            place = world.share(size).start + sum(len(y) for _, y in self._parts[:number])
            drawn = drawn[place : place + len(labels)]
        return cast(Tensor, self.criterion(self.call(images), labels, dropped=drawn))

    def mean_losses(self) -> list[float]:
        """Return the mean loss of the epoch's examples; ends the epoch for all processes alike."""
        self.world.sum_(self.losses)
        if self.world.count > 1:
            # The processes' running statistics of batch norm become their mean after every epoch,
            # so that a run which goes on has what a resumed one has.
            for buffer in self.model.buffers():
                if buffer.is_floating_point():
                    self.world.sum_(buffer).div_(self.world.count)
        left_out = torch.tensor(self.stream.skipped.total() - self._left_out, device=self.device)
        self.skipped = int(self.world.sum_(left_out))
        sizes = torch.tensor(self.batch_sizes, dtype=torch.float64, device=self.device)
        return [float((self.losses * sizes).sum() / sizes.sum())]

    def state(self, member: int = 0) -> dict[str, Tensor]:
        """Return everything that training changes, by name, where it is."""
        found = training_state(self.model, self.optimizer)
        return {name: value.detach() for name, value in found.items()}

    def saved_state(self, member: int = 0) -> dict[str, Tensor]:
        """Return `state` as a checkpoint has it, on the first process; every process must call."""
        return self._whole(self.state())

    def saved_weights(self, network: nn.Module) -> dict[str, Tensor]:
        """Return the weights as a run folder has them, likewise."""
        return self._whole(network.state_dict())

    def _whole(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if not self.sharded:
            return tensors
        from longtail.train.sharded_head import full_state_dict

        return full_state_dict(tensors)

    def load_state(self, member: int, tensors: Mapping[str, Tensor]) -> None:
        """Load a checkpoint's tensors, which the first process has, in every process."""
        for name, value in self.state().items():
            if hasattr(value, "to_local"):  # a DTensor
                from longtail.train.sharded_head import scatter_slices

                scatter_slices(value, tensors.get(name))  # type: ignore[arg-type]
                continue
            if self.world.rank == 0:
                value.copy_(tensors[name])
            self.world.send_(value)

    def network(self, member: int = 0) -> nn.Module:
        """Return the network with its weights as they are now."""
        return self.model


def stream_logits(
    model: nn.Module,
    data: ListedImages,
    recipe: Recipe,
    *,
    world: World = ALONE,
    how: Streaming | None = None,
) -> NDArray[Any] | None:
    """Return the float32 logits of images, in the data's order, on the first process; else None.

    Each image is cropped to its centre, and computed in one of the processes.
    """
    with judging(model):
        rows = torch.cat([*stream_outputs(model, data, recipe, data.num_classes, world, how)])
    return world.gather(rows, len(data))


def stream_outputs(
    model: nn.Module,
    data: ListedImages,
    recipe: Recipe,
    width: int,
    world: World,
    how: Streaming | None,
) -> Iterator[Tensor]:
    """Yield a network's outputs for every `count`-th image from this process's rank on.

    Every process gets as many batches as the others, the last of which may be empty: of shape
    (0, width).
    """
    how, device = how or Streaming(), next(model.parameters()).device
    network = PixelNetwork(model, recipe, device=device)
    stream = evaluation_stream(
        data,
        batch_size=EVALUATED,
        view=CenterCrop(recipe.image_size, recipe.evaluation_resize),
        num_replicas=world.count,
        rank=world.rank,
        workers=how.workers,
        prefetch=how.prefetch,
        pin_memory=device.type == "cuda",
    )
    batches = iter(stream)
    for _ in range(-(-len(data) // (world.count * EVALUATED))):
        batch = next(batches, None)
        if batch is None:
            yield torch.zeros(0, width, device=device)
        else:
            yield network(batch.images.to(device, non_blocking=True))


@contextmanager
def judging(model: nn.Module) -> Iterator[None]:
    """Keep statistics as they are and float32 exact, without gradients, to judge a network."""
    was_training = model.training
    model.eval()
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield
    model.train(was_training)
