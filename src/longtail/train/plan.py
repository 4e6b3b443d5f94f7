"""Plans of epochs: the order of the examples and everything random about their images.

A plan is drawn on the CPU before an epoch starts and depends on the run's seed, its recipe and
the epoch, so a resumed run, a neighbour in a cohort or another device can't change it; a training
step only looks things up. Everything about images comes from the recipe's `image_seed` where it
has one: runs that share it see the same images, whatever else differs. Each ingredient has random
numbers of its own, so adding or leaving out one changes nothing about the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from longtail._checks import InputError, IntArray
from longtail.data.samplers import ClassSampler
from longtail.priors import ClassPrior
from longtail.train.augment import plan_crop_flip
from longtail.train.methods import Method
from longtail.train.mixing import MixPlan, draw_partners, plan_cutout, plan_mixing
from longtail.train.recipe import OF_IMAGES, Recipe, learning_rate
from longtail.train.trivial import plan_trivial_augment


def stream_seed(seed: int, purpose: str, index: int = 0) -> int:
    """A seed for one purpose of one run, unrelated to those of other purposes and indices.

    Examples:
        >>> stream_seed(0, "order", 1) != stream_seed(0, "order", 2)
        True
    """
    digest = hashlib.sha256(f"{seed}/{purpose}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1  # torch takes 63 bits


class ImageDraws(NamedTuple):
    """Random draws for a sequence of images, as tensors on the CPU.

    Attributes:
        rows: the example of the training set at each position, shape (positions,).
        dy: first row of its crop, likewise, as what follows; None without crops and flips.
        dx: first column.
        flip: 1 if it is mirrored.
        operation: of TrivialAugment, None without.
        strength: of the operation.
        hole: centre of Cutout's square, shape (positions, 2), or None without.
    """

    rows: Tensor
    dy: Tensor | None = None
    dx: Tensor | None = None
    flip: Tensor | None = None
    operation: Tensor | None = None
    strength: Tensor | None = None
    hole: Tensor | None = None


class EpochPlan(NamedTuple):
    """One epoch of one run.

    Attributes:
        images: in the order of training.
        partners: what is mixed into each of them, None without mixing.
        mixing: how; an image whose `share` is 1 stays as it is.
        rates: learning rate of each step, float32, shape (steps,).
        weights: class weights of the loss, float32, shape (num_classes,); ones where a method
            has none.
    """

    images: ImageDraws
    partners: ImageDraws | None
    mixing: MixPlan | None
    rates: Tensor
    weights: Tensor


_Draws = TypeVar("_Draws", ImageDraws, MixPlan)


def pick(draws: _Draws, index: slice | Tensor) -> _Draws:
    """The draws of some images."""
    parts: Any = (None if part is None else part[index] for part in draws)
    return type(draws)(*parts)


class Planner:
    """Draws a run's plans.

    Args:
        recipe: how the run trains.
        method: what it trains with.
        labels: of the whole training set, shape (examples,).
        kept: which examples the run trains on, shape (kept,).
        prior: of those.
        seed: of the run.

    Attributes:
        batch_sizes: how many examples each step of an epoch takes.
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
        ways = [getattr(self.recipe, key) for key in OF_IMAGES]
        return self.image_seed, self.method.sampling, kept, *ways

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of one epoch, counted from 0."""
        recipe, steps = self.recipe, len(self.batch_sizes)

        def draw(purpose: str) -> torch.Generator:
            return torch.Generator().manual_seed(stream_seed(self.image_seed, purpose, epoch))

        order = torch.from_numpy(self.sampler.indices(epoch)[: sum(self.batch_sizes)])
        partners, mixing = None, None
        if recipe.cutmix + recipe.mixup > 0:
            others = draw_partners(
                self.labels, len(order), rule=recipe.mix_partner, generator=draw("partners")
            )
            partners = _draw_images(recipe, self.kept[others], draw, "partners' ")
            mixing = plan_mixing(
                len(order),
                cutmix=recipe.cutmix,
                mixup=recipe.mixup,
                mixup_alpha=recipe.mixup_alpha,
                generator=draw("mixing"),
            )
        rates = [learning_rate(recipe, epoch * steps + number, steps) for number in range(steps)]
        weights = self.method.class_weights(self.prior, epoch, recipe.epochs)
        return EpochPlan(
            images=_draw_images(recipe, self.kept[order], draw, ""),
            partners=partners,
            mixing=mixing,
            rates=torch.tensor(rates, dtype=torch.float32),
            weights=torch.ones(self.prior.num_classes)
            if weights is None
            else torch.as_tensor(weights, dtype=torch.float32),
        )


def _draw_images(
    recipe: Recipe, rows: Tensor, draw: Callable[[str], torch.Generator], prefix: str
) -> ImageDraws:
    """Draw what happens to each image by itself."""
    found: dict[str, Tensor] = {}
    if recipe.crop_padding or recipe.flip:
        found["dy"], found["dx"], found["flip"] = plan_crop_flip(
            len(rows),
            padding=recipe.crop_padding,
            flip=recipe.flip,
            generator=draw(prefix + "crop"),
        )
    if recipe.trivial_augment:
        generator = draw(prefix + "trivial-augment")
        found["operation"], found["strength"] = plan_trivial_augment(len(rows), generator=generator)
    if recipe.cutout:
        found["hole"] = plan_cutout(len(rows), generator=draw(prefix + "cutout"))
    return ImageDraws(rows, **found)
