"""What an epoch of a run will do, decided before it starts and on the CPU.

A plan holds the order of the examples, how each is cropped and flipped, and the learning rate
of every step. It depends on the run's seed, its recipe and the epoch, so a resumed run, a
neighbour in a cohort or another device can't change it; a training step only looks things up.
Everything about images comes from the recipe's `image_seed` where it has one: runs that share it
see the same images, whatever else differs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail._checks import InputError, IntArray
from longtail.data.samplers import ClassSampler
from longtail.priors import ClassPrior
from longtail.train.augment import plan_crop_flip
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


@dataclass(frozen=True)
class EpochPlan:
    """One epoch of one run, as tensors on the CPU.

    Attributes:
        rows: which example stands at each position, shape (positions,).
        dy: how far down its crop begins, shape (positions,).
        dx: how far right, shape (positions,).
        flip: whether it is mirrored, shape (positions,).
        rates: the learning rate of each step, float32, shape (steps,).
        weights: class weights of the loss, float32, shape (num_classes,); ones where a method
            has none.
    """

    rows: Tensor
    dy: Tensor
    dx: Tensor
    flip: Tensor
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
        self.kept = torch.from_numpy(kept)
        self.sampler = ClassSampler(
            labels[kept],
            rule=method.sampling,
            num_classes=prior.num_classes,
            seed=stream_seed(self.image_seed, "order"),
        )
        self.batch_sizes = self._batch_sizes()

    @property
    def stream(self) -> tuple[object, ...]:
        """Runs of one recipe for which this is equal see the same images in the same order."""
        kept = hashlib.sha256(self.kept.numpy().tobytes()).hexdigest()
        return self.image_seed, self.method.sampling, kept

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
        generator = torch.Generator().manual_seed(stream_seed(self.image_seed, "crop", epoch))
        dy, dx, flip = plan_crop_flip(
            positions,
            padding=self.recipe.crop_padding,
            flip=self.recipe.flip,
            generator=generator,
        )
        rates = [
            learning_rate(self.recipe, epoch * steps + number, steps) for number in range(steps)
        ]
        weights = self.method.class_weights(self.prior, epoch, self.recipe.epochs)
        return EpochPlan(
            rows=self.kept[order],
            dy=dy,
            dx=dx,
            flip=flip,
            rates=torch.tensor(rates, dtype=torch.float32),
            weights=torch.ones(self.prior.num_classes)
            if weights is None
            else torch.as_tensor(weights, dtype=torch.float32),
        )
