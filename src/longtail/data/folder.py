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
from longtail.data.decoding import Progress, decode_images
from longtail.data.images import ImageSet

# Left in folders by systems, archives and network drives, beside what a leading dot hides.
_CLUTTER = ("thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "@eadir")
_ENDINGS = (
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm",
    ".pgm", ".pbm", ".pnm",
)  # fmt: skip


def is_clutter(name: str) -> bool:
    """Return whether a file or folder of this name is passed over.

    Examples:
        >>> [is_clutter(name) for name in (".DS_Store", "Thumbs.db", "cat.jpg")]
        [True, True, False]
    """
    return name.startswith(".") or name.lower() in _CLUTTER


def counting_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a sort key under which numbers inside names count as numbers.

    Examples:
        >>> sorted(["10", "9", "b2", "b10", "1"], key=counting_order)
        ['1', '9', '10', 'b2', 'b10']
    """
    pieces = re.split(r"([0-9]+)", name)
    # Even pieces are text, odd ones digits; the name itself decides between '1' and '01'.
    return [(int(p), "") if i % 2 else (-1, p) for i, p in enumerate(pieces)], name


def refuse_unknown(folders: Iterable[str], class_names: Sequence[str], *, path: Path) -> None:
    """Refuse class folders that the training set lacks."""
    if words := unknown_words(folders, class_names):
        raise InputError(f"{path} {words}.")


def unknown_words(folders: Iterable[str], class_names: Sequence[str]) -> str:
    """Return what to say of class folders that the training set lacks, or nothing.

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
    """Read the images of one split: ``PATH/<class>/<image>``.

    Args:
        path: the folder.
        class_names: the classes in label order, such as the training set's, of which some may
            have no images here; by default the folders' names, each with images.
        size: (height, width) that every image must have; that of the first image if None.
        progress: called with (images done, images in all, text).

    Returns:
        The set, class after class; grey images have one channel, and colour ones three.
    """
    path = Path(path)
    if stray := stray_images(path):
        raise InputError(
            f"{path} has images that are in no class folder: "
            f"{_checks.listing([file.name for file in stray], most=3)}."
        )
    there = sorted(
        (e.name for e in path.iterdir() if e.is_dir() and not is_clutter(e.name)),
        key=counting_order,
    )
    names = tuple(there if class_names is None else class_names)
    refuse_unknown(there, names, path=path)
    inside = {name: _images(path / name) for name in there}
    empty = [name for name in there if not inside[name]]
    if not any(inside.values()) or (empty and class_names is None):
        raise InputError(
            f"{path} must have a folder of images for each class, {path}/<class>/<image>; "
            + (f"{_checks.listing(empty)} hold no images." if empty else "it has none.")
        )
    images = [image for name in names for image in inside.get(name, ())]
    pixels = decode_images(images, name_of=lambda k: str(images[k]), size=size, progress=progress)
    counts = [len(inside.get(name, ())) for name in names]
    labels = np.repeat(np.arange(len(names), dtype=np.int64), counts)
    return ImageSet(pixels, labels, names)


def stray_images(path: Path) -> list[Path]:
    """Return the images of a split that lie beside its class folders."""
    return sorted(
        entry
        for entry in path.iterdir()
        if entry.suffix.lower() in _ENDINGS and not is_clutter(entry.name) and entry.is_file()
    )


def _images(folder: Path) -> list[Path]:
    """Return the images of a class, in order; anything else there is refused."""
    entries = [entry for entry in folder.iterdir() if not is_clutter(entry.name)]
    others = sorted(e.name for e in entries if e.is_dir() or e.suffix.lower() not in _ENDINGS)
    if others:
        raise InputError(
            f"{folder} holds other things than images: {_checks.listing(others, most=3)}; a class "
            f"folder has only images in it, such as .png, .jpg or .webp."
        )
    return sorted(entries, key=lambda file: counting_order(file.name))
