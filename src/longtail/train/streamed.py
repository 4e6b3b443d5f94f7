"""One run on photographs that stay on disk, in one process or as one of several.

The global batch defines a step. Each process takes its share of it, in parts where the share is
larger than a micro-batch, and gradients add up to those of the mean over the global batch: sums
of losses are divided by the weight of the whole batch, whoever holds how much of it. Only batch
norm sees the parts.

Images come as bytes from worker processes (`data.streaming`), are copied to the device while it
works on the step before, and are normalised there. The last layer is whole in every process, with
a loss from all classes or from some that are drawn, or cut over the processes (`sharded`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from longtail import _checks, margins
from longtail._checks import InputError, IntArray
from longtail.data.lists import ListedImages
from longtail.data.photos import CenterCrop, RandomCrop
from longtail.data.streaming import evaluation_stream, planned_stream
from longtail.losses import EqualizedThresholdLoss, SampledSoftmaxLoss
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


class Part(NamedTuple):
    """Some images of a step on the device; `counts` is 0 where they only fill up, else 1."""

    images: Tensor  # uint8, shape (images, 3, size, size), channels last
    labels: Tensor
    counts: float


class PixelNetwork(nn.Module):
    """A network that normalises bytes on its device; its result are logits, or a sampled loss."""

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
        """Logits in float32, or the sum of the losses compared with the `sampled` classes."""
        images = normalize(pixels, mean=self.mean, std=self.std, pixel_range=255)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision != "float32"):
            features = self.model.features(images)  # type: ignore[operator]
        fc: Any = self.model.fc
        if self.loss is None:
            return cast(Tensor, fc(features.float()))
        loss = self.loss(features.float(), fc.weight, labels, bias=fc.bias, sampled=sampled)
        return cast(Tensor, loss)


class StreamedTraining:
    """A run whose images come from disk; it steps as `loop.Training` does.

    Attributes:
        losses: the mean loss of each step of the epoch; of the global batches once `mean_losses`
            was called, before that this process's part of them.
        skipped: images of the last epoch that were left out since they can't be read.
    """

    on_disk = True
    block = 1  # steps whose batches are made at once
    active, graphs = nullcontext, MappingProxyType[int, Any]({})

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
        self.sharded = recipe.classifier == "sharded"
        self.model = trunk = new_network(recipe, data, seed=planner.seed)
        if self.sharded:
            from longtail.train.sharded import shard, without_head

            shard(self.model, world, self.device)
            trunk = without_head(self.model)  # what a step calls is whole in every process
        else:
            self.model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if recipe.sampled_classes:
            # Classes are drawn once for each global batch, whatever a process's share and parts.
            self.sampled = SampledSoftmaxLoss(
                planner.prior,
                num_sampled=recipe.sampled_classes,
                margin=margins.by_name(
                    planner.method.loss, planner.prior, **planner.method.settings
                ),
                reduction="sum",
                generator=self.generator,
            ).to(self.device)
            self.sampled.class_weight = self.criterion.weight  # the tensor that an epoch's go into
        module = PixelNetwork(
            trunk, recipe, precision=precision, device=self.device, loss=self.sampled
        )
        self.optimizer = make_optimizer(self.model, recipe, self.device)
        self._averaged = world.average_gradients(module)
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
        self._copies = torch.cuda.Stream(self.device) if on_gpu else None  # type: ignore[no-untyped-call]
        self.plans: list[EpochPlan] = []
        self.epoch, self.at = -1, 0  # and the step that comes next
        self._parts: list[Part] = []
        self._waiting: list[Part] = []

    def load(self, epoch: int) -> None:
        """Get ready for an epoch, counted from 0, and start to read it."""
        self.epoch, self.plans = epoch, [self.planner.plan(epoch)]
        if self.criterion.weight is not None and self.plans[0].weights is not None:
            self.criterion.weight.copy_(self.plans[0].weights)
        self.generator.manual_seed(stream_seed(self.planner.seed, "loss", epoch))
        self.losses.zero_()
        self.model.train(not self.recipe.freeze_backbone)
        self._left_out = self.stream.skipped.total()
        self._read(epoch, self.plans[0].images.rows.numpy())
        self._waiting = self._fetch(0)

    def prepare(self, number: int) -> None:
        """Before step `number`: take what was fetched for it."""
        self.at, self._parts = number, self._waiting
        if self._copies is not None:
            here = torch.cuda.current_stream(self.device)
            here.wait_stream(self._copies)
            for part in self._parts:  # so that their memory is not reused while it is read
                part.images.record_stream(here)
                part.labels.record_stream(here)

    def step(self, size: int) -> None:
        """One step on this process's part of the next `size` examples."""
        self.optimizer.zero_grad(set_to_none=True)
        weight = torch.stack([self._weight(part) for part in self._parts]).sum()
        total = self.world.sum_(weight)
        drawn = None  # over the global batch
        if self.sampled is not None:
            drawn = self.sampled.draw()
        elif isinstance(self.criterion, EqualizedThresholdLoss):
            classes = self.data.num_classes
            drawn = self.criterion.draw(torch.empty(size, classes, device=self.device))
        for number, part in enumerate(self._parts):
            # Gradients stay here until the last part of a step has added its own.
            sent = self.world.count == 1 or number + 1 == len(self._parts)
            with nullcontext() if sent else self._averaged.no_sync():  # type: ignore[operator]
                loss = self._sum(part, number, drawn) / total
                # Times the processes, since gradients are averaged over them.
                (loss * self.world.count).backward()  # type: ignore[no-untyped-call]
            self.losses[self.at] += loss.detach()
        set_rate(self.optimizer, float(self.plans[0].rates[self.at]))
        self.optimizer.step()
        self._parts = []
        self._waiting = self._fetch(self.at + 1)  # while the device works

    def _sum(self, part: Part, number: int, drawn: Tensor | None) -> Tensor:
        """This process's part of the sum of losses; those of all processes add up to the sum."""
        images, labels, counts = part
        size = self.batch_sizes[self.at]
        if self.sharded:  # each process knows the sum of all, and takes an equal share of it
            if not counts:
                labels = torch.full_like(labels, self.criterion.ignore_index)
            rows = None
            if self.how.on_error == "stop":  # how many each process has is known
                everyone = range(self.world.count)
                rows = [len(self._places(0, size, rank)[number]) for rank in everyone]
            fc: Any = self.model.fc
            whole = fc.loss(self.call(images), labels, self.criterion, rows=rows)
            return cast(Tensor, whole / self.world.count)
        if self.sampled is not None:
            return counts * cast(Tensor, self.call(images, labels, drawn))
        if drawn is not None:
            place = self.world.share(size).start
            place += sum(len(before.labels) for before in self._parts[:number])
            drawn = drawn[place : place + len(labels)]
        return counts * cast(Tensor, self.criterion(self.call(images), labels, dropped=drawn))

    def _weight(self, part: Part) -> Tensor:
        """The part's share of the mean's denominator, as torch has it: class weights count."""
        weight = self.criterion.weight
        of_each = torch.ones_like(part.labels) if weight is None else weight.gather(0, part.labels)
        return part.counts * of_each.double().sum()

    def _read(self, epoch: int, rows: IntArray) -> None:
        """Start to read an epoch, in pieces of each part of each step."""
        self._layout: list[list[int]] = []  # of each step the number of pieces of each part
        batches: list[tuple[IntArray, IntArray]] = []
        first = 0
        for size in self.batch_sizes:
            parts = self._places(first, size, self.world.rank)
            pieces = [np.array_split(part, -(-len(part) // _PIECE)) for part in parts]
            self._layout.append([len(of_part) for of_part in pieces])
            batches += [(rows[piece], piece) for of_part in pieces for piece in of_part]
            first += size
        self.stream.set_plan(epoch, batches)
        self._batches = iter(self.stream)

    def _places(self, first: int, size: int, rank: int) -> list[IntArray]:
        """The places in the epoch that a process takes of a batch, a micro-batch at a time."""
        mine = World(rank, self.world.count).share(size)
        places = first + np.arange(mine.start, mine.stop)
        # As many parts in every process as the largest share needs. A part without images looks
        # at the batch's first and gives it no weight, since every process must take part.
        largest = -(-size // self.world.count)
        parts = np.array_split(places, -(-largest // self.how.micro_batch))
        return [part if len(part) else np.array([first]) for part in parts]

    def _fetch(self, number: int) -> list[Part]:
        """The images of a step, on their way to the device; nothing after the last step."""
        if number >= len(self._layout):
            return []
        share, found = self.world.share(self.batch_sizes[number]), list[Part]()
        for at, count in enumerate(self._layout[number]):
            pieces = [next(self._batches) for _ in range(count)]
            with nullcontext() if self._copies is None else torch.cuda.stream(self._copies):
                images, labels = (
                    torch.cat([values.to(self.device, non_blocking=True) for values in column])
                    for column in list(zip(*pieces, strict=True))[:2]
                )
            # Images lie in the first parts.
            found.append(Part(images, labels, counts=float(at < share.stop - share.start)))
        return found

    def mean_losses(self) -> list[float]:
        """The mean loss of the epoch's examples; ends the epoch for all processes alike."""
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
        """Everything that training changes, by name, where it is."""
        found = training_state(self.model, self.optimizer)
        return {name: value.detach() for name, value in found.items()}

    def saved_state(self, member: int = 0) -> dict[str, Tensor]:
        """`state` as a checkpoint has it, on the first process; every process must ask."""
        return self._whole(self.state())

    def saved_weights(self, network: nn.Module) -> dict[str, Tensor]:
        """The weights as a run folder has them, likewise."""
        return self._whole(network.state_dict())

    def _whole(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if not self.sharded:
            return tensors
        from longtail.train.sharded_head import full_state_dict

        return full_state_dict(tensors)

    def load_state(self, member: int, tensors: Mapping[str, Tensor]) -> None:
        """Put a checkpoint's tensors in place; the first process has them, for everyone."""
        for name, value in self.state().items():
            if hasattr(value, "to_local"):  # a DTensor
                from longtail.train.sharded_head import scatter_slices

                scatter_slices(value, tensors.get(name))  # type: ignore[arg-type]
                continue
            if self.world.first:
                value.copy_(tensors[name])
            self.world.send_(value)

    def network(self, member: int = 0) -> nn.Module:
        """The network with its weights as they are now."""
        return self.model


def stream_logits(
    model: nn.Module,
    data: ListedImages,
    recipe: Recipe,
    *,
    world: World = ALONE,
    how: Streaming | None = None,
) -> NDArray[Any] | None:
    """The network's float32 logits on the centres of images, each computed in one process.

    They are in the data's order, on the first process; the others get None.
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
    """A network's outputs of this width for the centres of every `count`-th image from its rank on.

    Every process gets as many batches as the others, the last of which may be empty.
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
    """A network as it is judged: no statistics move, no gradients are kept, float32 is exact."""
    was_training = model.training
    model.eval()
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield
    model.train(was_training)
