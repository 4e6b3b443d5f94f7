"""Plans of epochs: the order of the examples and everything random about their images.

A plan is drawn on the CPU before an epoch starts and depends on the run's seed, its recipe and
the epoch, so a resumed run, a neighbour in a cohort or another device can't change it; a training
step only looks things up. Everything about images comes from the recipe's `image_seed` where it
has one: runs that share it see the same images, whatever else differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import accumulate
from typing import Any

from longtail import _checks
from longtail._checks import InputError, IntArray

_checks.require("torch", extra="torch")

import torch
from torch import Tensor

from longtail.data.samplers import ClassSampler
from longtail.priors import ClassPrior
from longtail.train.augment import plan_crop_flip
from longtail.train.methods import Method
from longtail.train.mixing import MixPlan, draw_partners, plan_cutout, plan_mixing
from longtail.train.recipe import Recipe, learning_rate
from longtail.train.trivial import plan_trivial_augment


def stream_seed(seed: int, purpose: str, index: int = 0) -> int:
    """A seed for one purpose of one run, unrelated to those of other purposes and indices.

    Examples:
        >>> stream_seed(0, "order", 1) != stream_seed(0, "order", 2)
        True
    """
    digest = hashlib.sha256(f"{seed}/{purpose}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1  # torch takes 63 bits


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """Random draws for a sequence of images, as tensors on the CPU.

    Attributes:
        rows: the example of the training set at each position, shape (positions,).
        dy: first row of its crop, shape (positions,).
        dx: first column, likewise.
        flip: 1 if it is mirrored, likewise.
        operation: of TrivialAugment, shape (positions,), or None without.
        strength: of the operation, likewise.
        hole: centre of Cutout's square, shape (positions, 2), or None without.
        mixed: positions of the images that have a partner, ascending; None without mixing.
        mixing: how each of those is mixed.
        partners: the images that are mixed in, one for each of those.
    """

    rows: Tensor
    dy: Tensor
    dx: Tensor
    flip: Tensor
    operation: Tensor | None = None
    strength: Tensor | None = None
    hole: Tensor | None = None
    mixed: Tensor | None = None
    mixing: MixPlan | None = None
    partners: ImagePlan | None = None

    def take(self, index: slice | Tensor) -> dict[str, Any]:
        """The draws of some images by themselves, without their partners."""
        values = ((name, getattr(self, name)) for name in _OWN)
        return {name: None if value is None else value[index] for name, value in values}

    def part(self, first: int, end: int) -> ImagePlan:
        """The plan of the positions from `first` to `end`, without copying."""
        own = self.take(slice(first, end))
        if self.mixed is None or self.mixing is None or self.partners is None:
            return ImagePlan(**own)
        low, high = torch.searchsorted(self.mixed, torch.tensor([first, end])).tolist()
        return ImagePlan(
            **own,
            mixed=self.mixed[low:high] - first,
            mixing=self.mixing.take(slice(low, high)),
            partners=self.partners.part(low, high),
        )

    @staticmethod
    def join(plans: Sequence[ImagePlan]) -> ImagePlan:
        """Plans of one recipe, one after the other."""
        if len(plans) == 1:
            return plans[0]
        joined: dict[str, Any] = {}
        for name in (field.name for field in fields(ImagePlan)):
            parts = [getattr(plan, name) for plan in plans]
            if name == "mixed" and parts[0] is not None:
                starts = accumulate((len(plan.rows) for plan in plans[:-1]), initial=0)
                parts = [part + start for part, start in zip(parts, starts, strict=True)]
            if isinstance(parts[0], Tensor):
                joined[name] = torch.cat(parts)
            elif isinstance(parts[0], MixPlan):
                joined[name] = MixPlan(*(torch.cat(part) for part in zip(*parts, strict=True)))
            elif isinstance(parts[0], ImagePlan):
                joined[name] = ImagePlan.join(parts)
        return ImagePlan(**joined)


_OWN = ("rows", "dy", "dx", "flip", "operation", "strength", "hole")


@dataclass(frozen=True, kw_only=True)
class EpochPlan(ImagePlan):
    """One epoch of one run: its images, and the following.

    Attributes:
        rates: learning rate of each step, float32, shape (steps,).
        weights: class weights of the loss, float32, shape (num_classes,); ones where a method
            has none.
    """

    rates: Tensor
    weights: Tensor


class Planner:
    """Draws a run's plans.

    Args:
        recipe: how the run trains.
        method: what it trains with.
        labels: of the whole training set, shape (examples,).
        kept: which examples the run trains on, shape (kept,).
        prior: of those.
        seed: of the run.
    """

    def __init__(
        self,
        recipe: Recipe,
        method: Method,
        labels: IntArray,
        kept: IntArray,
        prior: ClassPrior,
        *,
        seed: int,
    ) -> None:
        self.recipe, self.method, self.prior, self.seed = recipe, method, prior, seed
        self.image_seed = seed if recipe.image_seed is None else recipe.image_seed
        self.kept, self.labels = torch.from_numpy(kept), labels[kept]
        self.sampler = ClassSampler(
            self.labels,
            rule=method.sampling,
            num_classes=prior.num_classes,
            seed=stream_seed(self.image_seed, "order"),
        )
        full, rest = divmod(len(self.sampler), recipe.batch_size)
        self.batch_sizes = [recipe.batch_size] * full
        if rest and not recipe.drop_last:
            self.batch_sizes.append(rest)
        if not self.batch_sizes:
            raise InputError(
                f"train: an epoch has {rest} examples, fewer than one batch of "
                f"{recipe.batch_size}, and the recipe {recipe.name!r} drops the last, smaller "
                f"batch; override batch_size."
            )

    @property
    def image_stream(self) -> tuple[object, ...]:
        """Equal for runs of one data set that see the same images in the same order."""
        kept = hashlib.sha256(self.kept.numpy().tobytes()).hexdigest()
        return self.image_seed, self.method.sampling, kept, self.recipe.image_values

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of one epoch, counted from 0."""
        recipe, steps = self.recipe, len(self.batch_sizes)
        order = torch.from_numpy(self.sampler.indices(epoch)[: sum(self.batch_sizes)])
        images = plan_images(
            recipe,
            self.kept[order],
            kept=self.kept,
            labels=self.labels,
            draw=partial(_generator, self.image_seed, epoch),
        )
        rates = [learning_rate(recipe, epoch * steps + number, steps) for number in range(steps)]
        weights = self.method.class_weights(self.prior, epoch, recipe.epochs)
        return EpochPlan(
            **vars(images),
            rates=torch.tensor(rates, dtype=torch.float32),
            weights=torch.ones(self.prior.num_classes)
            if weights is None
            else torch.as_tensor(weights, dtype=torch.float32),
        )


def _generator(seed: int, epoch: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(stream_seed(seed, purpose, epoch))


def plan_images(
    recipe: Recipe,
    rows: Tensor,
    *,
    kept: Tensor,
    labels: IntArray,
    draw: Callable[[str], torch.Generator],
) -> ImagePlan:
    """Draw everything about the images of an epoch, each purpose from random numbers of its own.

    So an ingredient that is added or left out changes nothing about the others.

    Args:
        recipe: which ingredients there are.
        rows: the examples in their order, shape (positions,).
        kept: the examples that partners are drawn from, shape (kept,).
        labels: of those.
        draw: gives the random numbers of a purpose.
    """
    own = _plan_each(recipe, rows, draw, "")
    if recipe.cutmix + recipe.mixup == 0:
        return own
    others = draw_partners(labels, len(rows), rule=recipe.mix_partner, generator=draw("partners"))
    mixing = plan_mixing(
        len(rows),
        cutmix=recipe.cutmix,
        mixup=recipe.mixup,
        mixup_alpha=recipe.mixup_alpha,
        generator=draw("mixing"),
    )
    mixed = (mixing.share < 1).nonzero().squeeze(1)
    partners = _plan_each(recipe, kept[others], draw, "partners' ")
    return ImagePlan(
        **own.take(slice(None)),
        mixed=mixed,
        mixing=mixing.take(mixed),
        partners=ImagePlan(**partners.take(mixed)),
    )


def _plan_each(
    recipe: Recipe, rows: Tensor, draw: Callable[[str], torch.Generator], prefix: str
) -> ImagePlan:
    """Draw what happens to each image by itself."""
    count = len(rows)
    dy, dx, flip = plan_crop_flip(
        count, padding=recipe.crop_padding, flip=recipe.flip, generator=draw(prefix + "crop")
    )
    operation, strength, hole = None, None, None
    if recipe.trivial_augment:
        generator = draw(prefix + "trivial-augment")
        operation, strength = plan_trivial_augment(count, generator=generator)
    if recipe.cutout:
        hole = plan_cutout(count, generator=draw(prefix + "cutout"))
    return ImagePlan(
        rows=rows, dy=dy, dx=dx, flip=flip, operation=operation, strength=strength, hole=hole
    )
