"""Plans of epochs: the order of the examples and everything random about their images.

A plan is drawn on the CPU before an epoch starts and depends on the run's seed, its recipe and
the epoch, so a resumed run, a neighbour in a cohort or another device can't change it; a training
step only looks things up. Everything about images comes from the recipe's `image_seed` where it
has one: runs that share it see the same images, whatever else differs. Each ingredient has random
numbers of its own, so adding or leaving out one changes nothing about the others.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from longtail._checks import InputError, IntArray
from longtail.data.samplers import ClassSampler
from longtail.priors import ClassPrior
from longtail.train.augment import plan_crop_flip
from longtail.train.methods import Method
from longtail.train.mixing import MixPlan, draw_partners, plan_cutout, plan_mixing
from longtail.train.recipe import Recipe, learning_rate
from longtail.train.trivial import plan_trivial_augment


def stream_seed(seed: int, purpose: str, index: int = 0) -> int:
    """Return a seed for one purpose of one run, unrelated to those of others."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1  # torch takes 63 bits


class ImageDraws(NamedTuple):
    """Random draws for a sequence of images, on the CPU; None for what a recipe does not do."""

    rows: Tensor  # the example of the training set at each position, shape (positions,)
    dy: Tensor | None = None  # first row of its crop, likewise
    dx: Tensor | None = None  # first column
    flip: Tensor | None = None  # 1 if it is mirrored
    operation: Tensor | None = None  # of TrivialAugment
    strength: Tensor | None = None  # of the operation
    hole: Tensor | None = None  # centre of Cutout's square, shape (positions, 2)


class EpochPlan(NamedTuple):
    """One epoch of one run."""

    images: ImageDraws  # in the order of training
    partners: ImageDraws | None  # what is mixed into each of them, None without mixing
    mixing: MixPlan | None  # how; an image whose `share` is 1 stays as it is
    rates: Tensor  # learning rate of each step, float32, shape (steps,)
    weights: Tensor | None  # class weights of the loss, where the method has some


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
        full, rest = divmod(self.sampler.num_samples, recipe.batch_size)
        self.batch_sizes = [recipe.batch_size] * full
        if rest and not recipe.drop_last:
            self.batch_sizes.append(rest)
        if not self.batch_sizes:
            raise InputError(
                f"train: an epoch has {rest} examples, fewer than one batch of "
                f"{recipe.batch_size}, and the recipe {recipe.name!r} drops the last, smaller "
                f"batch; override batch_size."
            )

    def plan(self, epoch: int) -> EpochPlan:
        """Return the plan of one epoch, counted from 0."""
        recipe, steps = self.recipe, len(self.batch_sizes)

        def numbers(purpose: str) -> torch.Generator:
            return torch.Generator().manual_seed(stream_seed(self.image_seed, purpose, epoch))

        order = torch.from_numpy(self.sampler.indices(epoch)[: sum(self.batch_sizes)])
        count, rows, mixing = len(order), {"": self.kept[order]}, None
        if recipe.cutmix + recipe.mixup > 0:
            others = draw_partners(
                self.labels, count, rule=recipe.mix_partner, generator=numbers("partners")
            )
            rows["partners' "] = self.kept[others]
            mixing = plan_mixing(
                count,
                cutmix=recipe.cutmix,
                mixup=recipe.mixup,
                mixup_alpha=recipe.mixup_alpha,
                generator=numbers("mixing"),
            )
        drawn = []
        for whose, examples in rows.items():
            draws = ImageDraws(examples)
            if recipe.crop_padding or recipe.flip:
                dy, dx, flip = plan_crop_flip(
                    count,
                    padding=recipe.crop_padding,
                    flip=recipe.flip,
                    generator=numbers(whose + "crop"),
                )
                draws = draws._replace(dy=dy, dx=dx, flip=flip)
            if recipe.trivial_augment:
                generator = numbers(whose + "trivial-augment")
                operation, strength = plan_trivial_augment(count, generator=generator)
                draws = draws._replace(operation=operation, strength=strength)
            if recipe.cutout:
                hole = plan_cutout(count, generator=numbers(whose + "cutout"))
                draws = draws._replace(hole=hole)
            drawn.append(draws)
        rates = [learning_rate(recipe, epoch * steps + number, steps) for number in range(steps)]
        weights = None
        if self.method.drw:
            late = self.method.class_weights(self.prior, epoch, recipe.epochs)
            even = np.ones(self.prior.num_classes)
            weights = torch.tensor(even if late is None else late, dtype=torch.float32)
        return EpochPlan(
            images=drawn[0],
            partners=drawn[1] if drawn[1:] else None,
            mixing=mixing,
            rates=torch.tensor(rates, dtype=torch.float32),
            weights=weights,
        )
