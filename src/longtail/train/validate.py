"""Checks of runs before any training, for the command line and the library alike.

Values of a recipe or a method by themselves are checked where these are made (`recipe`,
`methods`); here it is whether they fit each other, the images and the processes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from longtail._checks import InputError, choice
from longtail.data.images import ImageSet
from longtail.data.lists import ListedImages
from longtail.data.profiles import PROFILES
from longtail.data.subsets import held_out_split
from longtail.priors import ClassPrior
from longtail.runs import RunSpec
from longtail.runs.folder import TEACHERS
from longtail.train.evaluation import Images, refuse_logits
from longtail.train.loop import new_network
from longtail.train.methods import THRESHOLD, Method
from longtail.train.plan import Planner
from longtail.train.recipe import Recipe
from longtail.train.streamed import check_recipe
from longtail.train.teachers import SAVED

# What leaves images as they are; embeddings come so, and saved logits are of such images.
_CHANGES = ("crop_padding", "flip", "trivial_augment", "cutout", "cutmix", "mixup")
_OF_EMBEDDINGS = {"mean": (0.0,), "std": (1.0,), "crop_padding": 0, "flip": False, "cutmix": 0}


def validate(specs: Sequence[RunSpec], images: Images, *, processes: int = 1) -> None:
    """Refuse runs that can't be trained, so that none fails after others were.

    Args:
        specs: of the runs.
        images: the training set.
        processes: that will share it.
    """
    if isinstance(images, ImageSet):
        if images.role:
            raise InputError(
                f"train: these images are a {images.role} set, to be judged on; nothing is trained "
                f"on them."
            )
        if processes > 1:
            raise InputError(
                f"train: {processes} processes can share images on disk only; images in memory "
                f"train many runs together in one process: start it without torchrun."
            )
    for spec in {dataclasses.replace(spec, seed=0): None for spec in specs}:
        recipe, method = Recipe.of(spec), Method.of(spec.method)
        choice(spec.settings.get("precision", "float32"), ("float32", "bfloat16"), name="precision")
        if recipe.distill_weight or TEACHERS in spec.settings:
            _check_teaching(spec, recipe)
        if recipe.classifier == "sharded" or recipe.sampled_classes:
            _check_many_classes(spec, recipe, method, images, processes)
        kept = np.arange(len(images))
        if spec.dataset.held_out:
            rarer = spec.dataset.profile in PROFILES
            kept, held = held_out_split(
                images.labels,
                fraction=spec.dataset.held_out,
                seed=0,
                class_names=images.class_names,
                remedy="lower the imbalance ratio" if rarer else "add examples of it",
            )
            instead = "hold out a smaller part, or none"
            refuse_logits(len(held), images.num_classes, what="the held-out part", instead=instead)
        prior = ClassPrior.from_labels(images.labels[kept], num_classes=images.num_classes)
        if method.margin(prior) is None:  # both refuse settings of other data
            method.criterion(prior)
        Planner(recipe, method, images.labels, kept, prior, seed=0)  # refuses empty epochs
        _check_images(spec, recipe, images)


def _check_images(spec: RunSpec, recipe: Recipe, images: Images) -> None:
    """Refuse images of another kind than the recipe and its network are for."""
    name, data, side = f"recipe {recipe.name!r}", spec.dataset.name, recipe.image_size
    (channels, height, width), largest = (3, side, side), 255.0
    if isinstance(images, ListedImages):
        check_recipe(recipe)
    else:
        (channels, height, width), largest = images.image_shape, images.pixel_range
        if side:
            raise InputError(
                f"{name} crops photographs from disk to {side} pixels, but {data} is in memory, in "
                f"one size; take another recipe, or override image_size=0."
            )
        for key, off in _OF_EMBEDDINGS.items() if images.is_embeddings else ():
            if getattr(recipe, key) != off:
                raise InputError(
                    f"{name} changes images (`{key}`), but {data} holds embeddings, which come as "
                    f"they are; take the recipe embeddings (--recipe embeddings)."
                )
    for key in ("mean", "std"):
        if len(getattr(recipe, key)) not in (1, channels):
            raise InputError(
                f"{name} is for images of {len(getattr(recipe, key))} channels (`{key}`), but "
                f"{data} has {channels}; change `mean` and `std` (--set), or take another recipe."
            )
    if recipe.cutout >= min(height, width):
        raise InputError(
            f"{name}: the square of cutout, {recipe.cutout} pixels, must be smaller than the "
            f"image, {height} x {width}; take about half of the smaller side."
        )
    if recipe.trivial_augment and (largest != 255 or channels not in (1, 3)):
        raise InputError(
            f"{name}: `trivial_augment` is for pixels of 0 .. 255 in 1 or 3 channels, but these "
            f"images have 0 .. {largest} in {channels}; set trivial_augment=false."
        )
    with torch.device("meta"):  # refuses images too small for the network, without memory
        new_network(recipe, images, seed=0)


def _check_teaching(spec: RunSpec, recipe: Recipe) -> None:
    """Refuse a run that has teachers it would not listen to, or should have some and has none."""
    name, teachers = f"train: recipe {recipe.name!r}", TEACHERS in spec.settings
    if teachers and recipe.distill_weight == 0:
        raise InputError(
            f"{name} has distill_weight 0, so the teachers that are named would do nothing; take "
            f"the recipe strong-student, or set distill_weight (--set)."
        )
    if not teachers:
        raise InputError(
            f"{name} has distill_weight {recipe.distill_weight:g} and needs teachers; name their "
            f"run folders (--teachers RUN), or take a recipe without them, such as strong."
        )
    if SAVED in spec.settings and any(getattr(recipe, key) for key in _CHANGES):
        raise InputError(
            f"{name} crops, flips, augments or mixes images, but saved logits are of images as "
            f"they are; let the teachers' networks answer (without --teacher-logits), or set "
            f"crop_padding=0, flip=false and the like."
        )


def _check_many_classes(
    spec: RunSpec, recipe: Recipe, method: Method, images: Images, processes: int
) -> None:
    """Refuse what a sharded classifier, or a loss of some classes, can't do."""
    sharded, data = recipe.classifier == "sharded", spec.dataset.name
    setting = "`classifier` is 'sharded'" if sharded else "`sampled_classes` is above 0"
    obstacles = {
        f"{data} is in memory; it is for photographs from disk": isinstance(images, ImageSet),
        f"the head is {recipe.head!r}, and it takes a linear one": recipe.head != "linear",
        f"{THRESHOLD} drops competitors at random; take 'equalized'": method.loss == THRESHOLD,
    }
    if sharded:
        drawn = "negatives are drawn from a whole classifier (`sampled_classes` is above 0)"
        obstacles[drawn] = recipe.sampled_classes > 0
        obstacles["the backbone is frozen"] = recipe.freeze_backbone
        few = f"there are {processes} processes for {images.num_classes} classes"
        obstacles[few] = processes > images.num_classes
        lowered = "label smoothing is for losses that leave the target's own logit alone"
        moves = method.criterion(images.prior).parts()[2] is not None
        obstacles[f"{lowered}, unlike {method.loss!r}"] = method.label_smoothing > 0 and moves
    else:
        obstacles["label smoothing needs all classes"] = method.label_smoothing > 0
    for obstacle, present in obstacles.items():
        if present:
            raise InputError(f"recipe {recipe.name!r}: {setting}, but {obstacle}.")
