"""What an epoch of a run will do, decided before it starts and on the CPU.

A plan holds the order of the examples, what happens to the image of each, and the learning rate
of every step. It depends on the run's seed, its recipe and the epoch, so a resumed run, a
neighbour in a cohort or another device can't change it; a training step only looks things up.
Everything about images comes from the recipe's `image_seed` where it has one: runs that share it
see the same images, whatever else differs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial

from longtail import _checks

_checks.require("torch", extra="torch", caller=__name__)

import torch
from torch import Tensor

from longtail._checks import InputError, IntArray
from longtail.data.samplers import ClassSampler
from longtail.priors import ClassPrior
from longtail.train.batches import ImagePlan, plan_images
from longtail.train.methods import Method
from longtail.train.recipe import Recipe, learning_rate


def stream_seed(seed: int, purpose: str, index: int = 0) -> int:
    """A seed for one purpose of one run, unrelated to those of other purposes and indices.

    Examples:
        >>> stream_seed(0, "order", 1) != stream_seed(0, "order", 2)
        True
    """
    digest = hashlib.sha256(f"{seed}/{purpose}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1  # torch takes 63 bits


@dataclass(frozen=True, kw_only=True)
class EpochPlan(ImagePlan):
    """One epoch of one run, as tensors on the CPU: its images, and the following.

    Attributes:
        rates: the learning rate of each step, float32, shape (steps,).
        weights: class weights of the loss, float32, shape (num_classes,); ones where a method
            has none.
    """

    rates: Tensor
    weights: Tensor


class Planner:
    """Makes a run's plans.

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
        self.batch_sizes = self._batch_sizes()

    @property
    def stream(self) -> tuple[object, ...]:
        """Runs of one data set for which this is equal see the same images in the same order."""
        kept = hashlib.sha256(self.kept.numpy().tobytes()).hexdigest()
        return self.image_seed, self.method.sampling, kept, self.recipe.image_values

    def _batch_sizes(self) -> list[int]:
        positions, size = len(self.sampler), self.recipe.batch_size
        full, rest = divmod(positions, size)
        sizes = [size] * full + ([rest] if rest and not self.recipe.drop_last else [])
        if not sizes:
            raise InputError(
                f"train: an epoch has {positions} examples, fewer than one batch of {size}, and "
                f"the recipe {self.recipe.name!r} drops the last, smaller batch; override "
                f"batch_size."
            )
        return sizes

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of one epoch, counted from 0."""
        steps, positions = len(self.batch_sizes), sum(self.batch_sizes)
        order = torch.from_numpy(self.sampler.indices(epoch)[:positions])
        images = plan_images(
            self.recipe,
            self.kept[order],
            kept=self.kept,
            labels=self.labels,
            draw=partial(self._draw, epoch),
        )
        rates = [
            learning_rate(self.recipe, epoch * steps + number, steps) for number in range(steps)
        ]
        weights = self.method.class_weights(self.prior, epoch, self.recipe.epochs)
        return EpochPlan(
            **vars(images),
            rates=torch.tensor(rates, dtype=torch.float32),
            weights=torch.ones(self.prior.num_classes)
            if weights is None
            else torch.as_tensor(weights, dtype=torch.float32),
        )

    def _draw(self, epoch: int, purpose: str) -> torch.Generator:
        """The random numbers of one purpose of an epoch's images."""
        return torch.Generator().manual_seed(stream_seed(self.image_seed, purpose, epoch))
