"""What is refused before any training: specs that don't fit their images, or can't be trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from longtail import _checks

_checks.require("torch", extra="torch", caller=__name__)

import torch

from longtail._checks import InputError
from longtail.data.images import ImageSet
from longtail.data.lists import ListedImages
from longtail.data.profiles import PROFILES
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
        if recipe.classifier == "sharded" or recipe.sampled_classes:
            _refuse_of_many_classes(spec, recipe, images, processes)
        if isinstance(images, ImageSet):
            refuse_images(recipe, images)
        with torch.device("meta"):  # shapes without memory
            new_network(recipe, images, seed=0)
        Method.of(spec.method).criterion(images.prior)
        if spec.dataset.held_out:
            _, held = held_out_split(
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
