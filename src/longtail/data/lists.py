"""Images that stay on disk: lists of `path label` lines, competition files and folder trees.

Only names and labels are held, 437,513 of them in about 40 MB. `photos` and `check` look into the
files; `large` knows which lists a named data set has.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail import _checks, runs
from longtail._checks import InputError, IntArray
from longtail.data.images import Labeled
from longtail.runs.files import read_json

# Absolute, or with '..' for a part.
_OUTSIDE = re.compile(r"[/\\]|[A-Za-z]:[/\\]|(.*/)?\.\.(/|$)")
# Left in folders by systems, archives and network drives, beside what a leading dot hides.
_CLUTTER = ("thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "@eadir")
_ENDINGS = (
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm",
    ".pgm", ".pbm", ".pnm",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ListedImages(Labeled):
    """Labelled images in files: where they are and what they show, no pixels.

    Attributes:
        root: the folder that the paths start from.
        paths: one relative path per example, with forward slashes; kept as an array of bytes,
            which takes a third of the memory of text and is not copied for worker processes.
        labels, class_names: see `Labeled`.
        name: of the data in a run's record.

    Examples:
        >>> data = ListedImages(Path("photos"), ["a/1.jpg", "a/2.jpg", "b/1.jpg"],
        ...                     np.array([0, 0, 1]), ("a", "b"))
        >>> data.counts, data.file(2)
        (array([2, 1]), 'photos/b/1.jpg')
    """

    root: Path
    paths: NDArray[np.bytes_] | Sequence[str]
    labels: IntArray
    class_names: tuple[str, ...]
    name: str = "images"

    def __post_init__(self) -> None:
        if not isinstance(self.paths, np.ndarray):
            self.__dict__["paths"] = np.array([os.fsencode(path) for path in self.paths], "S")
        classes = len(self.class_names)
        self.__dict__["labels"] = _checks.labels(self.labels, name="labels", num_classes=classes)
        if len(self.paths) != len(self.labels):
            raise InputError(f"there are {len(self.paths)} paths but {len(self.labels)} labels.")
        self.__dict__.update(num_classes=classes, counts=np.bincount(self.labels, None, classes))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over paths and labels: cheap, and blind to what is in the files."""
        content = b"\n".join([*np.asarray(self.paths).tolist(), b""])
        return runs.fingerprint(np.frombuffer(content, np.uint8), self.labels)

    @property
    def spec(self) -> runs.DataSpec:
        """Name and fingerprint of these examples in a run's record."""
        return runs.DataSpec(self.name, settings={"list": self.fingerprint[:16]})

    def file(self, index: int) -> str:
        """Return the path of an example's image."""
        return os.path.join(self.root, os.fsdecode(self.paths[index]))

    def take(self, indices: IntArray) -> ListedImages:
        """Return the examples at these positions, in this order."""
        paths, labels = np.asarray(self.paths)[indices], self.labels[indices]
        return replace(self, paths=paths, labels=labels)

    def missing_files(self) -> IntArray:
        """Return the positions whose file is not there, by one look into each folder."""
        folders = [os.path.split(path) for path in np.asarray(self.paths).tolist()]
        inside = {folder: set[bytes]() for folder, _ in folders}
        for folder in inside:
            place = os.path.join(os.fsencode(self.root), folder)
            if os.path.isdir(place):
                inside[folder] = set(os.listdir(place))
        missing = [i for i, (folder, name) in enumerate(folders) if name not in inside[folder]]
        return np.array(missing, np.int64)


@dataclass(frozen=True)
class Problem:
    """Something wrong with a data set: the rule, and what came instead."""

    kind: str  # one of `large.KINDS`
    where: str  # the file, or the list and its line
    detail: str


class Listing(NamedTuple):
    """Sound entries of a list, and the problems of the others."""

    source: Path  # the list, competition file or folder
    root: Path  # the folder that the paths start from
    paths: list[str]
    labels: IntArray
    problems: list[Problem]
    class_names: tuple[str, ...] | None = None


def scan(path: Path, root: Path, class_names: Sequence[str] | None = None) -> Listing:
    """Read a list, a competition file (.json) or a folder ``<class>/<image>``.

    Faulty entries are named in the result instead of refused.
    """
    if path.is_dir():
        return _scan_folder(path, class_names)
    return (_scan_competition if path.suffix.lower() == ".json" else _scan_lines)(path, root)


def _scan_lines(path: Path, root: Path) -> Listing:
    """Read lines ``path label``; the label follows the last blank, so a path may have blanks."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text in UTF-8 with lines `path label`.") from error
    entries, problems = list[tuple[str, str, int]](), list[Problem]()
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.rsplit(None, 1)
        if not fields:
            continue
        name, label, where = fields[0].lstrip(), fields[-1], f"{path}:{number}"
        if len(fields) == 1:
            rule = f"a line is `path label`; got {name!r} alone"
            problems.append(Problem("line", where, rule))
        elif not label.isdecimal():
            rule = f"the label must be a whole number, 0 or more; got {label!r}"
            problems.append(Problem("label", where, rule))
        else:
            entries.append((where, name, int(label)))
    return _listing(path, root, entries, problems)


def _scan_competition(path: Path, root: Path) -> Listing:
    """Read iNaturalist's json: images, annotations and categories, joined by their ids.

    A label is a category's id; those of 2018 are 0 .. 8141, the same as in the list files.
    """
    document, label_of = read_json(path), dict[Any, int]()
    rules, entries = list[str](), list[tuple[str, str, int]]()
    try:
        names = {entry["id"]: str(entry["name"]) for entry in document["categories"]}
        for entry in document["annotations"]:
            image, label = entry["image_id"], int(entry["category_id"])
            if (first := label_of.setdefault(image, label)) != label:
                rules.append(f"image {image} has two labels, {first} and {label}")
        for entry in document["images"]:
            image, name = entry["id"], str(entry["file_name"])
            if image in label_of:
                entries.append((f"{path}: image {image}", name, label_of[image]))
            else:
                rules.append(f"image {image}, {name!r}, has no annotation")
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is not a competition file with labels, {{images: [{{id, file_name}}], "
            f"annotations: [{{image_id, category_id}}], categories: [{{id, name}}]}} "
            f"({type(error).__name__}: {error}). The competition's test set has no annotations; "
            f"results are reported on its validation set (val2018.json)."
        ) from error
    if not names or names.keys() != set(range(len(document["categories"]))):
        raise InputError(
            f"{path}: category ids must be 0 .. L - 1, each once, since they are the labels."
        )
    problems = [Problem("label", str(path), rule) for rule in rules]
    return _listing(path, root, entries, problems, tuple(names[k] for k in range(len(names))))


def _listing(
    source: Path,
    root: Path,
    entries: Iterable[tuple[str, str, int]],
    problems: list[Problem],
    class_names: tuple[str, ...] | None = None,
) -> Listing:
    """Return the entries (place, path, label) whose paths are sound; of one file's the first."""
    found: dict[str, tuple[str, int]] = {}
    for where, name, label in entries:
        if _OUTSIDE.match(name):
            rule = f"a path must be relative and stay below the image root; got {name!r}"
            problems.append(Problem("path", where, rule))
        else:
            # Normalised, so that one file has one name.
            before, first = found.setdefault(posixpath.normpath(name), (where, label))
            if before != where:
                other = f", and {first} there" if label != first else ""
                rule = f"{name!r} is at {before} already (label {label}{other})"
                problems.append(Problem("duplicate", where, rule))
    labels = np.fromiter((label for _, label in found.values()), np.int64, len(found))
    return Listing(source, root, list(found), labels, problems, class_names)


# --- folders <class>/<image> ----------------------------------------------------------------------


def _is_clutter(name: str) -> bool:
    return name.startswith(".") or name.lower() in _CLUTTER


def _counting_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a sort key under which numbers inside names count as numbers.

    Examples:
        >>> sorted(["10", "9", "b2", "b10", "1"], key=_counting_order)
        ['1', '9', '10', 'b2', 'b10']
    """
    pieces = re.split(r"([0-9]+)", name)
    # Even pieces are text, odd ones digits; the name itself decides between '1' and '01'.
    return [(int(p), "") if i % 2 else (-1, p) for i, p in enumerate(pieces)], name


def stray_images(path: Path) -> list[Path]:
    """Return the images of a split that lie beside its class folders."""
    return sorted(
        entry
        for entry in path.iterdir()
        if entry.suffix.lower() in _ENDINGS and not _is_clutter(entry.name) and entry.is_file()
    )


def _scan_folder(path: Path, class_names: Sequence[str] | None) -> Listing:
    """List a tree ``PATH/<class>/<image>`` in the order people count in, without clutter."""
    entries = (entry for entry in os.scandir(path) if not _is_clutter(entry.name))
    folders = sorted((entry.name for entry in entries if entry.is_dir()), key=_counting_order)
    known = folders if class_names is None else list(class_names)
    unknown = sorted(set(folders) - set(known), key=_counting_order)
    paths, counts = list[str](), list[int]()
    for name in known + unknown:
        inside = os.listdir(path / name) if (path / name).is_dir() else []
        images = sorted((file for file in inside if not _is_clutter(file)), key=_counting_order)
        paths += [f"{name}/{file}" for file in images]
        counts.append(len(images))
    if not paths:
        raise InputError(f"there are no images {path}/<class>/<image>.")
    problems = []
    if unknown:
        lacking = [name for name in known if name not in folders]  # one may be it, mistyped
        hint = f" (it has no folder of {_checks.listing(lacking, most=3)})" if lacking else ""
        rule = f"has class folders that the training set lacks: {_checks.listing(unknown, most=3)}"
        problems = [Problem("label", str(path), f"{rule}; rename or remove them{hint}")]
    labels = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    return Listing(path, path, paths, labels, problems, (*known, *unknown))


def label_problems(listing: Listing, num_classes: int, *, every_class: bool) -> list[Problem]:
    """Return what is wrong with the labels of a listing as a whole."""
    where, labels, names = str(listing.source), listing.labels, listing.class_names
    if not len(labels):
        return [Problem("line", where, "the list is empty; it needs lines `path label`")]
    there, largest = set(labels.tolist()), listing.paths[int(labels.argmax())]
    if labels.max() >= num_classes:
        rule = f"labels must lie in 0 .. {num_classes - 1}, but {largest!r} has {labels.max()}"
    elif every_class and len(there) < num_classes:
        first = list(islice((label for label in range(num_classes) if label not in there), 3))
        others = num_classes - len(there) - len(first)
        more = f" and {others:,} more" if others else ""
        if listing.source.is_dir() and names is not None:
            empty = ", ".join(names[label] for label in first) + more
            rule = f"the class folder(s) {empty} hold no images; fill or remove them"
        else:
            rule = (
                f"labels must be 0 .. {num_classes - 1} without holes, but no image has label "
                f"{', '.join(map(str, first))}{more}; the largest label is that of {largest!r}"
            )
    else:
        return []
    return [Problem("label", where, rule)]


def record_name(text: str) -> str:
    """Return a name that a run's record can carry, from that of a file or folder.

    Examples:
        >>> record_name("my photos (2)")
        'my-photos-2'
    """
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-").lstrip("._+-") or "images"
