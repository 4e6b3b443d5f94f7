"""iNaturalist's competition files: json with images, annotations and categories.

A label is a category's id; those of 2018 are 0 .. 8141, the same as in the list files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from longtail._checks import InputError
from longtail.data.lists import Listing, Paths, Problem, path_fault, plain_path
from longtail.runs.files import read_json

_FIELDS = {
    "images": ("id", "file_name"),
    "annotations": ("image_id", "category_id"),
    "categories": ("id", "name"),
}


def scan_inaturalist(path: Path | str) -> Listing:
    """Every image of a competition file, with the faulty ones named instead of refused.

    Images and annotations belong together by `image_id`, in whatever order they come.
    """
    path = Path(path)
    document = _document(path)
    names = _category_names(path, document["categories"])
    problems: list[Problem] = []

    def problem(kind: str, detail: str) -> None:
        problems.append(Problem(kind, str(path), detail))

    label_of: dict[Any, Any] = {}
    for annotation in document["annotations"]:
        image, label = annotation["image_id"], annotation["category_id"]
        if not isinstance(label, int) or not 0 <= label < len(names):
            known = f"0 .. {len(names) - 1}"
            problem("label", f"`category_id` must lie in {known}; that of image {image} is {label}")
        elif label_of.setdefault(image, label) != label:
            problem("label", f"image {image} has two labels, {label_of[image]} and {label}")
    found: dict[bytes, int] = {}
    for image in document["images"]:
        name = str(image["file_name"]).encode()
        label = label_of.pop(image["id"], None)
        fault = path_fault(name)
        if label is None:
            problem("label", f"image {image['id']}, {image['file_name']!r}, has no annotation")
        elif fault is not None:
            problem(*fault)
        elif (plain := plain_path(name)) in found:
            problem("duplicate", f"{image['file_name']!r} is in `images` twice")
        else:
            found[plain] = label
    if label_of:
        lost = next(iter(label_of))
        problem("label", f"{len(label_of):,} annotations are of no image; the first, of {lost}")
    labels = np.fromiter(found.values(), np.int64, len(found))
    return Listing(path, Paths(found), labels, problems, names)


def _document(path: Path) -> dict[str, Any]:
    caller = "scan_inaturalist"
    if not path.is_file():
        raise InputError(f"{caller}: there is no file {path}.")
    document = read_json(path, caller=caller)
    shape = "{images: [...], annotations: [...], categories: [...]}"
    if not isinstance(document, dict) or not isinstance(document.get("images"), list):
        raise InputError(f"{caller}: {path} is no competition file, which is {shape}.")
    if "annotations" not in document:
        raise InputError(
            f"{caller}: {path} has no annotations, so no labels; the competition's test set has "
            f"none, and results are reported on its validation set (val2018.json)."
        )
    for part, fields in _FIELDS.items():
        rows = document.get(part)
        if not isinstance(rows, list):
            raise InputError(f"{caller}: {path} lacks the list `{part}`; its shape is {shape}.")
        for position, row in enumerate(rows):
            if not (isinstance(row, dict) and all(field in row for field in fields)):
                raise InputError(
                    f"{caller}: {path}: every entry of `{part}` has {' and '.join(fields)}; "
                    f"entry {position} is {str(row)[:80]}."
                )
    return document


def _category_names(path: Path, categories: list[dict[str, Any]]) -> tuple[str, ...]:
    """Names in the order of the ids, which must be 0 .. L − 1."""
    by_id = {category["id"]: str(category["name"]) for category in categories}
    if not by_id or len(by_id) != len(categories) or set(by_id) != set(range(len(by_id))):
        odd = next((i for i in range(len(categories)) if i not in by_id), "none")
        raise InputError(
            f"scan_inaturalist: {path}: category ids must be 0 .. L - 1, each once, since they "
            f"are the labels; there are {len(categories)} categories, and {odd} is no id."
        )
    return tuple(by_id[label] for label in range(len(by_id)))
