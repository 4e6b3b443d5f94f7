"""Defaults for data of one's own: what the recipes `finetune` and `scratch` take from the images.

Headers of the images tell their size, and a sample of the training set mean and standard
deviation; of the test set nothing but the headers is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from longtail._checks import InputError
from longtail.data.decoding import PhotoError, in_threads
from longtail.data.images import ImageSet, Labeled
from longtail.data.large import ListedData
from longtail.data.lists import ListedImages
from longtail.data.photos import CenterCrop, Header, check_photo
from longtail.models import MODELS
from longtail.train.recipe import Recipe, get_recipe

FINETUNE, SCRATCH = RECIPES = "finetune", "scratch"
SMALL = 64  # pixels of a side of images that are read into memory
SIZES = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224)  # that photographs are cropped to
_HEADERS, _DECODED = 1000, 300  # images in the samples


def fits_memory(data: ListedData, *, colour: bool = False) -> bool:
    """Return whether all images have one small size, one kind of colour, and no transparency.

    With `colour`, grey images don't fit, for networks that take three channels.
    """
    shapes: set[tuple[int, int]] = set()
    grey: set[bool] = {False} if colour else set()
    for part in (data.train, data.test):
        all_grey = True
        for index in range(len(part)):
            found = check_photo(part.file(index), quick=True)
            if isinstance(found, PhotoError) or found.transparent:
                return False
            all_grey &= found.grey
            shapes.add((found.height, found.width))
            if len(shapes) > 1 or max(found.height, found.width) > SMALL:
                return False
        grey.add(all_grey)
    return len(grey) == 1


def settle(
    recipe: str,
    data: ImageSet | ListedImages,
    *,
    given: Mapping[str, Any],
    pretrained: bool = False,
) -> dict[str, Any]:
    """Return the values of a recipe that follow from the training set.

        image_size    the median of the shorter sides, rounded down to one of `SIZES`
        model         from scratch: a network for images of that size
        mean, std     of a sample, in two decimals; ImageNet's for pretrained weights
        epochs        from scratch: as many as show two million images, within 90 .. 200

    Values that are `given`, by the user, are not among the result.

    Examples:
        >>> from longtail.data.digits import load_digits_lt
        >>> found = settle("scratch", load_digits_lt().train, given={"epochs": 5})
        >>> [found[key] for key in ("image_size", "model", "mean", "std")]
        [0, 'small-conv', (0.31,), (0.38,)]
    """
    numbers = {key: given[key] for key in ("epochs", "batch_size", "image_size") if key in given}
    typed = get_recipe(recipe, **numbers)  # checks them
    chosen: dict[str, Any] = {}
    if isinstance(data, ImageSet):
        side = min(data.image_shape[1:])
        chosen["image_size"] = 0
        if side >= 16:
            chosen["crop_padding"] = side // 8
    else:
        least = MODELS[given["model"]].smallest if given.get("model") in MODELS else 0
        side = chosen["image_size"] = numbers.get("image_size") or _usual_size(data, least=least)
    if not pretrained:
        chosen["model"] = "resnet18" if side > SMALL else "resnet32" if side >= 16 else "small-conv"
        chosen["mean"], chosen["std"] = _mean_and_std(data, side)
        chosen["epochs"] = min(200, max(90, 2_000_000 // len(data)))
        epochs = numbers.get("epochs", chosen["epochs"])
        chosen["warmup_epochs"] = min(typed.warmup_epochs, epochs / 10)
    if len(data) % typed.batch_size == 1:  # batch norm can't do with one small image
        chosen["drop_last"] = True
    return {key: value for key, value in chosen.items() if key not in given}


def words(name: str, recipe: Recipe) -> str:
    """Return the line that says what was chosen, and how to change it."""
    size = f"image_size {recipe.image_size}" if recipe.image_size else "images as they are"
    mean, std = (
        f"[{','.join(f'{value:g}' for value in values)}]" for values in (recipe.mean, recipe.std)
    )
    mirrored = " Half of the images are mirrored: --set flip=false for signs, digits or text."
    return (
        f"Chosen for {name}: recipe {recipe.name}, model {recipe.model}, {size}, mean {mean}, std "
        f"{std}, epochs {recipe.epochs}; --set changes each, as in --set epochs=20."
        + (mirrored if recipe.flip else "")
    )


def _sample(data: Labeled, count: int) -> list[int]:
    """Return the positions of examples that are spread evenly over the data."""
    places: list[int] = (
        np.linspace(0, len(data) - 1, min(count, len(data))).round().astype(int).tolist()
    )
    return places


def _read(data: ListedImages, read: Callable[[str], Any], count: int) -> list[Any]:
    """Return what can be read of a sample of files; training will name the others."""

    def attempt(index: int) -> Any:
        try:
            return read(data.file(index))
        except PhotoError as error:
            return error

    found = list(in_threads(attempt, _sample(data, count)))
    good = [one for one in found if not isinstance(one, PhotoError)]
    if not good:
        raise InputError(f"none of {len(found)} images can be read; one {found[0].reason}.")
    return good


def _usual_size(data: ListedImages, *, least: int) -> int:
    headers: list[Header] = _read(data, partial(check_photo, quick=True), _HEADERS)
    median = np.median([min(header.height, header.width) for header in headers])
    return max([least, SIZES[0], *(size for size in SIZES if size <= median)])


def _mean_and_std(data: ImageSet | ListedImages, side: int) -> list[tuple[float, ...]]:
    if isinstance(data, ImageSet):
        pixels = data.images[_sample(data, 10 * _DECODED)].transpose(0, 2, 3, 1) / data.pixel_range
    else:
        pixels = np.stack(_read(data, CenterCrop(side, round(side * 256 / 224)), _DECODED)) / 255
    mean, std = pixels.mean((0, 1, 2)), pixels.std((0, 1, 2))
    return [tuple(value.round(2).tolist()) for value in (mean, std.round(2).clip(0.01))]
