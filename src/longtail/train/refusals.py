"""What is refused before any training: specs that don't fit their images, or can't be trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from longtail._checks import InputError
from longtail.data.images import ImageSet
from longtail.data.lists import ListedImages
from longtail.data.subsets import held_out_split
from longtail.runs import RunSpec
from longtail.train.batches import refuse_images
from longtail.train.evaluation import Images, refuse_logits
from longtail.train.methods import THRESHOLD, Method
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
        if recipe.classifier == "sharded":
            _refuse_sharded(spec, recipe, images, processes)
        if isinstance(images, ImageSet):
            refuse_images(recipe, images)
        with torch.device("meta"):  # shapes without memory
            new_network(recipe, images, seed=0)
        Method.of(spec.method).criterion(images.prior)
        if spec.dataset.held_out:
            _, held = held_out_split(images.labels, fraction=spec.dataset.held_out, seed=0)
            refuse_logits(
                len(held),
                images.num_classes,
                what="the held-out part",
                instead="hold out a smaller part, or none",
            )


def _refuse_sharded(spec: RunSpec, recipe: Recipe, images: Images, processes: int) -> None:
    """Refuse what a classifier in slices can't do."""
    asked = f"recipe {recipe.name!r}: `classifier` is 'sharded', but"
    if isinstance(images, ImageSet):
        raise InputError(
            f"{asked} {spec.dataset.name} is in memory and trains in one process; leave "
            f"`classifier` at 'whole'."
        )
    if recipe.head != "linear":
        raise InputError(
            f"{asked} the head is {recipe.head!r}, and only a linear one is cut into slices of "
            f"the classes; leave one of the two out."
        )
    if Method.of(spec.method).loss == THRESHOLD:
        raise InputError(
            f"{asked} {THRESHOLD} drops competitors at random, which can't be computed in slices "
            f"of the classes; take 'equalized', or leave `classifier` at 'whole'."
        )
    if processes > images.num_classes:
        raise InputError(
            f"{asked} there are {processes} processes for {images.num_classes} classes, so some "
            f"would hold none; start at most {images.num_classes}, or leave `classifier` at "
            f"'whole'."
        )


def precision_of(spec: RunSpec) -> str:
    """``float32``, or what the spec's settings say."""
    precision = spec.settings.get("precision", "float32")
    if precision not in PRECISIONS:
        raise InputError(
            f"train: `precision` must be one of {', '.join(PRECISIONS)}; got {precision!r}."
        )
    return str(precision)
