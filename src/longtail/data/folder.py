"""Labelled images from a folder that has one sub-folder per class.

Classes, and the images in each, are in the order that people count in: '2' before '10'.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from longtail import _checks
from longtail._checks import InputError
from longtail.data.decoding import GREY, Progress, decode_images
from longtail.data.images import ImageSet

# What systems, archives and network drives leave in folders without being asked, beside what is
# hidden by its first character.
_CLUTTER = ("thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "@eadir")


def is_clutter(name: str) -> bool:
    """Whether a file or folder of this name is neither an image nor a class, and passed over.

    Examples:
        >>> [is_clutter(name) for name in (".DS_Store", "Thumbs.db", "cat.jpg")]
        [True, True, False]
    """
    return name.startswith(".") or name.lower() in _CLUTTER


def counting_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """A sort key under which numbers inside names count as numbers.

    Examples:
        >>> sorted(["10", "9", "b2", "b10", "1"], key=counting_order)
        ['1', '9', '10', 'b2', 'b10']
    """
    pieces = re.split(r"([0-9]+)", name)
    # Even pieces are text, odd ones digits; the name itself decides between '1' and '01'.
    return [(int(p), "") if i % 2 else (-1, p) for i, p in enumerate(pieces)], name


def refuse_unknown(
    folders: Iterable[str], class_names: Sequence[str], *, path: Path, caller: str
) -> None:
    """Refuse class folders that the training set hasn't."""
    if words := unknown_words(folders, class_names):
        raise InputError(f"{caller}: {path} {words}.")


def unknown_words(folders: Iterable[str], class_names: Sequence[str]) -> str:
    """What to say of class folders that the training set hasn't, or nothing.

    Examples:
        >>> unknown_words(["cat", "dgo"], ["cat", "dog"])[:52]
        'has class folders that the training set lacks: dgo; '
        >>> unknown_words(["cat"], ["cat", "dog"])
        ''
    """
    there = set(folders)
    unknown = sorted(there - set(class_names), key=counting_order)
    if not unknown:
        return ""
    lacking = [name for name in class_names if name not in there]  # one may be it, mistyped
    hint = f" (it has no folder of {_checks.listing(lacking, most=3)})" if lacking else ""
    return (
        f"has class folders that the training set lacks: {_checks.listing(unknown, most=3)}; "
        f"rename or remove them{hint}"
    )


def read_image_folder(
    path: Path | str,
    *,
    class_names: Sequence[str] | None = None,
    size: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """The images of one split: ``PATH/<class>/<image>``.

    Args:
        path: the folder.
        class_names: the classes in label order, such as the training set's, of which some may
            have no images here; by default the folders' names, each with images.
        size: (height, width) that every image must have; that of the first image if None.
        progress: called with (images done, images in all, text).

    Returns:
        The set, class after class; grey images have one channel, and colour ones three.
    """
    caller = "read_image_folder"
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{caller}: there is no folder {path}.")
    classes = sorted(_visible(path, caller), key=lambda folder: counting_order(folder.name))
    if not classes:
        raise InputError(
            f"{caller}: {path} has no sub-folders; put the images of each class into a folder of "
            f"its own, {path}/<class>/<image>."
        )
    there = [folder.name for folder in classes]
    names = tuple(there if class_names is None else class_names)
    refuse_unknown(there, names, path=path, caller=caller)
    inside = {folder.name: _images(folder, caller) for folder in classes}
    empty = [name for name in there if not inside[name]]
    if empty and class_names is None:
        raise InputError(
            f"{caller}: the class folder(s) {_checks.listing(empty)} in {path} hold no images; "
            f"fill or remove them."
        )
    images = [image for name in names for image in inside.get(name, ())]
    if not images:
        raise InputError(f"{caller}: there are no images in the class folders of {path}.")
    pixels = decode_images(
        images,
        name_of=lambda index: str(images[index]),
        caller=caller,
        size=size,
        progress=progress,
    )
    counts = [len(inside.get(name, ())) for name in names]
    labels = np.repeat(np.arange(len(names), dtype=np.int64), counts)
    return ImageSet(pixels, labels, names)


def first_colored(path: Path) -> Path | None:
    """The first image of a split that is not grey, by its header."""
    caller = "read_image_folder"
    image = _checks.require("PIL.Image", extra="torch", caller=caller)
    for folder in sorted(_visible(path, caller), key=lambda folder: counting_order(folder.name)):
        for file in _images(folder, caller):
            with image.open(file) as opened:
                if opened.mode not in GREY:
                    return file
    return None


def _visible(path: Path, caller: str) -> list[Path]:
    """The class folders; an image beside them belongs to no class and is refused."""
    if stray := stray_images(path, caller=caller):
        raise InputError(
            f"{caller}: {path} has images that are in no class folder: "
            f"{_checks.listing([file.name for file in stray], most=3)}."
        )
    return [entry for entry in path.iterdir() if entry.is_dir() and not is_clutter(entry.name)]


def stray_images(path: Path, *, caller: str) -> list[Path]:
    """The images of a split that lie beside its class folders.

    Args:
        path: the split's folder.
        caller: for messages.
    """
    endings = _image_endings(caller)
    files = (entry for entry in path.iterdir() if entry.is_file() and not is_clutter(entry.name))
    return sorted(file for file in files if file.suffix.lower() in endings)


def _images(folder: Path, caller: str) -> list[Path]:
    """The images of a class, in order; anything else there is refused rather than passed over."""
    entries = [entry for entry in folder.iterdir() if not is_clutter(entry.name)]
    endings = _image_endings(caller)
    others = sorted(e.name for e in entries if e.is_dir() or e.suffix.lower() not in endings)
    if others:
        raise InputError(
            f"{caller}: {folder} holds what is no image: {_checks.listing(others, most=3)}; a "
            f"class folder has only images in it, such as .png, .jpg or .webp."
        )
    return sorted(entries, key=lambda file: counting_order(file.name))


def _image_endings(caller: str) -> set[str]:
    image = _checks.require("PIL.Image", extra="torch", caller=caller)
    return set(image.registered_extensions())
