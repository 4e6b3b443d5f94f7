"""What is refused before any training: specs that don't fit their images, or can't be trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from longtail import _checks

_checks.require("torch", extra="torch", caller=__name__)

import numpy as np
import torch
from torch import nn

from longtail._checks import InputError
from longtail.data.images import ImageSet
from longtail.data.lists import ListedImages
from longtail.data.profiles import PROFILES
from longtail.data.subsets import held_out_split
from longtail.priors import ClassPrior
from longtail.runs import RunSpec
from longtail.train.batches import refuse_images
from longtail.train.evaluation import Images, refuse_logits
from longtail.train.methods import THRESHOLD, Method
from longtail.train.plan import Planner
from longtail.train.recipe import Recipe
from longtail.train.streamed import check_recipe
from longtail.train.teachers import refuse_half
from longtail.train.team import image_shape_of, new_network

PRECISIONS = ("float32", "bfloat16")


def refuse_early(specs: Sequence[RunSpec], images: Images, *, processes: int = 1) -> None:
    """Refuse what would otherwise fail after other runs were trained.

    Args:
        specs: of the runs.
        images: the training set.
        processes: that will share it.
    """
    on_disk = isinstance(images, ListedImages)
    if isinstance(images, ImageSet) and images.role:
        raise InputError(
            f"train: these images are a {images.role} set, to be judged on; nothing is trained on "
            f"them."
        )
    if processes > 1 and not on_disk:
        raise InputError(
            f"train: {processes} processes can share images on disk only; images in memory train "
            f"many runs together in one process: start it without torchrun."
        )
    for spec in {dataclasses.replace(spec, seed=0): None for spec in specs}:
        recipe = Recipe.of(spec)
        if on_disk:
            check_recipe(recipe)
        elif recipe.image_size:
            raise InputError(
                f"recipe {recipe.name!r} crops photographs from disk to {recipe.image_size} "
                f"pixels, but {spec.dataset.name} is in memory, in one size; take another recipe, "
                f"or override image_size=0."
            )
        channels = image_shape_of(recipe, images)[0]
        precision_of(spec)
        refuse_half(spec, recipe)
        for key in ("mean", "std"):
            if len(getattr(recipe, key)) not in (1, channels):
                raise InputError(
                    f"recipe {recipe.name!r} is for images of {len(getattr(recipe, key))} channels "
                    f"(`{key}`), but {spec.dataset.name} has {channels}; change `mean` and `std` "
                    f"(--set), or take another recipe."
                )
        if recipe.classifier == "sharded" or recipe.sampled_classes:
            _refuse_of_many_classes(spec, recipe, images, processes)
        if isinstance(images, ImageSet):
            refuse_images(recipe, images)
        with torch.device("meta"):  # shapes without memory
            network = new_network(recipe, images, seed=0)
        method = Method.of(spec.method)
        method.criterion(images.prior)
        kept = np.arange(len(images))
        if spec.dataset.held_out:
            kept, held = held_out_split(
                images.labels,
                fraction=spec.dataset.held_out,
                seed=0,
                class_names=images.class_names,
                remedy="lower the imbalance ratio"
                if spec.dataset.profile in PROFILES
                else "add examples of it",
            )
            refuse_logits(
                len(held),
                images.num_classes,
                what="the held-out part",
                instead="hold out a smaller part, or none",
            )
        prior = ClassPrior.from_labels(images.labels[kept], num_classes=images.num_classes)
        # Refuses an epoch without a batch.
        sizes = Planner(recipe, method, images.labels, kept, prior, seed=0).batch_sizes
        if 1 in sizes:
            _refuse_batch_of_one(network, recipe, image_shape_of(recipe, images), sizes)


def _refuse_batch_of_one(
    network: nn.Module, recipe: Recipe, shape: tuple[int, int, int], sizes: Sequence[int]
) -> None:
    """Refuse a batch of one image, of which batch norm has no variance where maps are 1 x 1."""
    try:
        network.train()(torch.empty(1, *shape, device="meta"))
    except ValueError as error:
        batch = "a batch" if recipe.batch_size == 1 else "the last batch of an epoch"
        drop = "" if recipe.batch_size == 1 else "drop_last=true or "
        raise InputError(
            f"recipe {recipe.name!r}: {batch} would have 1 of {sum(sizes)} examples, and batch "
            f"norm in {recipe.model!r}, whose last maps are of one pixel with images of "
            f"{shape[1]} x {shape[2]}, needs two; set {drop}another batch_size."
        ) from error


def _refuse_of_many_classes(spec: RunSpec, recipe: Recipe, images: Images, processes: int) -> None:
    """Refuse what a classifier in slices, or a loss of some classes, can't do."""
    sharded, method = recipe.classifier == "sharded", Method.of(spec.method)
    setting = "`classifier` is 'sharded'" if sharded else "`sampled_classes` is above 0"
    default = "`classifier` at 'whole'" if sharded else "`sampled_classes` at 0"
    obstacle = None
    if isinstance(images, ImageSet):
        obstacle = f"{spec.dataset.name} is in memory; it is for photographs from disk"
    elif sharded and recipe.sampled_classes:
        obstacle = "`sampled_classes` is above 0, and negatives are drawn from a whole classifier"
    elif recipe.head != "linear":
        obstacle = f"the head is {recipe.head!r}, and it takes a linear one"
    elif method.loss == THRESHOLD:
        obstacle = f"{THRESHOLD} itself drops competitors at random; take 'equalized'"
    elif not sharded and method.label_smoothing:
        obstacle = "label smoothing needs all classes"
    elif sharded and processes > images.num_classes:
        obstacle = (
            f"there are {processes} processes for {images.num_classes} classes, so some would "
            f"hold none; start at most {images.num_classes}"
        )
    if obstacle is not None:
        raise InputError(f"recipe {recipe.name!r}: {setting}, but {obstacle}. Or leave {default}.")


def precision_of(spec: RunSpec) -> str:
    """``float32``, or what the spec's settings say."""
    precision = spec.settings.get("precision", "float32")
    if precision not in PRECISIONS:
        raise InputError(
            f"train: `precision` must be one of {', '.join(PRECISIONS)}; got {precision!r}."
        )
    return str(precision)
